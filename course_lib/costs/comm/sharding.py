"""What sharded data parallelism sends: every collective of a step by unit, and its bytes on each rank.

N are the numbers of a unit's row, which `shards` neighbours share; HYBRID_SHARD has several such runs of neighbours,
copies of each other.

    strategy        each micro-batch                                          once a step
    DDP                                                                       all_reduce N
    NO_SHARD        all_reduce N
    ZeRO-1                                                                    reduce_scatter N, all_gather N
    ZeRO-2          reduce_scatter N                                          all_gather N
    SHARD_GRAD_OP   all_gather N, reduce_scatter N
    FULL_SHARD      all_gather N forward and backward, reduce_scatter N
    HYBRID_SHARD    the same in each run, then all_reduce of a piece over the runs
    with secondary  FULL_SHARD, whose all_gather in backward is inside runs of `secondary` neighbours (ZeRO++)
    with block      all_gather in blocks of a byte a number and a scale, but inside such a run (ZeRO++)

The middle is sent in every micro-batch, so m times a step. The root's unit stays whole between forward and backward,
so that it is gathered once. Frozen rows are gathered as others are, where weights are shared, and never reduced. The
gradient's norm and a trainer's own reports come on top.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Literal, NamedTuple

from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.tensor import When
from course_lib.costs.comm.traffic import CommTime, Step
from course_lib.costs.model.strategies import GATHERED, RESHARDED, DataParallel, shards_of
from course_lib.costs.model.units import SCALE_BYTES, Padding, UnitShapes, row_blocks
from course_lib.split import split_sizes

_Operation = Literal["all_gather", "reduce_scatter", "all_reduce"]
Among = Literal["shards", "copies"]


@dataclass(frozen=True, kw_only=True)
class ShardingRow:
    """One row of the table: a call, and how often it is made in a step.

    `among` says who calls: the `shards` neighbours that share a unit's row, or the ranks of all runs that have the same
    piece of it. All such groups of the `world_size` ranks call at once.
    """

    unit: str
    when: When
    operation: _Operation
    numbers: int  # of the whole row; where it is quantised, its blocks
    itemsize: int
    times: int
    among: Among
    world_size: int
    shards: int

    def traffic(self, *, algorithm: str = "ring", node_size: int | None = None) -> CommTime:
        """What one call sends. With `node_size`, each step of a call between nodes leaves them as a ring does."""
        p, s = self.world_size, self.shards
        if self.among == "shards":
            groups = [(range(first, first + s), self.numbers) for first in range(0, p, s)]
        else:
            groups = [(range(place, p, s), piece) for place, piece in enumerate(split_sizes(self.numbers, s)) if piece]
        calls = (
            (ranks, comm_time(self.operation, algorithm, world_size=len(ranks), length=length, itemsize=self.itemsize))
            for ranks, length in groups
        )
        return _at_once(calls, p, node_size)

    def __str__(self) -> str:
        row = f"{self.numbers:,} x {self.itemsize} B"
        return f"{self.unit:<22} {self.when:<8} {self.times:>4} x {self.operation:<14} {row:>22} among {self.among}"


def sharding_step(rows: Iterable[ShardingRow], *, algorithm: str = "ring", node_size: int | None = None) -> CommTime:
    """What these rows send together, one after the other: a whole step, the optimizer's part included.

    No rows are a single rank's.
    """
    calls = [row.traffic(algorithm=algorithm, node_size=node_size) * row.times for row in rows]
    alone = CommTime(sent_bytes=(0,), received_bytes=(0,), messages=(0,), path=())
    return reduce(add, calls) if calls else alone


def sharding_rows(
    units: Sequence[UnitShapes],
    *,
    strategy: DataParallel,
    world_size: int,
    shards: int | None = None,
    secondary: int | None = None,
    itemsize: int = 4,
    reduce_itemsize: int | None = None,
    block: int | None = None,
    microbatches: int = 1,
    padding: Padding = "none",
) -> tuple[ShardingRow, ...]:
    """The whole table for one step; `units` end with the root's, as `decoder_units` gives them.

    A number takes `itemsize` bytes where it is gathered, and `reduce_itemsize` where gradients are added up, by
    default as many: bf16 gathers and fp32 reduction are 2 + 2 + 4 = 8 bytes for each parameter under FULL_SHARD. With
    `block`, so many numbers of a piece are gathered in a byte each, behind them 4 bytes of their scale; a piece's last
    block is as long. DDP's buckets are not units: `ddp_step` has its bytes to the last one.
    Source: Rajbhandari et al. 2020, ZeRO, section 7; Zhao et al. 2023, PyTorch FSDP, section 3.2.2; Wang et al. 2023,
        ZeRO++, sections 3.1 and 3.2.
    Raises: ValueError as `shards_of`.
    """
    parts, reached = shards_of(strategy, world_size, shards), _reached(units)
    plain = tuple(
        ShardingRow(
            unit=unit.label,
            when=call.when,
            operation=call.operation,
            numbers=numbers,
            itemsize=itemsize if call.operation == "all_gather" else reduce_itemsize or itemsize,
            times=1 if call.when == "step" else microbatches,
            among=call.among,
            world_size=world_size,
            shards=secondary if secondary and call.is_again else parts,
        )
        for unit in units
        for call in _calls(unit, strategy, parts, world_size // parts, unit.label in reached)
        if (numbers := unit.numbers(trained=call.trained, shards=parts, padding=padding))
    )
    return plain if block is None else tuple(_quantised(row, block, in_run=secondary is not None) for row in plain)


def _quantised(row: ShardingRow, block: int, *, in_run: bool) -> ShardingRow:
    """A gather in blocks, but for one that brings back what a run of neighbours kept; any other row as it is."""
    if row.operation != "all_gather" or (in_run and row.when == "backward"):
        return row
    blocks = row_blocks(row.numbers, shards=row.shards, block=block)
    return replace(row, numbers=blocks, itemsize=block + SCALE_BYTES)


class SentNumbers(NamedTuple):
    """Numbers that a rank sends in a step: inside the run of ranks that share a row, and across the runs."""

    inside: float
    across: float


def sent_numbers(
    strategy: DataParallel,
    parameters: int,
    *,
    world_size: int,
    shards: int | None = None,
    root: int = 0,
    microbatches: int = 1,
) -> SentNumbers:
    """The shorthand: what the table comes to with a ring, if all of P = `parameters` are trained and all pieces equal.

    On p ranks, with one micro-batch, DDP, NO_SHARD, ZeRO-1, ZeRO-2 and SHARD_GRAD_OP send 2P (p - 1)/p, FULL_SHARD
    3P (p - 1)/p; but the `root` unit's numbers are in P only twice, for it is not gathered again. HYBRID_SHARD sends
    3P (s - 1)/s inside a run of s ranks, and 2P/s (r - 1)/r across the r = p/s runs. More micro-batches repeat what is
    not once a step.
    Source: Rajbhandari et al. 2020, ZeRO, section 7.
    Raises: ValueError as `shards_of`.
    """
    s, m = shards_of(strategy, world_size, shards), microbatches
    r = world_size // s
    rows = {
        "DDP": 0,
        "NO_SHARD": 0,
        "ZeRO-1": 2 * parameters,
        "ZeRO-2": (m + 1) * parameters,
        "SHARD_GRAD_OP": 2 * m * parameters,
    }
    inside = rows.get(strategy, m * (3 * parameters - root))
    over_copies = 2 * parameters / s * (1 if strategy == "DDP" else m)
    return SentNumbers(inside * (s - 1) / s, over_copies * (r - 1) / r)


class _Call(NamedTuple):
    when: When
    operation: _Operation
    trained: bool = True
    among: Among = "shards"

    @property
    def is_again(self) -> bool:
        """Whether it brings back what was freed."""
        return (self.when, self.operation) == ("backward", "all_gather")


def _calls(unit: UnitShapes, strategy: DataParallel, shards: int, copies: int, reached: bool) -> Iterator[_Call]:
    """The calls of one unit, those of a single rank left out."""
    if shards > 1 and strategy in GATHERED:
        again = reached and not unit.is_root and strategy in RESHARDED
        for when in ("forward", "backward") if again else ("forward",):
            yield _Call(when, "all_gather")
            yield _Call(when, "all_gather", trained=False)
    if shards > 1:
        yield _Call("step" if strategy == "ZeRO-1" else "backward", "reduce_scatter")
    if copies > 1:
        yield _Call("step" if strategy == "DDP" else "backward", "all_reduce", among="copies")
    if shards > 1 and strategy not in GATHERED:
        yield _Call("step", "all_gather")


def _reached(units: Sequence[UnitShapes]) -> set[str]:
    """Units that backward comes to: all from the first one on that has something to train."""
    found = bool(units[-1].opening)
    reached = set()
    for unit in units:
        found = found or bool(unit.trained)
        if found:
            reached.add(unit.label)
    return reached


def _at_once(calls: Iterable[tuple[range, CommTime]], world_size: int, node_size: int | None) -> CommTime:
    """The same call in several groups of ranks at the same time; the first group's messages are the longest."""
    sent, received, messages = ([0] * world_size for _ in range(3))
    path: tuple[Step, ...] = ()
    rings: list[range] = []
    for ranks, cost in calls:
        for place, rank in enumerate(ranks):
            sent[rank], received[rank] = cost.sent_bytes[place], cost.received_bytes[place]
            messages[rank] = cost.messages[place]
        path = path or cost.path
        rings.append(ranks)
    leaving = _leaving(rings, node_size) if node_size else 0
    return CommTime(
        sent_bytes=tuple(sent),
        received_bytes=tuple(received),
        messages=tuple(messages),
        path=tuple(step._replace(leaving=leaving) for step in path),
    )


def _leaving(rings: Sequence[range], node_size: int) -> int:
    """Of the node that most leave at once: the neighbours in a ring that are not in the same node."""
    pairs = ((a, ranks[(place + 1) % len(ranks)]) for ranks in rings for place, a in enumerate(ranks))
    return max(Counter(a // node_size for a, b in pairs if a // node_size != b // node_size).values(), default=0)
