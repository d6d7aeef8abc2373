"""Context parallelism equals one device: every method and order, beside all other techniques, and what it refuses."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from sequence_models import batches, climbs, model_of, said, train

from course_lib.config import TrainConfig
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import run_ranks
from course_lib.training.context_technique import context
from course_lib.training.sharding import fully_shard
from course_lib.training.techniques import replicate
from course_lib.training.torch_sharding import torch_fully_shard
from course_lib.training.torch_techniques import torch_replicate
from course_lib.training.trainer import Trainer

METHODS = ("all_gather", "ring", "ulysses")


@pytest.mark.parametrize(
    ("method", "order", "cp"),
    [  # with the other number of ranks in `test_module_09_packed.py`; with two they stand beside other axes
        ("all_gather", "contiguous", 3),
        ("all_gather", "zigzag", 4),
        ("ring", "contiguous", 4),
        ("ring", "zigzag", 3),
        ("ulysses", "contiguous", 3),
        ("ulysses", "zigzag", 4),
    ],
)
def test_it_equals_one_device(method, order, cp):
    climbs(method=method, order=order, cp=cp)  # 13 positions divide by none of these


@pytest.mark.parametrize("method", METHODS)
def test_with_one_head_of_keys_and_three_ranks(method):
    climbs(method=method, cp=3, shape="one kv head")


@pytest.mark.parametrize(
    "case",
    [
        {"method": "ulysses", "tp": 2},  # both share out heads
        {"method": "all_gather", "tp": 2, "sequence_parallel": "keep"},
        {"method": "ring", "tp": 2, "sequence_parallel": "regather", "shape": "gpt"},  # tied, learned positions
        {"method": "ulysses", "dp": 2, "data": "ddp"},
        {"method": "all_gather", "dp": 2, "data": "fsdp"},
    ],
    ids=str,
)
def test_beside_another_axis(case):
    climbs(cp=2, **case)


@pytest.mark.parametrize(
    ("data", "degrees"),
    [
        ("ddp", {"cp": 2, "dp": 2}),
        ("zero2", {"cp": 2, "dp": 2}),
        ("fsdp", {"cp": 2, "dp": 2}),
        ("zero1", {"cp": 4}),
        ("fsdp", {"cp": 4}),
    ],
    ids=str,
)
def test_the_data_techniques_share_over_these_ranks_too(data, degrees):
    climbs(method="ring", data=data, accumulation=2, **degrees)


@pytest.mark.parametrize(
    "case",
    [
        {"pp": 2, "schedule": "1f1b"},
        {"pp": 2, "schedule": "1f1b", "shape": "gpt"},
        {"pp": 2, "schedule": "gpipe", "data": "zero1"},
        {"recomputed": {}},
    ],
    ids=str,
)
def test_under_stages_and_where_layers_are_recomputed(case):
    climbs(method="all_gather", cp=2, **case)


@pytest.mark.parametrize(
    "case",
    [
        {"method": "ring", "cp": 2, "tp": 2, "dp": 2, "data": "fsdp", "sequence_parallel": "keep"},
        {"method": "ulysses", "cp": 2, "tp": 2, "pp": 2, "schedule": "1f1b"},
        {"method": "all_gather", "cp": 2, "tp": 4},  # each head of keys lies on two ranks along tp
    ],
    ids=str,
)
def test_on_eight_ranks(case):
    climbs(**case)


def test_in_bfloat16_the_ring_rounds_no_more_than_one_attention():
    """What it adds up p times is added up in float32."""

    def attention():
        from course_lib.parallel.sequence.ring_attention import ring_attention
        from course_lib.parallel.sequence.shared import SharedSequence

        group = make_mesh(cp=4).get_group("cp")
        shared = SharedSequence(group=group, order="zigzag")
        shared.told(64)
        generator = torch.Generator().manual_seed(0)
        q, k, v = torch.randn(3, 1, 4, 64, 8, generator=generator, dtype=torch.float64)
        mine = shared.cut.positions(shared.rank)
        parts = [x.bfloat16()[:, :, mine] for x in (q, k, v)]
        whole = [x.bfloat16().double() for x in (q, k, v)]
        exact = torch.nn.functional.scaled_dot_product_attention(*whole, is_causal=True)[:, :, mine]
        return (ring_attention(*parts, shared).double() - exact).abs().max().item()

    assert max(run_ranks(attention, 4)) < 0.01  # half a unit in the last place of numbers near 2 is 0.004


def held(shape, apply, **degrees):
    trainer = Trainer(model_of(shape), TrainConfig(), mesh=make_mesh(**degrees), apply=[make() for make in apply])
    return sum(parameter.numel() for parameter in trainer.local.parameters.values()), str(trainer.local.layout)


def test_fsdp_shares_weights_over_all_these_ranks():
    whole = sum(p.numel() for p in model_of("llama").parameters())
    found = run_ranks(partial(held, "llama", [lambda: context("ring"), fully_shard], dp=2, cp=2), 4)
    assert sum(numbers for numbers, _ in found) == whole
    assert max(numbers for numbers, _ in found) - min(numbers for numbers, _ in found) <= 8
    assert "dp: layers.0[0:] of" in found[0][1] and "cp: with dp" in found[0][1]


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (
            lambda: context("rings"),
            "context: method='rings'; not a known method; choose from all_gather, ring",
        ),
        (lambda: context(order="snake"), "context: order='snake'; not a known order; choose from contiguous, zigzag"),
        (
            partial(train, [lambda: context("ulysses")], shape="one kv head", cp=4),
            "ulysses: 3 heads of queries, 4 ranks; every rank has a head; choose cp <= 3, or the ring",
        ),
        (
            partial(train, [context], batches(3), cp=4),
            "SequenceCut: 3 positions, 4 ranks; every rank has a position; choose cp in 1..3",
        ),
        (
            partial(train, [context], shape="moe", capacity=1.0, cp=4),
            "context: capacity=1.0; an expert takes the first tokens of a sequence, of which each rank sees some",
        ),
        (partial(train, [replicate, context], dp=2, cp=2), "context: applied after replicate; each technique takes"),
        (
            partial(train, [context, torch_replicate], dp=2, cp=2),
            "torch_replicate: applied after context; it averages along dp alone; apply replicate()",
        ),
        (
            partial(train, [context, torch_fully_shard], dp=2, cp=2),
            "torch_fully_shard: applied after context; it averages along dp alone; apply fully_shard()",
        ),
        (
            partial(train, [context, lambda: fully_shard(strategy="HYBRID_SHARD", shards=2)], dp=2, cp=2),
            "fully_shard: 2 of 4 ranks along dp, cp; after context or experts all share; leave shards",
        ),
    ],
)
def test_what_cannot_be_is_told_on_every_rank(work, message):
    for text in run_ranks(lambda: said(work), 4):
        assert text.startswith(message)
