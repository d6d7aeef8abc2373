"""09.2: what attention to two blocks of keys gives, made of what each block alone has given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_lib.checks.kit.asked import asked_exercise
from course_lib.checks.kit.form import another, wrong_form
from course_lib.checks.kit.parts import generator
from course_lib.checks.kit.said import plural, wrong_kind
from course_lib.checks.kit.spec import Level
from course_lib.verify.equality import close, no_multiple, scale_of
from course_lib.verify.ratios import exactly

NAMES = ("the max", "the sum", "the out")
_NUMBERS = 3  # of a value
_KEYS = 4  # of a block
_UNSEEN = -torch.inf
_Block = tuple[Tensor, Tensor, Tensor]  # max, sum, out


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Queries that see keys of two blocks, whose scores are about so large; how many of them see nothing in a block."""

    text: str
    shape: tuple[int, ...] = (6,)
    scores: tuple[float, float] = (0.0, 0.0)  # of the first and the second block, about
    blind: tuple[int, int, int] = (0, 0, 0)  # rows that see nothing in the first, the second, and in both
    world_size: int = 1

    def __str__(self) -> str:
        return self.text

    def pairs(self, seed: int) -> list[Pair]:
        """Two of them."""
        return [self._pair(generator(seed, number, len(self.text), *self.shape)) for number in range(2)]

    def _pair(self, source: torch.Generator) -> Pair:
        values = torch.randn(2, _KEYS, _NUMBERS, generator=source, dtype=torch.float64)
        scores = 2 * torch.randn(2, *self.shape, _KEYS, generator=source, dtype=torch.float64)
        scores += torch.tensor(self.scores, dtype=torch.float64).view(2, *[1] * (len(self.shape) + 1))
        first, second, both = self.blind
        scores[0, ..., :first, :] = _UNSEEN
        scores[1, ..., first : first + second, :] = _UNSEEN
        scores[:, ..., first + second : first + second + both, :] = _UNSEEN
        scores[0, ..., -1, 1:] = _UNSEEN  # as where a causal mask cuts through a block
        return Pair(_alone(scores[0], values[0]), _alone(scores[1], values[1]))


def _alone(scores: Tensor, values: Tensor) -> _Block:
    """What a block alone gives; of a row that sees nothing, nothing."""
    largest = scores.amax(-1)
    powers = (scores - largest.nan_to_num(neginf=0.0).unsqueeze(-1)).exp()
    return largest, powers.sum(-1), powers @ values


class Pair(NamedTuple):
    """What two blocks gave."""

    first: _Block
    second: _Block

    def __str__(self) -> str:
        return ""


def _merged(
    first: _Block,
    second: _Block,
    *,
    largest: Callable[[Tensor, Tensor], Tensor] = torch.maximum,
    of_sum: Callable[[Tensor], Tensor] = torch.exp,
    of_out: Callable[[Tensor], Tensor] = torch.exp,
    end: Callable[[Tensor, Tensor], Tensor] = lambda out, total: out,
) -> _Block:
    """Right, unless a part is chosen otherwise."""
    top = largest(first[0], second[0])
    stays = top.nan_to_num(neginf=0.0)
    shifts = [one[0] - stays for one in (first, second)]
    total = sum((of_sum(shift) * one[1] for shift, one in zip(shifts, (first, second), strict=True)), torch.zeros(()))
    parts = zip(shifts, (first, second), strict=True)
    out = sum((of_out(shift).unsqueeze(-1) * one[2] for shift, one in parts), torch.zeros(()))
    return top, total, end(out, total)


def _use(answer: Callable[..., Any], pair: Pair) -> tuple[Tensor | str, ...]:
    """Runs on a rank; one text alone says what came instead of three things."""
    found = answer(*pair)
    if not isinstance(found, tuple | list):
        return (type(found).__name__,)
    if len(found) != len(NAMES):
        return (plural(len(found), "thing"),)
    return tuple(one.detach().clone() if isinstance(one, Tensor) else type(one).__name__ for one in found)


def _judge(pair: Pair, found: Sequence[Tensor | str]) -> str | None:
    wanted = _merged(*pair)
    if len(found) != len(NAMES):
        return wrong_kind(str(found[0]), f"3 things: {', '.join(NAMES)}")
    for place, (name, got, want) in enumerate(zip(NAMES, found, wanted, strict=True)):
        # Rows that have seen nothing have a max of -inf, so rows are compared that have seen something.
        seen = wanted[0] > _UNSEEN
        full = isinstance(got, Tensor) and got.shape == want.shape and got.dtype == want.dtype
        mine: Tensor | str = got[seen] if full and isinstance(got, Tensor) else got
        right = want[seen] if full else want
        if form := another(NAMES, place, got, wanted) or wrong_form(mine, right, 1, _why_nan(pair, mine, seen)):
            return f"{name}{form}"
        if isinstance(got, Tensor) and isinstance(mine, Tensor):
            if not close(mine, right):
                return f"{name} {_unlike(mine, right)}"
            if not got[~seen].equal(want[~seen]):
                return f"{name} of a row that has seen no key yet is {got[~seen].flatten()[0]:g}, and {_NOTHING[place]}"
    return None


