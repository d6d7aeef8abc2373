"""A chain of linear maps y = W_n ... W_1 x on ranks that share its matrices: what every partition sends and holds.

Each matrix is replicated, cut by its rows ("out", column-parallel), or cut by its columns ("in", row-parallel). So its
product is whole, cut, or left as parts of a sum; and what the next matrix reads must be whole, or cut for "in". What is
sent follows from the two alone:

    to read   whole        cut
    whole     nothing      slice (sends nothing)
    cut       all_gather   nothing
    parts     all_reduce   reduce_scatter

Backward is the chain of transposed matrices in reverse order: what cuts a matrix by rows cuts its transpose by columns.
x comes whole to every rank, and y ends so. Shapes: (features, samples), cut along the features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise, product
from operator import add
from typing import Literal, get_args

from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.traffic import CommTime
from course_lib.errors import four_parts
from course_lib.split import TRANSPOSED, MatrixCut, split_sizes

Operation = Literal["nothing", "slice", "all_gather", "all_reduce", "reduce_scatter"]
_READ: dict[MatrixCut, str] = {"replicated": "whole", "out": "whole", "in": "cut"}
_LEFT: dict[MatrixCut, str] = {"replicated": "whole", "out": "cut", "in": "parts"}
_BETWEEN: dict[tuple[str, str], Operation] = {
    ("whole", "whole"): "nothing",
    ("whole", "cut"): "slice",
    ("cut", "whole"): "all_gather",
    ("cut", "cut"): "nothing",
    ("parts", "whole"): "all_reduce",
    ("parts", "cut"): "reduce_scatter",
}


@dataclass(frozen=True, kw_only=True)
class Passage:
    """What happens to one activation of the chain and to its gradient: x is number 0, y the last."""

    width: int
    forward: Operation
    backward: Operation
    forward_cost: CommTime
    backward_cost: CommTime

    def __str__(self) -> str:
        there, back = max(self.forward_cost.sent_bytes), max(self.backward_cost.sent_bytes)
        return f"{self.width} numbers: {self.forward} {there} B forward, {self.backward} {back} B backward"


@dataclass(frozen=True, kw_only=True)
class Partition:
    """One way to share the matrices; `weights` are the numbers that each rank holds, and multiplies a sample by."""

    cuts: tuple[MatrixCut, ...]
    passages: tuple[Passage, ...]
    weights: tuple[int, ...]

    @property
    def forward(self) -> CommTime:
        """All that forward sends."""
        return reduce(add, (passage.forward_cost for passage in self.passages))

    @property
    def backward(self) -> CommTime:
        """All that backward sends."""
        return reduce(add, (passage.backward_cost for passage in self.passages))

    @property
    def order(self) -> tuple[int, int, int]:
        """What the better partition has less of: the busiest rank's bytes, then its messages, then weights."""
        step = self.forward + self.backward
        return max(step.sent_bytes), max(step.messages), max(self.weights)

    def __str__(self) -> str:
        """From x to y what each activation needs, and how each matrix is cut; bytes are the busiest rank's."""
        first, *others = self.passages
        lines, name = [f"x, {first}"], "x"
        for number, (cut, before, after) in enumerate(zip(self.cuts, self.passages, others, strict=False), start=1):
            name = f"W{number} {name}"
            lines += [f"W{number} ({after.width}, {before.width}) {cut}", f"{name}, {after}"]
        there, back = max(self.forward.sent_bytes), max(self.backward.sent_bytes)
        return "\n".join([*lines, f"sent: {there} B forward, {back} B backward; held: {max(self.weights)} weights"])


def chain_partition(
    widths: Sequence[int],
    cuts: Sequence[MatrixCut],
    *,
    tp: int,
    samples: int = 1,
    itemsize: int = 4,
    input_gradient: bool = False,
) -> Partition:
    """What this partition of matrices (widths[i + 1], widths[i]) sends for `samples` columns of x, and holds.

    Without `input_gradient` x is data: the first matrix finds no gradient for it.
    Source: the six cases are Megatron's f and g (Shoeybi et al. 2019, section 3) and what lies between them.
    Raises: ValueError unless there is a known cut for each matrix, and sizes are positive.
    """
    _check(widths, cuts, tp, samples)
    forward = _operations(cuts)
    backward = _operations([TRANSPOSED[cut] for cut in reversed(cuts)])[::-1]
    if not input_gradient:
        backward[0] = "nothing"

    def cost(operation: Operation, width: int) -> CommTime:
        if operation in ("nothing", "slice"):
            return CommTime.nothing(tp)
        together = samples if operation != "all_reduce" else 1  # an all-reduce cuts all its numbers as one row
        length = width * samples // together
        return comm_time(operation, "ring", world_size=tp, length=length, itemsize=itemsize * together)

    return Partition(
        cuts=tuple(cuts),
        passages=tuple(
            Passage(width=width, forward=f, backward=b, forward_cost=cost(f, width), backward_cost=cost(b, width))
            for width, f, b in zip(widths, forward, backward, strict=True)
        ),
        weights=tuple(sum(_held(widths, cuts, tp, rank)) for rank in range(tp)),
    )


def search_chain(
    widths: Sequence[int],
    *,
    tp: int,
    samples: int = 1,
    itemsize: int = 4,
    input_gradient: bool = False,
    most_weights: int | None = None,
) -> tuple[Partition, ...]:
    """All 3^n partitions of the n matrices whose ranks hold at most `most_weights`, those that send least first.

    To replicate everything sends nothing: only a limit makes the search a question.
    Raises: ValueError as `chain_partition`.
    """
    every = (
        chain_partition(widths, cuts, tp=tp, samples=samples, itemsize=itemsize, input_gradient=input_gradient)
        for cuts in product(get_args(MatrixCut), repeat=len(widths) - 1)
    )
    fitting = (found for found in every if most_weights is None or max(found.weights) <= most_weights)
    return tuple(sorted(fitting, key=lambda partition: partition.order))


def _operations(cuts: Sequence[MatrixCut]) -> list[Operation]:
    """What each activation of the chain needs; its two ends are whole, as beside a replicated matrix."""
    chain: list[MatrixCut] = ["replicated", *cuts, "replicated"]
    return [_BETWEEN[_LEFT[before], _READ[after]] for before, after in pairwise(chain)]


def _held(widths: Sequence[int], cuts: Sequence[MatrixCut], tp: int, rank: int) -> Iterator[int]:
    for (inputs, outputs), cut in zip(pairwise(widths), cuts, strict=True):
        rows = split_sizes(outputs, tp)[rank] if cut == "out" else outputs
        columns = split_sizes(inputs, tp)[rank] if cut == "in" else inputs
        yield rows * columns


def _check(widths: Sequence[int], cuts: Sequence[MatrixCut], tp: int, samples: int) -> None:
    if len(cuts) != len(widths) - 1 or not cuts or not set(cuts) <= set(get_args(MatrixCut)):
        values = f"{len(widths)} widths, cuts={list(cuts)}"
        rule = "each matrix between two widths has a cut"
        raise ValueError(four_parts("chain_partition", values, rule, f"choose from {', '.join(get_args(MatrixCut))}"))
    if min(*widths, tp, samples) < 1:
        values = f"widths={list(widths)}, tp={tp}, samples={samples}"
        raise ValueError(four_parts("chain_partition", values, "sizes are positive", "give sizes >= 1"))
