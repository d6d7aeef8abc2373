"""Our data parallelism against torch's, in tokens per second: whole steps of a small decoder."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
import torch.distributed as dist
import torch.nn.functional as F
from all_reduce import slowest
from measure import Comparison, Verdict, in_turn, mean_ratio
from page import TIMES, TOKENS, Benchmark, gate_row, table, tokens_row
from torch import nn

from course_lib import comm
from course_lib.config import ModelConfig
from course_lib.models.decoder import Decoder
from course_lib.parallel.data.ddp import DistributedDataParallel
from course_lib.ranks import run_ranks

WORLD_SIZES = (2, 4)
SEQUENCES = (32, 128)
BATCH = 8  # over all ranks
ROUNDS = 15
STEPS = 4  # of each, within a round
BUCKET_MIB = 25
OURS = {"over gloo": "native", "over our ring": "ring"}
PEER = "torch"
MODEL = ModelConfig(
    name="benchmark", hidden_size=256, n_layers=4, n_heads=4, n_kv_heads=4, ffn_size=704, vocab_size=1024, tied=False
)


@dataclass(frozen=True, kw_only=True)
class DdpCell:
    """One number of ranks and one length of the sequences."""

    world_size: int
    sequence: int
    all_reduce: str
    buckets: int
    comparison: Comparison

    @property
    def tokens_per_s(self) -> tuple[float, float]:
        """Ours and torch's, over all ranks, by their median steps."""
        tokens = BATCH * self.sequence
        return tokens / median(self.comparison.ours_s), tokens / median(self.comparison.peer_s)


def compare() -> list[DdpCell]:
    """Every number of ranks with every sequence."""
    import all_reduce
    import ddp
    import measure

    measure.travel_along(all_reduce, ddp, measure)
    return [
        cell
        for world_size in WORLD_SIZES
        for sequence in SEQUENCES
        for cell in compare_at(world_size, sequence, ROUNDS)
    ]


def compare_at(world_size: int, sequence: int, rounds: int) -> list[DdpCell]:
    """Seconds of a step, of ours over both all-reduces and of torch's, in turn."""
    results = run_ranks(take_turns, world_size, sequence, rounds, timeout=300)
    by_who = {who: slowest([seconds[who] for _, seconds in results]) for who in (*OURS, PEER)}
    return [
        DdpCell(
            world_size=world_size,
            sequence=sequence,
            all_reduce=who,
            buckets=results[0][0],
            comparison=Comparison(
                name=f"{world_size} ranks, sequences of {sequence}, {who}", ours_s=by_who[who], peer_s=by_who[PEER]
            ),
        )
        for who in OURS
    ]


def take_turns(sequence: int, rounds: int) -> tuple[int, dict[str, list[float]]]:
    """On a rank: the number of buckets, and each round's seconds for a step of ours and of torch's."""
    torch.manual_seed(0)
    model = Decoder(MODEL)
    group = dist.group.WORLD
    with comm.settings(guard=False, ledger=False):
        models: dict[str, nn.Module] = {
            who: DistributedDataParallel(
                copy.deepcopy(model),
                process_group=group,
                algorithm=algorithm,
                bucket_cap_mb=BUCKET_MIB,
                gradient_as_bucket_view=True,
            )
            for who, algorithm in OURS.items()
        }
        models[PEER] = nn.parallel.DistributedDataParallel(
            copy.deepcopy(model), process_group=group, bucket_cap_mb=BUCKET_MIB, gradient_as_bucket_view=True
        )
        steps = {who: stepper(wrapped, sequence) for who, wrapped in models.items()}
        buckets = check(models, steps)
        seconds = in_turn({who: partial(timed, step, group) for who, step in steps.items()}, rounds + 1)
    return buckets, {who: taken[1:] for who, taken in seconds.items()}  # the first round warms up


def stepper(model: nn.Module, sequence: int) -> Callable[[], None]:
    """A whole training step on this rank's share of a batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    rows = BATCH // dist.get_world_size()
    generator = torch.Generator().manual_seed(dist.get_rank())
    tokens = torch.randint(MODEL.vocab_size, (rows, sequence + 1), generator=generator)

    def step() -> None:
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return step


def timed(step: Callable[[], None], group: dist.ProcessGroup) -> float:
    """Seconds of one step, averaged over a few."""
    dist.barrier(group)
    started = time.perf_counter()
    for _ in range(STEPS):
        step()
    return (time.perf_counter() - started) / STEPS


def check(models: dict[str, nn.Module], steps: dict[str, Callable[[], None]]) -> int:
    """Refuse to time a wrong step, or another number of all-reduces than torch's; return that number."""
    for _ in range(3):
        for step in steps.values():
            step()
    peer = models[PEER]
    buckets = len(peer._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(","))
    for who in OURS:
        for mine, other in zip(models[who].parameters(), peer.parameters(), strict=True):
            assert torch.allclose(mine, other, atol=1e-4), f"{who}: not trained as torch's"
        assert len(models[who]._reducer.buckets) == buckets, f"{who}: not {buckets} buckets"
    return buckets


def verdicts(cells: list[DdpCell]) -> list[Verdict]:
    """Of each all-reduce, the geometric mean over ranks and sequences."""
    return [
        Verdict(
            figure=f"DDP {who} against torch's, tokens/s",
            ratio=mean_ratio([cell.comparison for cell in cells if cell.all_reduce == who]),
            gate=0.9,
            goal=1.15,
        )
        for who in OURS
    ]


def sections(cells: list[DdpCell]) -> list[str]:
    """A row for each number of ranks, length of the sequences and all-reduce."""
    rows = [tokens_row(f"{c.world_size} | {c.sequence} | {c.all_reduce}", c) for c in cells]
    return [
        f"## Data parallelism against torch's, a step with AdamW ({MODEL.n_layers} layers of {MODEL.hidden_size}, "
        f"{BATCH} sequences over all ranks, buckets of {BUCKET_MIB} MiB on both sides, guard and ledger off)",
        table([["ranks", "sequence", "ours", *TIMES, *TOKENS], *rows]),
    ]


BENCHMARK = Benchmark(
    lesson=3,
    title="DDP against torch's",
    compare=compare,
    gates=lambda cells: [gate_row(verdict) for verdict in verdicts(cells)],
    sections=sections,
)