_NOTHING = (
    "it stays -inf, below whatever comes in the next block",
    "it stays 0: -inf minus -inf is nan, so such a row needs care",
    "it stays 0: -inf minus -inf is nan, so such a row needs care",
)


def _why_nan(pair: Pair, got: Tensor | str, seen: Tensor) -> str:
    """Where the first number is that is none: in a row that one block has shown nothing, or in any."""
    if isinstance(got, str) or not bool(got.isnan().any() or got.isinf().any()):
        return ""
    rows = ~got.isfinite() if got.ndim == seen[seen].ndim else ~got.isfinite().all(-1)
    blind = torch.stack([one[0][seen] == _UNSEEN for one in pair]).any(0)
    if bool((rows & ~blind).any()):
        return "an exp of a large number overflows. Subtract a max before exp, so that no power is above 1"
    return "in rows that see nothing in one of the blocks. Its max is -inf there, so do not subtract that"


def _unlike(got: Tensor, want: Tensor) -> str:
    ratio = scale_of(got, want)
    return no_multiple(got, want) if ratio is None else f"is {exactly(ratio)} the reference"


def _as_it_is(shift: Tensor) -> Tensor:
    return torch.ones_like(shift)


def _half(shift: Tensor) -> Tensor:
    return shift.exp() / 2


def _averaged(first: _Block, second: _Block) -> _Block:
    top, total, _ = _merged(first, second)
    return top, total, (first[2] + second[2]) / 2


def _other_way(shift: Tensor) -> Tensor:
    return (-shift).exp()


_MERGED = asked_exercise(
    key="09.2",
    title="two softmaxes in one",
    records=lambda case, seed: case.pairs(seed),
    use=_use,
    judge=_judge,
    slips={
        "sums and outs were added as they are. Each is relative to the max of its own block, so bring them to one "
        "max first: times exp(own max - common max)": partial(_merged, of_sum=_as_it_is, of_out=_as_it_is),
        "the sum is right, and the outs were added as they are. They have the same powers in them, so they need the "
        "same factors": partial(_merged, of_out=_as_it_is),
        "the sum was added up as it is. It needs the factors that the outs have got": partial(
            _merged, of_sum=_as_it_is
        ),
        "the two outs were averaged. A block with large scores weighs more": _averaged,
        "each out was halved as well. The powers weigh them already": partial(_merged, of_out=_half),
        "the common max is that of the first block, even where the second one has larger scores": (
            partial(_merged, largest=lambda first, second: first)
        ),
        "the common max is the smaller of the two, and powers may grow without bound then": (
            partial(_merged, largest=torch.minimum)
        ),
        "the factors are upside down: exp(own max - common max) is at most 1": (
            partial(_merged, of_sum=_other_way, of_out=_other_way)
        ),
        "the out was divided by the sum. Another block may come, so that is done once, at the very end": (
            partial(_merged, end=lambda out, total: out / total.unsqueeze(-1))
        ),
        "the max is the sum of both. Take the larger one, row by row": partial(_merged, largest=torch.add),
    },
    levels={
        "plain": Level(
            points=2,
            cases=(
                Rows(text="scores alike in both blocks"),
                Rows(text="a batch of 2 and 3 heads", shape=(2, 3, 5)),
            ),
            praise="two softmaxes became one, as if all keys had been there at once",
        ),
        "large": Level(
            points=1,
            cases=(
                Rows(text="scores of about 2000", scores=(2000.0, 1990.0)),
                Rows(text="scores of about -2000", scores=(-2000.0, -2005.0)),
                Rows(text="one block far above the other", scores=(-900.0, 900.0)),
            ),
            praise="no score is too large, since no power is above 1",
        ),
        "blind": Level(
            points=2,
            again=True,
            cases=(
                Rows(text="rows that see nothing in the first block", blind=(2, 0, 0)),
                Rows(text="rows that see nothing in the second block", blind=(0, 2, 0)),
                Rows(text="rows that have seen nothing yet", blind=(1, 1, 2)),
                Rows(text="the same in a batch", shape=(2, 2, 6), blind=(1, 1, 1), scores=(800.0, 790.0)),
            ),
            praise="a row that a block shows nothing stays as it was, without a nan",
        ),
    },
    hints=(
        "Take one row and the numbers of the text. What does block 1 have to be multiplied with, so that its powers "
        "are relative to 3, as those of block 2?",
        "exp(score - own max) times exp(own max - common max) is exp(score - common max). So one factor a row and "
        "block is enough, for the sum and for the out alike.",
        "The common max is torch.maximum of the two, and no factor is above 1. The out has one more dimension than the "
        "factor: factor.unsqueeze(-1).",
        "A row that sees nothing in one block: exp(-inf) is 0, and all is well. A row that has seen nothing in both: "
        "-inf minus -inf is nan. Subtract something finite there, such as top.nan_to_num(neginf=0.0).",
    ),
)
