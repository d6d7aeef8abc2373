"""What does not divide, what stays whole, what is needed, and that every way out is one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from course_lib.config import LLAMA_3_1_8B, ParallelConfig, load_model
from course_lib.costs.model.conventions import find_convention
from course_lib.costs.sweep.advice import Asked, indivisible, replicated, uneven, ways_to_fit
from course_lib.costs.sweep.gpu_memory import Work, gpu_memory, tensor_memory
from course_lib.costs.sweep.job import Job
from course_lib.costs.sweep.software import Software
from course_lib.hardware import load_device

H100 = load_device("h100_sxm_80").usable_bytes
FP32 = find_convention("fp32")
SMALL = replace(LLAMA_3_1_8B, hidden_size=24, n_heads=12, n_kv_heads=4, ffn_size=20, vocab_size=17, n_layers=3)


def asked(model=LLAMA_3_1_8B, *, sequence=2048, batch=4, engine="own", offload=False, recompute="none", **degrees):
    job = Job(
        model=model,
        parallel=ParallelConfig(**degrees),
        sequence=sequence,
        itemsize=4,
        recompute=recompute,
        convention=FP32,
        batch=batch,
        software=Software(kind="eager"),
        offload="all" if offload else "none",
    )
    return Asked(job=job, engine=engine)


def memory_of(one):
    return gpu_memory(one.counted)


@pytest.mark.parametrize(
    ("engine", "tp", "lines"),
    [
        ("own", 2, []),
        ("own", 5, ["12 heads over tp=5; nearest that divide: tp=4 and tp=12"]),  # 6 the 4 others forbid
        ("own", 6, ["4 heads of keys and values over tp=6; nearest that divide: tp=4 and tp=12"]),
        ("own", 12, []),  # three ranks have the same head
        ("own", 24, ["12 heads over tp=24; nearest that divide: tp=12"]),
        (
            "torch",
            12,
            [
                "4 heads of keys and values over tp=12; nearest that divide: tp=1",
                "20 features of the feed-forward over tp=12; nearest that divide: tp=1",
                "17 words of the vocabulary over tp=12; nearest that divide: tp=1",
            ],
        ),
    ],
)
def test_what_does_not_divide_is_said_with_the_nearest_degrees_that_do(engine, tp, lines):
    assert indivisible(asked(SMALL, tp=tp, engine=engine)) == lines


def test_our_engine_cuts_unevenly_and_says_so():
    assert uneven(asked(SMALL, tp=3)) == [
        "20 features of the feed-forward over tp=3, some ranks have one more; nearest that divide: tp=2 and tp=4",
        "17 words of the vocabulary over tp=3, some ranks have one more; nearest that divide: tp=1",
    ]
    assert uneven(asked(SMALL, tp=3, engine="torch")) == uneven(asked(tp=2)) == []


def test_what_stays_replicated():
    assert replicated(asked(SMALL, tp=12)) == ["each head of keys and values, of 4, is on 3 of tp=12 ranks"]
    said = [line for stage in range(4) for line in replicated(asked(dp=2, zero_stage=stage))]
    assert said == [
        "each of dp=2 ranks has all weights, gradients and optimizer's states of its part; "
        "zero_stage=1 shares optimizer's states",
        "each of dp=2 ranks has all weights and gradients of its part; zero_stage=2 shares gradients",
        "each of dp=2 ranks has all weights of its part; zero_stage=3 shares weights",
    ]


def test_memory_is_that_of_the_fullest_gpu():
    one = asked(dp=2, zero_stage=3, batch=3)  # a rank has two of three sequences
    assert memory_of(one) == gpu_memory(replace(one.job, microbatch=2)) != gpu_memory(replace(one.job, microbatch=1))
    assert memory_of(asked(replace(SMALL, ffn_size=21), tp=2)) == memory_of(asked(replace(SMALL, ffn_size=22), tp=2))
    assert memory_of(asked(SMALL, pp=2)).total >= memory_of(asked(SMALL, pp=3)).total
    kept = memory_of(replace(one, job=replace(one.job, offload="all")))
    assert (kept.weights, kept.gradients, kept.optimizer) == (0, 0, 0)
    assert kept.activations == memory_of(one).activations > 0


@pytest.mark.parametrize("model", ["gpt3_small", "mixtral_8x7b"])
def test_published_activations_scale_with_the_numbers(model):
    config, parallel = load_model(model), ParallelConfig(dp=2, zero_stage=3)
    half, full = (
        tensor_memory(config, parallel, Work(sequence=64, microbatch=1, itemsize=size, recompute="layers"), FP32)
        for size in (2, 4)
    )
    assert full.gathered == 2 * half.gathered
    assert 1.9 * half.activations < full.activations <= 2 * half.activations


TIGHT = {
    "one flag": asked(dp=2, tp=2, sequence=8192, batch=2),
    "two flags": asked(dp=8, sequence=4096, batch=8),
    "more ranks": asked(sequence=2048, batch=1),
    "a pipeline": asked(pp=4, sequence=8192, batch=4),
    "no ranks along dp": asked(tp=4, sequence=16384, batch=1, engine="torch"),
}


def taken(one, flags):
    """The run with these flags, as one types them."""
    values = dict(word.split("=") for way in flags for word in way.split())
    parallel = one.job.parallel
    numbers = {name: int(values[name]) for name in ("dp", "tp", "zero_stage") if name in values}
    shared = "sequence_parallel" in values or parallel.sequence_parallel
    return one.spread(
        replace(parallel, **numbers, sequence_parallel=shared),
        sequence=int(values.get("sequence", one.job.sequence)),
        recompute="layers" if "recompute" in values else one.job.recompute,
        batch=int(values.get("batch", one.job.batch)),
    )


@pytest.mark.parametrize("name", TIGHT)
def test_every_way_out_fits_and_what_was_asked_does_not(name):
    one = TIGHT[name]
    assert memory_of(one).total > H100
    ways = ways_to_fit(one, H100)
    assert ways
    for flags, total in ways:
        other = taken(one, flags)
        assert other != one and not indivisible(other)
        assert memory_of(other).total == total <= H100


def test_a_pipeline_is_told_of_no_stage_that_it_cannot_have():
    found = {stage: replicated(asked(pp=2, dp=2, zero_stage=stage, batch=4))[-1] for stage in (0, 1)}
    assert found[0].endswith("; zero_stage=1 shares optimizer's states")
    assert found[1].endswith(" ranks has all weights and gradients of its part")


def test_the_fewest_flags_come_first_then_the_longest_sequence():
    flags = [" ".join(flags) for flags, _ in ways_to_fit(TIGHT["one flag"], H100)]
    assert flags == ["recompute=layers", "sequence=1983"]
    one = TIGHT["one flag"]
    longer = one.spread(one.job.parallel, sequence=1984)
    assert memory_of(longer).total > H100
    assert [" ".join(flags) for flags, _ in ways_to_fit(TIGHT["more ranks"], H100)] == ["dp=1 tp=2 recompute=layers"]


def test_where_nothing_helps_there_is_no_way():
    assert ways_to_fit(asked(), 1000) == []
