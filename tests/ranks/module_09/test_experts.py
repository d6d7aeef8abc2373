"""Expert parallelism equals one device: uneven experts and tokens, beside all other techniques, and what it refuses."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from sequence_models import SHAPES, alone, batches, climbs, model_of, said, spread, train

from course_lib import comm
from course_lib.config import TrainConfig
from course_lib.models.moe import MoEDecoder, mixtures_of
from course_lib.ranks import run_ranks
from course_lib.training.balance import balanced
from course_lib.training.expert_technique import experts
from course_lib.training.techniques import replicate
from course_lib.training.tensor_technique import tensor
from course_lib.verify import NotEqual, assert_parallel_equals


@pytest.mark.parametrize(
    "case",
    [
        {"ep": 2, "shape": "moe"},
        {"ep": 3, "shape": "deepseek", "balance": 0.1},  # 4 experts on 3 ranks, a shared one, a dense layer
        {"ep": 4, "shape": "six experts"},  # 2, 2, 1, 1
        {"ep": 4, "shape": "moe", "capacity": 1.0},
        {"ep": 2, "shape": "moe", "balance": 0.1, "accumulation": 2},
        {"ep": 2, "shape": "moe", "balance": 0.1, "recomputed": {}},
    ],
    ids=str,
)
def test_it_equals_one_device(case):
    climbs(spread_experts=True, **case)


def test_where_all_tokens_choose_one_expert_and_three_ranks_get_none():
    def loads():
        trainer, arrived = spread(TrainConfig(), shape="top-1", ep=4, spread_experts=True, one_choice=True), []
        for mixture in mixtures_of(trainer.model):
            computed = mixture.experts.computed
            mixture.experts.computed = lambda rows, counts, computed=computed: (
                arrived.append(len(rows)) or computed(rows, counts)
            )
        trainer.step(batches().batch(0))
        return arrived

    found = run_ranks(loads, 4)
    assert sorted(map(sum, found))[:3] == [0, 0, 0] and all(len(arrived) == 2 for arrived in found)
    climbs(spread_experts=True, ep=4, shape="top-1", one_choice=True)


def test_with_fewer_tokens_than_experts():
    climbs(spread_experts=True, ep=4, shape="sixteen experts", data_of=batches(sequence=3, rows=5))


@pytest.mark.parametrize(
    ("data", "case"),
    [
        ("ddp", {"ep": 2, "dp": 2, "shape": "moe"}),
        ("zero2", {"ep": 2, "dp": 2, "shape": "moe"}),
        ("fsdp", {"ep": 2, "dp": 2, "shape": "moe"}),
        ("zero1", {"ep": 4, "shape": "six experts"}),
        ("fsdp", {"ep": 4, "shape": "six experts"}),
    ],
    ids=str,
)
def test_beside_the_data_techniques(data, case):
    climbs(spread_experts=True, data=data, balance=0.1, **case)


@pytest.mark.parametrize(
    "case",
    [
        {"tp": 2, "shape": "deepseek"},
        {"tp": 2, "shape": "moe", "cut_inner": True},
        {"tp": 2, "shape": "moe", "cut_inner": True, "data": "fsdp"},
        {"pp": 2, "shape": "moe", "schedule": "1f1b"},
        {"pp": 2, "shape": "deepseek", "schedule": "1f1b", "data": "zero1"},
        {"cp": 2, "shape": "moe", "method": "ring"},
        {"cp": 2, "shape": "deepseek", "method": "all_gather", "balance": 0.1},
        {"cp": 2, "shape": "moe", "method": "ulysses", "balance": 0.1, "data": "fsdp"},
    ],
    ids=str,
)
def test_beside_another_axis(case):
    climbs(spread_experts=True, ep=2, **case)


@pytest.mark.parametrize(
    "case",
    [
        {"dp": 2, "cp": 2, "method": "ring", "data": "fsdp", "balance": 0.1},
        {"dp": 2, "tp": 2, "cut_inner": True, "data": "fsdp"},
        {"dp": 2, "pp": 2, "schedule": "1f1b", "data": "zero1", "data_of": batches(rows=12)},
    ],
    ids=str,
)
def test_on_eight_ranks(case):
    climbs(spread_experts=True, ep=2, shape="moe", **case)


def test_a_balance_loss_of_a_ranks_own_positions_is_another_loss():
    """Why counts are added up over the sequence: without that every layout trains on another loss."""

    def of_own_positions(config):
        trainer = spread(config, shape="moe", method="ring", balance=0.1, spread_experts=True, cp=2, ep=2)
        for mixture in mixtures_of(trainer.model):
            mixture.over_sequence = lambda counts: counts
        return trainer

    with pytest.raises(NotEqual, match="gradients"):
        assert_parallel_equals(partial(alone, shape="moe", balance=0.1), of_own_positions, batches(), world_size=4)


def test_a_top_1_router_with_weights_that_sum_to_one_learns_nothing():
    """Its one weight is p / p: the choice counts, but by how much it was preferred does not."""
    torch.manual_seed(0)
    found = {}
    for shape in ("top-1", "moe"):
        model = MoEDecoder(SHAPES[shape]).double()
        tokens = torch.randint(16, (4, 13))
        model(tokens).square().sum().backward()
        found[shape] = max(mixture.router.weight.grad.abs().max().item() for mixture in mixtures_of(model))
    assert found["top-1"] < 1e-12 < 1e-6 < found["moe"]


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (
            partial(train, [experts], ep=4),
            "experts: 0 experts in a layer, ep=4; every rank has one; give a model with experts",
        ),
        (
            partial(train, [lambda: tensor(sequence_parallel="keep"), experts], shape="moe", ep=2, tp=2),
            "experts: after tensor with sequence parallelism; a token is routed once; leave sequence_parallel out",
        ),
        (
            partial(train, [lambda: balanced(0.1), replicate], dp=4),
            "balanced: a Decoder; what is balanced is the load of experts; give a MoEDecoder, or leave it out",
        ),
    ],
)
def test_what_cannot_be_is_told_on_every_rank(work, message):
    for text in run_ranks(lambda: said(work), 4):
        assert text.startswith(message)


def test_more_ranks_than_experts():
    texts = run_ranks(lambda: said(partial(train, [experts], shape="moe", ep=5)), 5)
    assert all(text == "experts: 4 experts in a layer, ep=5; every rank has one; choose ep <= 4" for text in texts)


def other_sizes():
    """Rank 1 expects one number more than rank 0 sends."""
    rank = torch.distributed.get_rank()
    shapes = [(1 + rank,), (1,)]
    return said(lambda: comm.all_to_all_uneven([torch.ones(1), torch.ones(1)], shapes))


def test_sizes_that_do_not_agree_are_told_before_anything_is_sent():
    message = (
        "all_to_all_uneven: rank 0 sends 1 numbers to rank 1, which expects 2; both ends know the size; "
        "let ranks exchange counts first"
    )
    assert run_ranks(other_sizes, 2) == [message, message]


def other_parts():
    """Rank 1 has a part for itself alone."""
    parts = [torch.ones(1)] * (2 - torch.distributed.get_rank())
    return said(lambda: comm.all_to_all_uneven(parts, [(1,), (1,)]))


def other_dtypes():
    """Rank 1 sends numbers of twice the size."""
    dtype = (torch.float32, torch.float64)[torch.distributed.get_rank()]
    return said(lambda: comm.all_to_all_uneven([torch.ones(1, dtype=dtype)] * 2, [(1,), (1,)]))


def test_parts_and_dtypes_that_do_not_agree_are_told_on_every_rank():
    parts = "all_to_all_uneven: rank 1 with other than 2 parts or shapes; there is one for each rank of the group; "
    assert run_ranks(other_parts, 2) == [parts + "give an empty one where nothing is to be sent"] * 2
    dtypes = "all_to_all_uneven: dtypes differ between ranks; all ranks must call with the same dtype; convert to one"
    assert all(text.startswith(dtypes) for text in run_ranks(other_dtypes, 2))


def test_a_model_without_experts_is_no_mixture():
    with pytest.raises(ValueError, match="MoEDecoder: n_experts=1; a mixture has several experts; give n_experts >= 2"):
        MoEDecoder(SHAPES["llama"])


def test_a_table_says_who_has_which_experts():
    def rows():
        trainer = spread(TrainConfig(), shape="six experts", ep=4, spread_experts=True)
        layout = trainer.local.layout
        return layout.describe("layers.0.ffn.experts.up_proj"), len(trainer.parts()["layers.0.ffn.experts.up_proj"][""])

    assert [text for text, _ in run_ranks(rows, 4)] == ["ep: Shard(dim=0)"] * 4
    assert [count for _, count in run_ranks(rows, 4)] == [2, 2, 1, 1]
    assert len(model_of("six experts").layers[0].ffn.experts.up_proj) == 6
