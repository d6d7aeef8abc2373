"""11.8: four bits a weight: the nearest of 16 levels, two codes in a byte, and the bytes with scales in codes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.checks.kit.asked import asked_exercise
from course_lib.checks.kit.form import wrong_form
from course_lib.checks.kit.parts import generator
from course_lib.checks.kit.probe import Slips
from course_lib.checks.kit.said import plural, wrong_kind
from course_lib.checks.kit.spec import Level
from course_lib.savers.nf4 import nf4_levels
from course_lib.verify.equality import close, no_multiple
from course_lib.verify.numbers import number_of

_LEVELS = 16


@dataclass(frozen=True, kw_only=True)
class Nibbles:
    """So many numbers, in blocks that share a scale; NF4's levels or drawn ones; or sizes, of which bytes are asked."""

    numbers: int
    block: int = 8
    drawn: bool = False
    zeros: bool = False
    outer: int = 0  # scales that share one: then only bytes are asked
    world_size: int = 1

    def __str__(self) -> str:
        if self.outer:
            return f"bytes of {self.numbers:,} numbers, block {self.block}, outer {self.outer}"
        levels = "other levels" if self.drawn else "NF4's levels"
        zeros = ", one block all zeros" if self.zeros else ""
        return f"{plural(self.numbers, 'number')} in blocks of {self.block}, {levels}{zeros}"


class _Four(NamedTuple):
    """What the answer is made of, and asked."""

    levels: Tensor
    block: int
    outer: int
    w: Tensor
    numbers: int
    bytes_alone: bool

    def __str__(self) -> str:
        return ""


def _records(case: Nibbles, seed: int) -> Sequence[_Four]:
    source = generator(seed, case.numbers, case.block)
    levels = nf4_levels().double()
    if case.drawn:
        inner = torch.rand(_LEVELS - 3, generator=source, dtype=torch.float64) * 2 - 1
        levels = torch.cat([inner, torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)]).sort().values
    w = torch.randn(0 if case.outer else case.numbers, generator=source, dtype=torch.float64)
    if len(w):
        w[0] = -3.0 - w[0].abs()  # so that the first block's largest is negative
    if case.zeros:
        w[case.block : 2 * case.block] = 0.0
    return [_Four(levels, case.block, case.outer or 256, w, case.numbers, bool(case.outer))]


def _use(answer: Callable[..., Any], given: _Four) -> dict[str, Any] | str:
    """Runs on a rank; a text says what came instead."""
    made = answer(given.levels, given.block, given.outer)
    if given.bytes_alone:
        number = number_of(found := made.nbytes(given.numbers))
        return {"bytes": number} if number is not None else f"nbytes() {wrong_kind(type(found).__name__, 'a number')}"
    found = made.encode(given.w)
    if not isinstance(found, tuple | list) or len(found) != 2:
        return f"encode() {wrong_kind(type(found).__name__, 'two things: the bytes and the scales')}"
    packed, scales = (one.clone() if isinstance(one, Tensor) else type(one).__name__ for one in found)
    right_packed, right_scales = _Nibble(given.levels, given.block, given.outer).encode(given.w)
    back = made.decode(right_packed, right_scales, given.numbers)
    return {
        "the bytes": packed,
        "the scales": scales,
        "back": back if isinstance(back, Tensor) else type(back).__name__,
    }


def _judge(given: _Four, found: dict[str, Any] | str) -> str | None:
    if isinstance(found, str):
        return found
    right = _Nibble(given.levels, given.block, given.outer)
    if given.bytes_alone:
        want = right.nbytes(given.numbers)
        return None if found["bytes"] == want else f"nbytes() is {found['bytes']:,}, and {want:,} is right"
    packed, scales = right.encode(given.w)
    wanted = {"the scales": scales, "the bytes": packed, "back": right.decode(packed, scales, given.numbers)}
    return next(filter(None, (_unlike(name, found[name], want, given) for name, want in wanted.items())), None)


def _unlike(name: str, got: Tensor | str, want: Tensor, given: _Four) -> str | None:
    what = "decode(), of the right bytes and scales," if name == "back" else name
    if isinstance(got, Tensor) and got.shape != want.shape:
        return f"{what} {_have(name)} shape {tuple(got.shape)}, and {tuple(want.shape)} is right"
    if isinstance(got, Tensor) and got.dtype != want.dtype:
        return f"{what} {_have(name)} dtype {got.dtype}, and {want.dtype} is right"
    if form := wrong_form(got, want, 1, "what is a block of zeros divided by?"):
        return f"{what}{form}"
    if not isinstance(got, Tensor) or close(got, want):
        return None
    if name == "the bytes":
        place = int((got != want).nonzero()[0])
        mine, other = (f"{int(x[place]) >> 4} and {int(x[place]) & 15}" for x in (got, want))
        return f"the bytes: number {place} holds the codes {mine}, and {other} are right"
    unlike = no_multiple(got, want)
    return f"{what} {unlike if name == 'back' else unlike.replace('is ', 'are ', 1)}"


def _have(name: str) -> str:
    return "has" if name == "back" else "have"


