"""11.4: causal attention with the scores of a few keys at a time, and how much memory it takes at its largest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_lib.checks.kit.asked import asked_exercise
from course_lib.checks.kit.form import another, wrong_form
from course_lib.checks.kit.parts import generator
from course_lib.checks.kit.probe import Slips
from course_lib.checks.kit.said import plural, wrong_kind
from course_lib.checks.kit.spec import FP64, Level
from course_lib.checks.kit.work import Watch
from course_lib.gauges.allocated import peak_bytes
from course_lib.verify.equality import close, no_multiple, scale_of
from course_lib.verify.ratios import exactly

_NAMES = ("the output", "the lse")
_HEADS = 2
_PART = 4  # a quarter of what all scores would take is allowed
_READY = "scaled_dot_product"  # PyTorch's kernels, by a piece of their names


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """A sequence, so many keys at a time, and what is looked at."""

    length: int
    tile: int
    size: int = 4  # numbers of a head
    level: float = 0.0  # to which all scores are lifted, about
    memory: bool = False
    world_size: int = 1

    def __str__(self) -> str:
        large = f", scores of about {self.level:g}" if self.level else ""
        return f"{plural(self.length, 'position')} in tiles of {plural(self.tile, 'key')}{large}"

    @property
    def most(self) -> int:
        """Bytes that may exist at a moment, beyond what is given."""
        return _HEADS * self.length**2 * FP64 // _PART


class _Sequence(NamedTuple):
    """What the answer gets."""

    q: Tensor
    k: Tensor
    v: Tensor
    tile: int
    most: int  # bytes; 0: nobody looks

    def __str__(self) -> str:
        return ""


class _Seen(NamedTuple):
    """What came back; the most bytes at a moment; a ready kernel that was called."""

    results: tuple[Tensor | str, ...]
    peak: int
    kernel: str


class _Kernels(Watch):
    """Notes a kernel of PyTorch's that is attention already."""

    name = ""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if _READY in str(func):
            self.name = str(func)
        return func(*args, **(kwargs or {}))


def _records(case: Tiles, seed: int) -> Sequence[_Sequence]:
    source = generator(seed, case.length, case.tile, case.size)
    q, k, v = torch.randn(3, _HEADS, case.length, case.size, generator=source, dtype=torch.float64)
    if case.level:  # one number of each head is alike for all queries, and so for all keys
        q[..., 0] = math.sqrt(case.size)
        k[..., 0] = case.level + k[..., 0]
    return [_Sequence(q, k, v, case.tile, case.most if case.memory else 0)]


def _use(answer: Callable[..., Any], given: _Sequence) -> _Seen:
    """Runs on a rank."""
    kept: list[Any] = []

    def once() -> None:
        kept.append(answer(*given[:4]))

    with _Kernels() as kernels:
        once()
    results, name = _several(kept.pop()), kernels.name
    peak = peak_bytes(once) if given.most and len(results) == len(_NAMES) else 0
    return _Seen(results, peak, name)


def _several(found: Any) -> tuple[Tensor | str, ...]:
    """One text alone says what came instead of two things."""
    if not isinstance(found, tuple | list) or len(found) != len(_NAMES):
        return (type(found).__name__,)
    return tuple(one.detach().clone() if isinstance(one, Tensor) else type(one).__name__ for one in found)


def _judge(given: _Sequence, seen: _Seen) -> str | None:
    wanted = _tiled(*given[:4])
    if len(seen.results) != len(_NAMES):
        return wrong_kind(str(seen.results[0]), f"two things: {', '.join(_NAMES)}")
    for place, (name, got, want) in enumerate(zip(_NAMES, seen.results, wanted, strict=True)):
        if form := another(_NAMES, place, got, wanted) or wrong_form(got, want, 1, _NAN):
            return f"{name}{form}"
        if isinstance(got, Tensor) and not close(got, want):
            ratio = scale_of(got, want)
            off = (got - want).abs().reshape(_HEADS, got.shape[1], -1).amax((0, 2)) > 1e-9
            first = f"; the first query that is wrong is {int(off.nonzero()[0])}" if bool(off.any()) else ""
            return f"{name} {no_multiple(got, want)}{first}" if ratio is None else f"{name} is {exactly(ratio)} it"
    if seen.kernel:
        return f"right, but by {seen.kernel}, PyTorch's own: this exercise asks you to write it"
    if seen.peak > given.most:
        return (
            f"right, but at its largest it takes {seen.peak / 1e6:.1f} MB beyond what it is given, and "
            f"{given.most / 1e6:.1f} MB are allowed: are the scores of several tiles there together, or those of all "
            "keys?"
        )
    return None


_NAN = (
    "does exp get a large number, or is -inf subtracted from -inf? Before the first tile a query has seen nothing, of "
    "a tile that lies in its future it sees nothing, and a mask without a query's own position leaves query 0 no key"
)


