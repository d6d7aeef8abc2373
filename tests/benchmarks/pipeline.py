"""Our pipeline against torch.distributed.pipelining, in tokens per second: forward and backward of a small decoder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import ddp
import torch
import torch.distributed as dist
from all_reduce import slowest
from measure import Comparison, Verdict, in_turn, mean_ratio
from page import TIMES, TOKENS, Benchmark, gate_row, table, tokens_row
from torch import Tensor, nn
from torch.distributed import pipelining

from course_lib import comm
from course_lib.models.decoder import Decoder
from course_lib.parallel.pipelines import stages
from course_lib.parallel.pipelines.executor import Pipeline
from course_lib.ranks import run_ranks
from course_lib.schedules import make_schedule
from course_lib.split import split_sizes
from course_lib.training.step import loss_of

WORLD_SIZES = (2, 4)
SEQUENCES = (32, 128)
ROUNDS = 21
ROWS = 2  # of a micro-batch
MODEL = replace(ddp.MODEL, n_layers=6)  # with embedding and head 8 layers: 4 ranks of 2 stages have one in each


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A schedule of ours and torch's, by name, with the stages that each puts on a rank."""

    ours: str
    theirs: str
    our_stages: int = 1
    their_stages: int = 1

    @property
    def same(self) -> bool:
        """Whether both compute in the same order."""
        return self.our_stages == self.their_stages


PEERS = (
    Peer(ours="gpipe", theirs="ScheduleGPipe"),
    Peer(ours="1f1b", theirs="Schedule1F1B"),
    Peer(ours="interleaved", theirs="ScheduleInterleaved1F1B", our_stages=2, their_stages=2),
    Peer(ours="zb-h1", theirs="ScheduleInterleavedZeroBubble", their_stages=2),
)


@dataclass(frozen=True, kw_only=True)
class PipelineCell:
    """One number of ranks, one length of the sequences and one pair of schedules."""

    world_size: int
    sequence: int
    peer: Peer
    comparison: Comparison

    @property
    def tokens_per_s(self) -> tuple[float, float]:
        """Ours and torch's, by their median steps."""
        tokens = rows(self.world_size) * self.sequence
        return tokens / median(self.comparison.ours_s), tokens / median(self.comparison.peer_s)


def about() -> str:
    """What is timed, and which pairs are not of the same schedule."""
    others = [f"{peer.ours} and {peer.theirs} are not the same schedule" for peer in PEERS if not peer.same]
    return (
        f"forward and backward without an optimizer ({MODEL.n_layers} layers of {MODEL.hidden_size}, two micro-batches "
        f"for each rank, {ROWS} sequences in each, guard and ledger off; {'; '.join(others)}: torch's puts two stages "
        "on a rank)"
    )


def microbatches(world_size: int) -> int:
    """As many as every schedule allows, on both sides."""
    return 2 * world_size


def rows(world_size: int) -> int:
    """Sequences of a whole batch."""
    return ROWS * microbatches(world_size)


def compare() -> list[PipelineCell]:
    """Every number of ranks with every sequence and schedule."""
    import all_reduce
    import measure
    import pipeline

    measure.travel_along(all_reduce, ddp, measure, pipeline)
    return [
        cell
        for world_size in WORLD_SIZES
        for sequence in SEQUENCES
        for cell in compare_at(world_size, sequence, ROUNDS)
    ]


def compare_at(world_size: int, sequence: int, rounds: int) -> list[PipelineCell]:
    """Seconds of a step with every schedule, of ours and of torch's, in turn."""
    by_rank = run_ranks(take_turns, world_size, sequence, rounds, timeout=600)
    return [
        PipelineCell(
            world_size=world_size,
            sequence=sequence,
            peer=peer,
            comparison=Comparison(
                name=f"{world_size} ranks, sequences of {sequence}, {peer.ours}",
                ours_s=slowest([times[f"our {peer.ours}"] for times in by_rank]),
                peer_s=slowest([times[f"their {peer.ours}"] for times in by_rank]),
            ),
        )
        for peer in PEERS
    ]


def take_turns(sequence: int, rounds: int) -> dict[str, list[float]]:
    """On a rank: each round's seconds for a step of every schedule, ours and torch's side by side."""
    torch.manual_seed(0)
    model = Decoder(MODEL)
    group = dist.group.WORLD
    tokens = torch.randint(MODEL.vocab_size, (rows(dist.get_world_size()), sequence + 1))
    with comm.settings(guard=False, ledger=False):
        steps: dict[str, Callable[[], None]] = {}
        for peer in PEERS:
            steps[f"our {peer.ours}"] = our_step(peer, model, tokens, group)
            steps[f"their {peer.ours}"] = their_step(peer, model, tokens, group)
        check(model, steps)
        return in_turn({who: partial(timed, step, model, group) for who, step in steps.items()}, rounds)