class _Nibble:
    """The right answer, or one with a mistake."""

    def __init__(self, levels: Tensor, block: int, outer: int, *, mistake: str = "") -> None:
        self.levels, self.block, self.outer, self.mistake = levels, block, outer, mistake

    def encode(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Right."""
        rows = F.pad(w, (0, -len(w) % self.block)).view(-1, self.block)
        scales = rows.abs().amax(1)
        if self.mistake == "signed":
            scales = rows.amax(1)
        if self.mistake == "tensor":
            scales = scales.max().expand(len(scales)).clone()
        shares = (rows / torch.where(scales > 0, scales, 1.0).unsqueeze(-1)).flatten()[: len(w)]
        if self.mistake == "even":
            codes = ((shares + 1) * 7.5).round().long()
        elif self.mistake == "below":
            codes = torch.bucketize(shares, self.levels, right=True) - 1
        else:
            codes = (shares.unsqueeze(-1) - self.levels).abs().argmin(-1)
        if self.mistake == "unpacked":
            return codes.to(torch.uint8), scales
        codes = F.pad(codes, (0, len(codes) % 2)).to(torch.uint8)
        high, low = codes[::2], codes[1::2]
        if self.mistake == "halves":
            high, low = codes[: len(codes) // 2], codes[len(codes) // 2 :]
        if self.mistake == "low first":
            high, low = low, high
        return high << 4 | low, scales

    def decode(self, packed: Tensor, scales: Tensor, n: int) -> Tensor:
        """Right."""
        parts = [packed & 15, packed >> 4] if self.mistake == "low first back" else [packed >> 4, packed & 15]
        both = torch.cat(parts) if self.mistake == "halves back" else torch.stack(parts, 1).flatten()
        codes = both[:n]
        values = self.levels[codes.long()]
        if self.mistake == "no scale":
            return values
        if self.mistake == "scale places":
            return values * scales.repeat(self.block)[:n]
        return values * scales.repeat_interleave(self.block)[:n]

    def nbytes(self, n: int) -> int:
        """Right."""
        blocks = -(-n // self.block)
        outer = -(-blocks // self.outer)
        half = -(-n // 2)
        whole = {
            "single": half + 4 * blocks, "no outer": half + blocks, "codes alone": half,
            "both scales": half + 5 * blocks + 4 * outer, "byte each": n + blocks + 4 * outer,
            "of numbers": half + blocks + 4 * -(-n // self.outer), "scale a byte": half + blocks + outer,
            "down": n // 2 + n // self.block + 4 * (n // self.block // self.outer),
            "bits": 8 * (half + blocks + 4 * outer),
        }  # fmt: skip
        return whole.get(self.mistake, half + blocks + 4 * outer)


def _way(mistake: str) -> Callable[..., Any]:
    return partial(_Nibble, mistake=mistake)


_SLIPS: Slips = {
    "all blocks have one scale, that of the whole weight": _way("tensor"),
    "a scale is the largest size of its block, whatever the sign": _way("signed"),
    "the codes are those of even steps, and the levels are not even: look for the nearest one": _way("even"),
    "a number gets the level below it, and not the nearest one": _way("below"),
    "there is a byte for each code, and two of them fit into one": _way("unpacked"),
    "the first of two neighbours belongs into the high half of their byte, which is code << 4": _way("low first"),
    "the first half of the codes lies in the high halves. Two neighbours are to share a byte": _way("halves"),
    "bytes and scales are right. In decode() the first of two neighbours is the high half, packed >> 4": (
        _way("low first back")
    ),
    "bytes and scales are right. decode() gives all high halves first, and neighbours share a byte": (
        _way("halves back")
    ),
    "bytes and scales are right. decode() gives levels, and forgets the scales": _way("no scale"),
    "bytes and scales are right. In decode() a scale belongs to `block` neighbours: repeat_interleave, not repeat": (
        _way("scale places")
    ),
    "each scale has 4 bytes there. It is a code of one byte, and that is the double quantisation": _way("single"),
    "the scales of the scales are missing, 4 bytes each": _way("no outer"),
    "those are the codes alone, without any scales": _way("codes alone"),
    "scales are there both as codes and in fp32": _way("both scales"),
    "a code has half a byte": _way("byte each"),
    "`outer` is a number of scales, not of weights": _way("of numbers"),
    "a scale of scales is a number of fp32, of 4 bytes": _way("scale a byte"),
    "what is left over needs a scale too: round up": _way("down"),
    "those are bits": _way("bits"),
}

_NF4 = asked_exercise(
    key="11.8",
    title="four bits a weight, packed",
    records=_records,
    use=_use,
    judge=_judge,
    slips=_SLIPS,
    levels={
        "codes": Level(
            points=2,
            cases=(Nibbles(numbers=24), Nibbles(numbers=32, block=16)),
            praise="each number at the nearest level of its block, and two of them in a byte",
        ),
        "edges": Level(
            points=2,
            again=True,
            cases=(
                Nibbles(numbers=24, drawn=True),
                Nibbles(numbers=21, block=6),
                Nibbles(numbers=18, block=6, zeros=True),
                Nibbles(numbers=1, block=4),
            ),
            praise="also with other levels, an odd number, a shorter last block, and a block of zeros",
        ),
        "bytes": Level(
            points=1,
            cases=(
                Nibbles(numbers=1_000_001, block=64, outer=256),
                Nibbles(numbers=64 * 256 * 1000, block=64, outer=256),
                Nibbles(numbers=5001, block=32, outer=128),
            ),
            praise="4.127 bits a number, where one fp32 scale a block makes 4.5",
        ),
    },
    hints=(
        "Blocks as in 11.7: F.pad(w, (0, -len(w) % block)).view(-1, block). A scale is the largest size, and numbers "
        "divided by it lie between -1 and 1, as the levels do.",
        "The nearest level: (shares.unsqueeze(-1) - levels).abs().argmin(-1). It is a number from 0 to 15.",
        "With an even number of codes: packed = codes[::2] << 4 | codes[1::2], in uint8. Back: packed >> 4 and "
        "packed & 15, and torch.stack(..., 1).flatten() puts neighbours together again.",
        "Bytes: ceil(n / 2) for the codes. Then blocks = ceil(n / block) scales of one byte, and ceil(blocks / outer) "
        "numbers of 4 bytes.",
    ),
)