def _tiled(q: Tensor, k: Tensor, v: Tensor, tile: int, *, mistake: str = "") -> tuple[Tensor, Tensor]:
    """The right answer, or one with a mistake."""
    length, size = q.shape[1], q.shape[2]
    rows = torch.arange(length).unsqueeze(-1)
    top, total, out = torch.full_like(q[..., 0], -torch.inf), torch.zeros_like(q[..., 0]), torch.zeros_like(q)
    end = length - length % tile if mistake == "last tile" and length > tile else length
    for start in range(0, end, tile):
        columns = torch.arange(start, min(start + tile, length))
        scores = q @ k[:, columns].mT
        scores = scores / {"scale": 1.0, "no root": float(size)}.get(mistake, size**0.5)
        shown = {"not causal": rows >= 0, "strict": (rows > columns) | ((rows == 0) & (columns == 0))}.get(
            mistake, rows >= columns
        )
        scores = scores.masked_fill(~shown, 0.0 if mistake == "zero" else -torch.inf)
        new = torch.maximum(top, scores.amax(-1))
        powers, old = (scores - new.unsqueeze(-1)).exp(), (top - new).exp()
        if mistake in ("old out", "old both"):
            out = out + powers @ v[:, columns]
        else:
            out = out * old.unsqueeze(-1) + powers @ v[:, columns]
        total = (total if mistake in ("old sum", "old both") else total * old) + powers.sum(-1)
        top = new
    lse = {"log sum": total.log(), "lse in 2": (top + total.log()) / math.log(2), "max": top}.get(
        mistake, top + total.log()
    )
    return (out if mistake == "not divided" else out / total.unsqueeze(-1)), lse


def _averaged(q: Tensor, k: Tensor, v: Tensor, tile: int) -> tuple[Tensor, Tensor]:
    """A softmax of each tile, and the mean of the outputs."""
    length = q.shape[1]
    rows, outs = torch.arange(length).unsqueeze(-1), []
    for start in range(0, length, tile):
        columns = torch.arange(start, min(start + tile, length))
        scores = (q @ k[:, columns].mT / q.shape[2] ** 0.5).masked_fill(rows < columns, -torch.inf)
        outs.append(scores.softmax(-1).nan_to_num(0.0) @ v[:, columns])
    return torch.stack(outs).sum(0) / (rows // tile + 1), _tiled(q, k, v, tile)[1]


def _way(mistake: str) -> Callable[..., Any]:
    return partial(_tiled, mistake=mistake)


_SLIPS: Slips = {
    "the scores are not divided by the root of the head's size": _way("scale"),
    "the scores are divided by the head's size, and its root is asked": _way("no root"),
    "a query sees keys that come after it": _way("not causal"),
    "a query does not see the key at its own position": _way("strict"),
    "masked scores are 0 there, and exp(0) is 1: it takes -inf for a key to have no weight": _way("zero"),
    "out and sum of the tiles before are relative to an older max. Multiply both by exp(old max - new max)": (
        _way("old both")
    ),
    "the sum follows the new max, and the out of the tiles before does not": _way("old out"),
    "the out follows the new max, and the sum of the tiles before does not": _way("old sum"),
    "the out is to be divided by the sum, once, after the last tile": _way("not divided"),
    "the last tile is missing where it is shorter than the others": _way("last tile"),
    "the tiles' outputs are averaged. A tile with large scores weighs more": _averaged,
    "the output is right, and lse is the log of the sum alone. The sum is relative to the max: add it": (
        _way("log sum")
    ),
    "the output is right, and lse is in powers of two": _way("lse in 2"),
    "the output is right, and lse is the max alone": _way("max"),
}

_FLASH = asked_exercise(
    key="11.4",
    title="attention in tiles",
    records=_records,
    use=_use,
    judge=_judge,
    slips=_SLIPS,
    large=lambda case: case.memory,
    levels={
        "values": Level(
            points=2,
            cases=(Tiles(length=10, tile=4), Tiles(length=13, tile=3, size=6)),
            praise="the output of one softmax over all keys, and the number that backward needs",
        ),
        "edges": Level(
            points=2,
            again=True,
            cases=(
                Tiles(length=12, tile=4, level=2000.0),
                Tiles(length=12, tile=5, level=-2000.0),
                Tiles(length=7, tile=1),
                Tiles(length=5, tile=16),
                Tiles(length=1, tile=4),
            ),
            praise="also for scores in the thousands, for tiles of one key, and for one that is longer than all",
        ),
        "memory": Level(
            points=2,
            cases=(Tiles(length=1000, tile=32, size=8, memory=True),),
            praise="and the scores of all pairs never exist together",
        ),
    },
    hints=(
        "Go through the keys in steps of `tile`, with all queries at once. What a query keeps from tile to tile are "
        "three things: the largest score so far, the sum of exp(score - largest), and the out, which has the same "
        "powers in it, times the values.",
        "The scores of a tile are q @ k[:, columns].mT / D ** 0.5, (heads, S, tile). Where a key comes after the "
        "query, they are -inf: masked_fill(rows < columns, -torch.inf).",
        "new = torch.maximum(top, scores.amax(-1)). What was added up before is relative to the old max, so multiply "
        "sum and out by exp(top - new) before you add the new tile to them.",
        "Start with a max of -inf and zeros. Every query sees key 0, which is in the first tile, so the max is finite "
        "from then on and nothing becomes nan. At the end: out / sum, and lse = max + log(sum).",
    ),
)
