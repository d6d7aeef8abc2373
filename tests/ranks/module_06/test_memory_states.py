"""States of ZeRO on real ranks: a real training step, its bytes counted in two ways, and one device's weights."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import pytest
import torch
import torch.distributed as dist

from course_lib.config import ModelConfig
from course_lib.costs import CONVENTIONS, model_parameters, state_bytes
from course_lib.gauges.allocated import allocated_bytes
from course_lib.gauges.plain_zero import Formats, ShardedAdamW
from course_lib.gauges.zero_run import ZeroRun, ZeroTrace, train_in_turn, train_sharded, zero_deviation
from course_lib.models.decoder import Decoder
from course_lib.ranks import run_ranks
from course_lib.training.batches import Batches

GQA = ModelConfig(
    name="grouped", hidden_size=256, n_layers=2, n_heads=8, n_kv_heads=2, ffn_size=704, vocab_size=256, tied=False
)
SHAPES = {
    "grouped": GQA,
    # 258 = 2 * 3 * 43: neither 3 nor 4 ranks divide the parameters.
    "as many kv heads": replace(
        GQA, hidden_size=258, n_layers=1, n_heads=3, n_kv_heads=3, ffn_size=515, vocab_size=257
    ),
    "tied": replace(GQA, hidden_size=320, n_layers=1, n_heads=10, n_kv_heads=5, ffn_size=640, tied=True),
}
CASES = [  # every shape on every number of ranks; each pair with its convention, so that every two of the three meet
    (world_size, shape, ("fp32", "zero")[(world_size + place) % 2])
    for world_size in (1, 2, 3, 4)
    for place, shape in enumerate(SHAPES)
]
CASES.insert(9, (3, "as many kv heads", "megatron"))  # beside the others of 3 ranks, so that one pool serves all
TEXT = bytes(torch.randint(256, (4096,), generator=torch.Generator().manual_seed(0)).tolist())
BATCHES = Batches(text=TEXT, batch_size=12, sequence=16)
PATIENCE_S = 100.0  # on a busy machine; no test here is about time
TOLERANCE = 1e-5
SMALL_TENSORS = 4096  # bytes: what the ranks exchanged last, to compare their calls


def run_of(shape, convention):
    formats = Formats.of_bytes(CONVENTIONS[convention].weights, CONVENTIONS[convention].gradients)
    return ZeroRun(model=SHAPES[shape], formats=formats, batches=BATCHES, steps=2)


@cache
def one_device(shape, convention, world_size):
    return train_in_turn(run_of(shape, convention), world_size)


def every_stage(run):
    """On a rank, for the stages 0 to 3: its trace, and what the allocator says."""
    found = []
    for stage in range(4):
        trainers = []
        allocated = allocated_bytes(partial(train_into, trainers, run, stage))
        trace = ZeroTrace(weights=trainers[0].mine, states=trainers[0].state_bytes(), step_s=0.0)
        found.append((trace, allocated))
    return found


def train_into(trainers, run, stage):
    torch.manual_seed(dist.get_rank())
    trainer = ShardedAdamW(Decoder(run.model), run.formats, stage, run.learning_rate)
    for step in range(run.steps):
        trainer.step(run.batches.shard(step, dist.get_rank(), dist.get_world_size()))
    trainers.append(trainer)


@pytest.mark.parametrize(("world_size", "shape", "convention"), CASES)
def test_every_stage_keeps_the_formula_s_bytes_and_trains_as_one_device(world_size, shape, convention):
    run, alone = run_of(shape, convention), one_device(shape, convention, world_size)
    parameters = model_parameters(run.model)
    by_rank = run_ranks(every_stage, world_size, run, timeout=PATIENCE_S)
    assert len(by_rank) == world_size
    for stage in range(4):
        traces = [found[stage][0] for found in by_rank]
        for rank, trace in enumerate(traces):
            given = {"zero_stage": stage, "shards": world_size}
            expected = state_bytes(parameters, CONVENTIONS[convention], **given, rank=rank)
            assert trace.states == (expected.weights, expected.gradients, expected.optimizer)
            fullest = state_bytes(parameters, CONVENTIONS[convention], **given).total
            assert trace.states.total == pytest.approx(fullest, rel=0.005)
            allocated = by_rank[rank][stage][1]
            assert trace.states.total <= allocated <= trace.states.total + SMALL_TENSORS
        assert zero_deviation(traces, alone) <= TOLERANCE
    assert moved(alone, shape, convention) > 1e-3


def moved(alone, shape, convention):
    """How far training went: a test that compares untrained weights would prove nothing."""
    torch.manual_seed(0)
    born = torch.cat([parameter.detach().reshape(-1) for parameter in Decoder(SHAPES[shape]).parameters()])
    return ((alone - born).norm() / born.norm()).item()


def untrained(trace):
    return replace(trace, weights=torch.zeros_like(trace.weights))


def test_wrong_weights_show():
    run, alone = run_of("grouped", "zero"), one_device("grouped", "zero", 3)
    traces = run_ranks(train_sharded, 3, run, 2, timeout=PATIENCE_S)
    assert all(isinstance(trace, ZeroTrace) for trace in traces)
    assert zero_deviation(traces, alone) <= TOLERANCE
    swapped = [traces[1], traces[0], traces[2]]
    assert zero_deviation(swapped, alone) > 0.1
    assert zero_deviation([*traces[:2], untrained(traces[2])], alone) > 0.1


def forgets_to_average(run):
    """On a rank: stage 0 without communication of gradients."""
    trainer = ShardedAdamW(Decoder(run.model), run.formats, 0, run.learning_rate)
    trainer.reduce = lambda whole: whole
    for step in range(run.steps):
        trainer.step(run.batches.shard(step, dist.get_rank(), dist.get_world_size()))
    return ZeroTrace(weights=trainer.mine, states=trainer.state_bytes(), step_s=0.0)


@pytest.mark.parametrize("convention", ["fp32", "zero"])
def test_a_forgotten_reduction_shows_in_values_and_bytes(convention):
    run = run_of("grouped", convention)
    traces = run_ranks(forgets_to_average, 3, run, timeout=PATIENCE_S)
    assert zero_deviation(traces, one_device("grouped", convention, 3)) > 100 * TOLERANCE
    assert {trace.states.gradients for trace in traces} == {0}
