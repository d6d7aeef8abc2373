"""The closed form of the simulator: it adds up, it follows its formulas, and many policies give what one gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from course_lib.config import ParallelConfig, load_model
from course_lib.costs.comm.pipeline import pipeline_in_flight, pipeline_stashed
from course_lib.costs.model.flops import forward_flops, training_flops
from course_lib.costs.sweep.assembly import CATEGORIES, in_flight
from course_lib.costs.sweep.gpu_memory import gpu_memory
from course_lib.costs.sweep.job import PAUSELESS, Job
from course_lib.costs.sweep.software import Software
from course_lib.hardware import load_cluster
from course_lib.sim.constants import rates_of
from course_lib.sim.machine import generation_of, machine_of
from course_lib.sim.memory import memory_of
from course_lib.sim.policies import EVERY_SCHEDULE, RECOMPUTE, SCHEDULES, Policies
from course_lib.sim.simulate import simulate, step_times
from course_lib.sim.step import CAUSES

MODEL, CLUSTER = load_model("llama3_1_8b"), load_cluster("dgx_h100")
JOB = Job(model=MODEL, cluster=CLUSTER, sequence=4096)
RATES = rates_of(machine_of(CLUSTER), Software())


def some_policies(**changes):
    fields = {
        "dp": np.array([8, 4, 2, 1]),
        "tp": np.array([1, 2, 4, 2]),
        "pp": np.array([1, 1, 1, 4]),
        "n_microbatches": np.array([2, 4, 8, 16]),
        "zero_stage": np.array([3, 1, 0, 1]),
        "shards": np.array([8, 4, 2, 1]),
        "sequence": 8192,
        "recompute": np.array([0, 4, 1, 3]),
        "schedule": np.array([1, 1, 1, 3]),
    }
    return Policies(**(fields | changes))


def test_causes_are_not_negative_and_add_up():
    times = step_times(MODEL, RATES, some_policies())
    parts = np.stack([getattr(times, cause) for cause in CAUSES])
    assert parts.shape == (len(CAUSES), 4) and (parts >= 0).all()
    np.testing.assert_allclose(parts.sum(axis=0), times.total)


def test_a_policy_alone_takes_as_long_and_as_much_memory_as_among_others():
    policies = some_policies()
    among = simulate(JOB, policies)
    for number in range(len(policies)):
        alone = simulate(JOB, policies.take([number]))
        np.testing.assert_allclose(alone.step_s, among.step_s[number])
        np.testing.assert_allclose(alone.memory.total, among.memory.total[number])


def one_job(job, policies, number):
    """The job spread by one of these policies."""
    p = policies.one(number)
    names = ("dp", "tp", "pp", "cp", "ep", "zero_stage")
    degrees = {name: int(p[name]) for name in names} | {"sequence_parallel": bool(p["sequence_parallel"])}
    return replace(
        job,
        parallel=ParallelConfig(**degrees),
        sequence=int(p["sequence"]),
        microbatch=int(p["micro_batch"]),
        batch=int(p["dp"] * p["micro_batch"] * p["n_microbatches"]),
        recompute=RECOMPUTE[int(p["recompute"])],
        schedule=SCHEDULES[int(p["schedule"])],
        stages_per_rank=int(p["stages_per_rank"]),
    )


@pytest.mark.parametrize("software", [Software(), Software(kind="eager", kernel="scores"), Software(kind="legacy")])
@pytest.mark.parametrize("model", ["llama3_1_8b", "gpt3_small", "mixtral_8x7b"])
def test_many_policies_are_asked_the_same_question_as_one_job(model, software):
    job = replace(JOB, model=load_model(model), software=software, sequence=1024)
    random, n = np.random.default_rng(1), 60
    ep = random.choice((1, 2), n) if job.model.n_experts > 1 else np.ones(n, dtype=int)
    policies = Policies(
        dp=(dp := ep * random.choice((1, 2, 8), n)),
        tp=(tp := random.choice((1, 2, 4), n)),
        pp=(pp := random.choice((1, 2, 4), n)),
        ep=ep,
        etp=tp,
        zero_stage=random.choice((0, 1, 2, 3), n),
        shards=dp,
        sequence_parallel=(tp > 1) & (random.random(n) < 0.5),
        micro_batch=random.choice((1, 2), n),
        n_microbatches=8,
        sequence=random.choice((512, 1024), n),
        recompute=random.integers(0, len(RECOMPUTE) - (job.model.n_experts > 1), n),  # experts keep no products
        schedule=np.where(pp > 1, random.integers(0, len(SCHEDULES), n), 1),
        stages_per_rank=1,
    )
    found = memory_of(job, policies)
    for number in range(n):
        alone = gpu_memory(one_job(job, policies, number))
        for name in CATEGORIES:
            assert int(getattr(found, name)[number]) == getattr(alone, name), (number, name, policies.one(number))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("last", [False, True])
def test_microbatches_in_flight_are_those_of_costs(schedule, last):
    p, m = np.array([2, 4, 8]), np.array([4, 16, 8])
    v = 2 if schedule == "interleaved" else 1
    policies = Policies(pp=p, n_microbatches=m, stages_per_rank=v, schedule=SCHEDULES.index(schedule))
    found = in_flight(policies, p - 1 if last else 0 * p)
    for number, (ranks, count) in enumerate(zip(p.tolist(), m.tolist(), strict=True)):
        rank = ranks - 1 if last else 0
        kept = pipeline_in_flight(schedule, n_ranks=ranks, n_microbatches=count, rank=rank, stages_per_rank=v)
        assert found[number] == max(kept, pipeline_stashed(schedule, n_microbatches=count, rank=rank)) / v


@pytest.mark.parametrize("schedule", PAUSELESS)
def test_schedules_without_a_pause_have_no_bubble_and_keep_as_much_on_every_rank(schedule):
    """Qi et al. 2023, table 2, and Qi et al. 2024, table 2: 2p - 1 of ZB-2p's micro-batches, p of ZB-V's."""
    code = EVERY_SCHEDULE.index(schedule)
    policies = Policies(pp=4, n_microbatches=np.array([2, 64]), sequence=8192, schedule=code)
    least, most = (in_flight(policies, stage) for stage in (0, 3))
    assert list(least) == list(most) == [2, {"zb-2p": 7, "zb-v": 4}[schedule]]
    even = replace(MODEL, vocab_size=1)  # a head that weighs next to nothing, so that stages are alike
    plain = replace(policies, schedule=1)
    bubble, usual = (step_times(even, RATES, one).bubble for one in (policies, plain))
    assert (bubble < 0.02 * usual).all()


def test_the_bubble_shrinks_with_microbatches_and_with_stages_on_a_rank():
    many = Policies(pp=4, n_microbatches=np.array([4, 8, 64]), sequence=8192, shards=1)
    times = step_times(MODEL, RATES, many)
    share = times.bubble / times.total
    assert share[0] > share[1] > share[2] > 0
    turns = Policies(pp=4, n_microbatches=8, schedule=SCHEDULES.index("interleaved"), stages_per_rank=np.array([1, 2]))
    plain, interleaved = step_times(MODEL, RATES, turns).bubble
    assert interleaved < plain


def test_recomputing_costs_time_and_saves_memory():
    ways = Policies(recompute=np.arange(len(RECOMPUTE)), sequence=8192, dp=8, shards=8, zero_stage=3)
    found = simulate(JOB, ways)
    none, attention, _, half, full, selective = found.step_s
    assert none < attention < selective < half < full
    kept = dict(zip(RECOMPUTE, found.memory.activations, strict=True))
    assert kept["layers"] < kept["selective"] < kept["none"]
    wanted = [training_flops(MODEL, sequence=8192, recompute=way) for way in ("none", "selective", "full")]
    none, attention, operators, half, full, selective = found.hfu / found.mfu * wanted[0]
    assert [none, attention, full] == pytest.approx(wanted) and selective == pytest.approx(attention)
    assert operators - none == pytest.approx((full - attention) / 2) and half == pytest.approx((none + full) / 2)


def test_sequences_of_several_lengths_are_each_counted_with_their_own_window():
    model = replace(MODEL, window=1024, windowed_layers=24)
    lengths = [1024, 4096, 16384]
    among = simulate(replace(JOB, model=model), Policies(sequence=np.array(lengths)))
    for number, length in enumerate(lengths):
        alone = simulate(replace(JOB, model=model), Policies(sequence=length))
        for name in ("step_s", "mfu", "hfu"):
            np.testing.assert_allclose(getattr(alone, name)[0], getattr(among, name)[number])
        whole = simulate(JOB, Policies(sequence=length)).time.attention[0]
        scores = [forward_flops(one, sequence=length, causal=True).scores for one in (model, MODEL)]
        assert alone.time.attention[0] / whole == pytest.approx(scores[0] / scores[1], rel=1e-3)


def test_states_in_the_hosts_memory_take_time_on_its_link_and_none_of_the_gpus_room():
    here, away = (simulate(JOB, Policies(offload=offload, sequence=8192)) for offload in (False, True))
    assert here.memory.optimizer[0] > 0 == away.memory.optimizer[0]
    assert here.time.offload[0] == 0 == away.time.optimizer[0] and away.step_s[0] > here.step_s[0]


def test_fields_of_different_lengths_are_refused_in_four_parts():
    with pytest.raises(ValueError, match="Policies: dp: .*; fields are as long as each other; "):
        Policies(dp=np.array([1, 2]), tp=np.array([1, 2, 4]))
    with pytest.raises(ValueError, match="Policies: tp=0; tp is at least 1; give tp >= 1"):
        Policies(tp=0)


def test_a_device_of_a_generation_without_constants_is_refused_with_those_that_have_some():
    with pytest.raises(ValueError, match="device 'TPU v4'; its generation has no constants; take one of V100"):
        generation_of("TPU v4")
    known = {"GB200": "Blackwell", "B300": "Blackwell", "A800-80GB": "A100", "H100-96GB": "H100"}
    assert {name: generation_of(name) for name in known} == known
