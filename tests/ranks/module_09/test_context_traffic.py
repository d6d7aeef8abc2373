"""What shared sequences and spread experts send, and what each rank holds: the run against the formulas."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from sequence_models import LLAMA, SHAPES, model_of, spread

from course_lib import comm
from course_lib.comm.traces import Traffic
from course_lib.config import ParallelConfig, TrainConfig
from course_lib.costs.comm.context import gathered_context, ring_attention, ulysses
from course_lib.costs.comm.experts import expert_exchange
from course_lib.costs.model.states import rank_parameters
from course_lib.models.moe import mixtures_of
from course_lib.parallel.sequence.gathered import gathered_attention
from course_lib.parallel.sequence.ring_attention import ring_attention as ring_on_ranks
from course_lib.parallel.sequence.shared import SharedSequence
from course_lib.parallel.sequence.ulysses import ulysses_attention
from course_lib.parallel.table.layout import parameters_at
from course_lib.ranks import ledger, run_ranks
from course_lib.sequence_cut import SequenceCut

BATCH = 2
WAYS = {
    "ring": (ring_on_ranks, ring_attention),
    "all_gather": (gathered_attention, gathered_context),
    "ulysses": (ulysses_attention, ulysses),
}


def attention(way, heads, kv_heads, length, order, backward):
    """One layer's attention over all ranks; only its forward, or only its backward, stays in the ledger."""
    shared = SharedSequence(group=dist.distributed_c10d._get_default_group(), order=order)
    shared.told(length)
    here = shared.cut.count(shared.rank)
    torch.manual_seed(shared.rank)
    q, k, v = (torch.randn(BATCH, n, here, 4, requires_grad=True) for n in (heads, kv_heads, kv_heads))
    if not backward:
        comm.ledger.clear()
    output = way(q, k, v, shared)
    if backward:
        comm.ledger.clear()
        output.sum().backward()
    return output.shape == q.shape


@pytest.mark.parametrize("when", ["forward", "backward"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (8, 8), (4, 1)])
@pytest.mark.parametrize(("ranks", "length", "order"), [(2, 32, "zigzag"), (3, 13, "contiguous"), (4, 13, "zigzag")])
@pytest.mark.parametrize("method", WAYS)
def test_attention_sends_what_the_formula_says(method, ranks, length, order, heads, kv_heads, when):
    on_ranks, formula = WAYS[method]
    found = run_ranks(attention, ranks, on_ranks, heads, kv_heads, length, order, when == "backward")
    assert found == [True] * ranks
    config = replace(LLAMA, hidden_size=4 * heads, n_heads=heads, n_kv_heads=kv_heads)
    told = formula(config, SequenceCut(length, ranks, order), batch=BATCH, itemsize=4, when=when)
    assert Traffic.measured(ledger()) == Traffic.predicted([told]) and told.total_bytes


def one_layer(shape, backward):
    """A layer of experts, spread over all ranks; who chose which expert, and its forward or backward in the ledger."""
    torch.manual_seed(0)
    trainer = spread(TrainConfig(), shape=shape, ep=dist.get_world_size(), spread_experts=True)
    mixture = mixtures_of(trainer.model)[0]
    chosen = []
    inner = mixture.experts.dispatch
    mixture.experts.dispatch = lambda rows, counts, computed: (
        chosen.append(counts.tolist()) or inner(rows, counts, computed)
    )
    torch.manual_seed(1 + dist.get_rank())
    x = torch.randn(1 + dist.get_rank(), 5, LLAMA.hidden_size, requires_grad=True)  # ranks with unequal loads
    if not backward:
        comm.ledger.clear()
    output = mixture(x)
    if backward:
        comm.ledger.clear()
        output.sum().backward()
    return chosen[0]


@pytest.mark.parametrize("when", ["forward", "backward"])
@pytest.mark.parametrize(("shape", "ranks"), [("moe", 2), ("moe", 3), ("six experts", 4), ("top-1", 4)])
def test_experts_send_what_the_formula_says(shape, ranks, when):
    rows = run_ranks(one_layer, ranks, shape, when == "backward")
    assert [sum(row) for row in rows] == [SHAPES[shape].experts_per_token * 5 * (1 + rank) for rank in range(ranks)]
    told = expert_exchange(rows, hidden_size=LLAMA.hidden_size, itemsize=4, when=when)
    assert Traffic.measured(ledger()) == Traffic.predicted([told])


def held(**case):
    """How many parameters this rank has, by the table and by its tensors."""
    trainer = spread(TrainConfig(), **case)
    local = trainer.local
    return parameters_at(local.layout, local.at), sum(p.numel() for p in local.parameters.values())


@pytest.mark.parametrize("data", ["ddp", "fsdp"])
@pytest.mark.parametrize(
    "case",
    [
        {"shape": "llama", "method": "ring", "cp": 2, "dp": 2},
        {"shape": "moe", "spread_experts": True, "ep": 2, "dp": 2},
        {"shape": "moe", "spread_experts": True, "ep": 4},
        {"shape": "deepseek", "spread_experts": True, "method": "ring", "ep": 2, "cp": 2},
    ],
    ids=str,
)
def test_a_rank_holds_what_the_planner_says_of_experts_and_of_the_rest(case, data):
    """In a mesh "ep" stands beside "dp"; `ParallelConfig` counts all their ranks as dp, and `ep` among them."""
    ep, cp = case.get("ep", 1), case.get("cp", 1)
    zero_stage = 3 if data == "fsdp" else 0
    parallel = ParallelConfig(dp=4 // cp, cp=cp, ep=ep, zero_stage=zero_stage)
    told = rank_parameters(SHAPES[case["shape"]], parallel)
    shards = parallel.shards if zero_stage else 1
    expected = told.shared / shards + told.experts / max(1, shards // ep)
    rows = sum(1 for _ in model_of(case["shape"]).named_parameters())  # each leaves at most one number over
    for by_table, by_tensors in run_ranks(partial(held, data=data, **case), 4):
        assert by_table == by_tensors and abs(by_table - expected) < rows
