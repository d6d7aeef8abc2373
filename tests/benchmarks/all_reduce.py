"""Our all-reduce on send and receive against gloo's own, size by size."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import cloudpickle
import torch
import torch.distributed as dist
from measure import Comparison, Verdict, mean_ratio
from page import TIMES, Benchmark, comparison_row, gate_row, table
from torch.distributed import ProcessGroup

from course_lib import comm
from course_lib.costs import SweepPoint
from course_lib.ranks import run_ranks
from course_lib.units import KiB, MiB, format_bytes
from course_lib.viz import plot_bandwidth
from course_lib.viz.ink.picture import Picture

WORLD_SIZES = (2, 4)
SIZES = tuple(KiB * 4**k for k in range(8))  # 1 KiB to 16 MiB
SMALL = 64 * KiB
ROUNDS = 15


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number of ranks and one size."""

    world_size: int
    nbytes: int
    comparison: Comparison


def best_algorithm(nbytes: int) -> str:
    """Few steps while latency counts, few bytes after that."""
    return "recursive_doubling" if nbytes <= MiB else "ring"


def compare() -> list[Cell]:
    """Every number of ranks with every size."""
    import all_reduce

    cloudpickle.register_pickle_by_value(all_reduce)  # the ranks cannot import this file
    return [cell for world_size in WORLD_SIZES for cell in compare_at(world_size)]


def compare_at(world_size: int) -> list[Cell]:
    """All sizes at one number of ranks."""
    by_rank = run_ranks(take_turns, world_size, SIZES, ROUNDS, timeout=300)
    cells = []
    for place, nbytes in enumerate(SIZES):
        ours_s, peer_s = (slowest([times[place][who] for times in by_rank]) for who in ("ours", "gloo"))
        name = f"{world_size} ranks, {format_bytes(nbytes)}, {best_algorithm(nbytes)}"
        comparison = Comparison(name=name, ours_s=ours_s, peer_s=peer_s)
        cells.append(Cell(world_size=world_size, nbytes=nbytes, comparison=comparison))
    return cells


def slowest(by_rank: list[list[float]]) -> tuple[float, ...]:
    """Of each round, the time of the rank that took longest."""
    return tuple(max(times) for times in zip(*by_rank, strict=True))


def take_turns(sizes: tuple[int, ...], rounds: int) -> list[dict[str, list[float]]]:
    """On a rank: seconds of both at every size, one after the other within each round."""
    group = dist.group.WORLD
    tensors = [torch.zeros(nbytes // 4) for nbytes in sizes]
    seconds: list[dict[str, list[float]]] = [{"ours": [], "gloo": []} for _ in sizes]
    with comm.settings(guard=False, ledger=False):
        check(group)
        for turn in range(rounds + 1):  # the first opens connections and is left out
            order = ("ours", "gloo") if turn % 2 else ("gloo", "ours")
            for x, times in zip(tensors, seconds, strict=True):
                for who in order:
                    taken = timed(who, x, group)
                    times[who] += [taken] if turn else []
    return seconds


def timed(who: str, x: torch.Tensor, group: ProcessGroup) -> float:
    """Seconds of one all-reduce, averaged over as many as make a small one measurable."""
    algorithm, repeats = best_algorithm(x.nbytes), max(1, min(20, MiB // x.nbytes))
    dist.barrier(group)
    started = time.perf_counter()
    for _ in range(repeats):
        if who == "ours":
            comm.all_reduce_(x, algorithm=algorithm, group=group)
        else:
            dist.all_reduce(x, group=group)
    return (time.perf_counter() - started) / repeats


def check(group: ProcessGroup) -> None:
    """Refuse to time a wrong all-reduce."""
    for nbytes in SIZES:
        ours = torch.full((nbytes // 4,), float(dist.get_rank() + 1))
        theirs = ours.clone()
        comm.all_reduce_(ours, algorithm=best_algorithm(nbytes), group=group)
        dist.all_reduce(theirs, group=group)
        assert torch.equal(ours, theirs), f"wrong sum at {nbytes} bytes"


def verdicts(cells: list[Cell]) -> list[Verdict]:
    """Geometric means over sizes and numbers of ranks."""
    small = [cell.comparison for cell in cells if cell.nbytes <= SMALL]
    large = [cell.comparison for cell in cells if cell.nbytes > SMALL]
    return [
        Verdict(figure="all-reduce up to 64 KiB", ratio=mean_ratio(small), gate=1.1, goal=2),
        Verdict(figure="all-reduce above 64 KiB", ratio=mean_ratio(large), gate=0.9, goal=2),
    ]


def sections(cells: list[Cell]) -> list[str]:
    """A row for each number of ranks and size."""
    rows = [
        comparison_row(f"{c.world_size} | {format_bytes(c.nbytes)} | {best_algorithm(c.nbytes)}", c.comparison)
        for c in cells
    ]
    title = "## All-reduce on send and receive against gloo's own (float32, in place, guard and ledger off)"
    return [title, table([["ranks", "size", "algorithm", *TIMES], *rows])]


def figures(cells: list[Cell]) -> dict[str, Picture]:
    """Bandwidth over size, for each number of ranks."""
    return {
        f"{p}-ranks": plot_bandwidth(
            points(cells, p), title=f"All-reduce on {p} ranks: on send and receive, and gloo's own"
        )
        for p in sorted({cell.world_size for cell in cells})
    }


def points(cells: list[Cell], world_size: int) -> list[SweepPoint]:
    """What the bandwidth figure draws of one number of ranks: our times and gloo's."""
    found = []
    for cell in cells:
        if cell.world_size == world_size:
            pairs = ((best_algorithm(cell.nbytes), cell.comparison.ours_s), ("native", cell.comparison.peer_s))
            found += [SweepPoint(name, world_size, cell.nbytes, median(seconds)) for name, seconds in pairs]
    return found


BENCHMARK = Benchmark(
    lesson=2,
    title="all-reduce against gloo",
    compare=compare,
    gates=lambda cells: [gate_row(verdict) for verdict in verdicts(cells)],
    sections=sections,
    figures=figures,
)
