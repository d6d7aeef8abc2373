"""Our sharded data parallelism against PyTorch's, in tokens per second: whole steps with AdamW, all in one run."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

import ddp
import pipeline
import torch
import torch.distributed as dist
import torch.nn.functional as F
from all_reduce import slowest
from ddp import BATCH, MODEL, timed
from measure import Comparison, Verdict, in_turn, mean_ratio
from page import TIMES, TOKENS, Benchmark, gate_row, table, tokens_row
from pipeline import SEQUENCES, WORLD_SIZES
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.fsdp import fully_shard
from torch.optim import AdamW

from course_lib import comm
from course_lib.models.decoder import Decoder
from course_lib.parallel.data.ddp import DistributedDataParallel
from course_lib.parallel.sharding.flat_row import Sharing
from course_lib.parallel.sharding.sharded import ShardedModel
from course_lib.parallel.table.mesh import mesh_of
from course_lib.ranks import run_ranks

ROUNDS = 11
OPTIONS = {"lr": 1e-3, "fused": True}
WHAT = ("FSDP, resharding", "FSDP, not resharding", "ZeRO-1", "DDP")
Step = Callable[[], None]
Backward = Callable[[nn.Module], None]


@dataclass(frozen=True, kw_only=True)
class ShardingCell:
    """One number of ranks, one length of the sequences, one way to share."""

    world_size: int
    sequence: int
    what: str
    comparison: Comparison

    @property
    def tokens_per_s(self) -> tuple[float, float]:
        """Ours and torch's, over all ranks, by their median steps."""
        tokens = BATCH * self.sequence
        return tokens / median(self.comparison.ours_s), tokens / median(self.comparison.peer_s)


def compare() -> list[ShardingCell]:
    """Every number of ranks with every sequence."""
    import all_reduce
    import measure
    import sharding

    measure.travel_along(all_reduce, ddp, measure, pipeline, sharding)
    return [
        cell
        for world_size in WORLD_SIZES
        for sequence in SEQUENCES
        for cell in compare_at(world_size, sequence, ROUNDS)
    ]


def compare_at(world_size: int, sequence: int, rounds: int) -> list[ShardingCell]:
    """Seconds of a step of everything, ours and torch's, in turn."""
    by_rank = run_ranks(take_turns, world_size, sequence, rounds, timeout=600)
    return [
        ShardingCell(
            world_size=world_size,
            sequence=sequence,
            what=what,
            comparison=Comparison(
                name=f"{world_size} ranks, sequences of {sequence}, {what}",
                ours_s=slowest([times[f"our {what}"] for times in by_rank]),
                peer_s=slowest([times[f"their {what}"] for times in by_rank]),
            ),
        )
        for what in WHAT
    ]