def own_stages(model: nn.Module, stages_per_rank: int) -> tuple[dict[int, nn.Module], int]:
    """This rank's part of the model, which all steps share, and the number of all stages."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    number = world_size * stages_per_rank
    parts = stages.cut(model, split_sizes(len(stages.layers_of(model)), number))
    return {stage: parts[stage] for stage in range(rank, number, world_size)}, number


def our_step(peer: Peer, model: nn.Module, tokens: Tensor, group: dist.ProcessGroup) -> Callable[[], None]:
    """Forward and backward by the course's executor."""
    p = dist.get_world_size()
    m = microbatches(p)
    mine, number = own_stages(model, peer.our_stages)
    schedule = make_schedule(peer.ours, p, m, stages_per_rank=peer.our_stages)
    engine = Pipeline(mine, schedule, group)
    inputs, targets = tokens[:, :-1].chunk(m), tokens[:, 1:].chunk(m)
    skeletons = stages.cut(stages.skeleton(model), split_sizes(len(stages.layers_of(model)), number))
    shapes = [stages.passed_on(skeletons, inputs[0])] * m
    return lambda: engine.run(inputs, shapes, lambda output, which: loss_of(output, targets[which]))


def their_step(peer: Peer, model: nn.Module, tokens: Tensor, group: dist.ProcessGroup) -> Callable[[], None]:
    """The same by torch's, which finds out shapes in its first step, and no outputs are collected."""
    mine, number = own_stages(model, peer.their_stages)
    parts = [
        pipelining.PipelineStage(module, stage, number, torch.device("cpu"), group=group)
        for stage, module in mine.items()
    ]
    schedule = getattr(pipelining, peer.theirs)(
        parts if peer.their_stages > 1 else parts[0],
        microbatches(dist.get_world_size()),
        loss_fn=loss_of,
        scale_grads=False,
    )
    args = [tokens[:, :-1]] if 0 in mine else []
    return lambda: schedule.step(*args, target=tokens[:, 1:], return_outputs=False)


def timed(step: Callable[[], None], model: nn.Module, group: dist.ProcessGroup) -> float:
    """Seconds of one step."""
    dist.barrier(group)
    started = time.perf_counter()
    model.zero_grad()
    step()
    return time.perf_counter() - started


def check(model: nn.Module, steps: Mapping[str, Callable[[], None]]) -> None:
    """Refuse to time a step with other gradients than torch's; it warms both up too."""
    for peer in PEERS:
        found = [gradients(model, steps[f"{who} {peer.ours}"]) for who in ("our", "their")]
        for name in found[0].keys() & found[1].keys():  # with other stages a rank has other layers
            assert torch.allclose(found[0][name], found[1][name], rtol=1e-3, atol=1e-3), f"{peer.ours}: {name}"
        assert not peer.same or found[0].keys() == found[1].keys() != set(), f"{peer.ours}: other layers"


def gradients(model: nn.Module, step: Callable[[], None]) -> dict[str, Tensor]:
    """Of this rank's layers, after one step."""
    model.zero_grad()
    step()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def verdicts(cells: list[PipelineCell]) -> list[Verdict]:
    """Of each schedule, the geometric mean over ranks and sequences."""
    return [
        Verdict(
            figure=f"pipeline {peer.ours} against torch's {peer.theirs}, tokens/s",
            ratio=mean_ratio([cell.comparison for cell in cells if cell.peer == peer]),
            gate=0.95,
            goal=1.05,
        )
        for peer in PEERS
    ]


def sections(cells: list[PipelineCell]) -> list[str]:
    """A row for each number of ranks, length of the sequences and pair of schedules."""
    rows = [tokens_row(f"{c.world_size} | {c.sequence} | {c.peer.ours} | {c.peer.theirs}", c) for c in cells]
    return [
        f"## Pipeline against torch.distributed.pipelining, {about()}",
        table([["ranks", "sequence", "ours", "torch's", *TIMES, *TOKENS], *rows]),
    ]


BENCHMARK = Benchmark(
    lesson=4,
    title="pipeline against torch's",
    compare=compare,
    gates=lambda cells: [gate_row(verdict) for verdict in verdicts(cells)],
    sections=sections,
)