def take_turns(sequence: int, rounds: int) -> dict[str, list[float]]:
    """On a rank: each round's seconds for a step of each."""
    torch.manual_seed(0)
    whole = Decoder(MODEL)
    group = dist.group.WORLD
    generator = torch.Generator().manual_seed(group.rank())
    tokens = torch.randint(MODEL.vocab_size, (BATCH // group.size(), sequence + 1), generator=generator)
    makers = {"our": (our_fsdp, our_fsdp, our_zero, our_ddp), "their": (their_fsdp, their_fsdp, their_zero, their_ddp)}
    with comm.settings(guard=False, ledger=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ZeroRedundancyOptimizer's own, of TorchScript
        steps = {
            f"{who} {what}": make(copy.deepcopy(whole), group, partial(backward, tokens), what)
            for who, makes in makers.items()
            for what, make in zip(WHAT, makes, strict=True)
        }
        check(steps)
        return in_turn({name: partial(timed, step, group) for name, step in steps.items()}, rounds)


def backward(tokens: Tensor, model: nn.Module) -> float:
    """Forward and backward of this rank's share; returns its loss."""
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    return loss.item()


def stepper(model: nn.Module, optimizer: torch.optim.Optimizer, run: Backward, after: Step = lambda: None) -> Step:
    """A whole step; `after` is what is left to do when the optimizer is through."""

    def step() -> None:
        optimizer.zero_grad()
        step.loss = run(model)  # type: ignore[attr-defined]
        optimizer.step()
        after()

    return step


def our_fsdp(model: nn.Module, group: ProcessGroup, run: Backward, what: str) -> Step:
    """Every layer a unit, over our ring."""
    ShardedModel(model, Sharing(group, group), reshard_after_forward=what == "FSDP, resharding")
    return stepper(model, AdamW(model.parameters(), **OPTIONS), run)


def their_fsdp(model: nn.Module, group: ProcessGroup, run: Backward, what: str) -> Step:
    """The same units; the root's is not resharded, as with ours, and as PyTorch recommends."""
    mesh = mesh_of(group, "dp")
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=what == "FSDP, resharding")
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    return stepper(model, AdamW(model.parameters(), **OPTIONS), run)


def our_zero(model: nn.Module, group: ProcessGroup, run: Backward, what: str) -> Step:
    """ZeRO-1, as `training.sharding.zero` cuts a model for the trainer: averaged when backward is through."""
    sharded = ShardedModel(model, Sharing(group, group, resident=True), late=True)
    return stepper(model, AdamW(sharded.pieces.values(), **OPTIONS), run, after=sharded.updated)


def their_zero(model: nn.Module, group: ProcessGroup, run: Backward, what: str) -> Step:
    """Data parallelism whose optimizer shares its states: whole gradients are averaged, whole parameters sent."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # which warns of TorchScript

    model = nn.parallel.DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
    return stepper(model, ZeroRedundancyOptimizer(model.parameters(), AdamW, process_group=group, **OPTIONS), run)


def our_ddp(model: nn.Module, group: ProcessGroup, run: Backward, what: str) -> Step:
    """Data parallelism, to compare with."""
    model = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
    return stepper(model, AdamW(model.parameters(), **OPTIONS), run)


def their_ddp(model: nn.Module, group: ProcessGroup, run: Backward, what: str) -> Step:
    """And torch's."""
    model = nn.parallel.DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
    return stepper(model, AdamW(model.parameters(), **OPTIONS), run)


def check(steps: dict[str, Step]) -> None:
    """Refuse to time steps that do not train alike; it warms all up too."""
    losses: dict[str, float] = {}
    for name, step in steps.items():
        for _ in range(3):
            step()
        losses[name] = step.loss  # type: ignore[attr-defined]
    assert max(losses.values()) - min(losses.values()) < 1e-2, losses


def verdicts(cells: list[ShardingCell]) -> list[Verdict]:
    """Of each way to share, the geometric mean over ranks and sequences."""
    return [
        Verdict(
            figure=f"{what} against PyTorch's, tokens/s",
            ratio=mean_ratio([cell.comparison for cell in cells if cell.what == what]),
            gate=1.05,
            goal=1.25,
        )
        for what in WHAT[:2]
    ]


def sections(cells: list[ShardingCell]) -> list[str]:
    """A row for each number of ranks, length of the sequences and way to share."""
    rows = [tokens_row(f"{c.world_size} | {c.sequence} | {c.what}", c) for c in cells]
    about = f"{MODEL.n_layers} layers of {MODEL.hidden_size}, {BATCH} sequences, AdamW; guard and ledger off"
    return [
        f"## Sharded data parallelism against PyTorch's ({about})",
        table([["ranks", "sequence", "what is shared", *TIMES, *TOKENS], *rows]),
    ]


BENCHMARK = Benchmark(
    lesson=6,
    title="sharded data parallelism against FSDP2",
    compare=compare,
    gates=lambda cells: [gate_row(verdict) for verdict in verdicts(cells)],
    sections=sections,
)
