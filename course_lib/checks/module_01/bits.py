"""01.1: a number from its bits, against what PyTorch reads in them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch

from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.said import wrong_kind
from course_lib.checks.kit.spec import Level
from course_lib.comm.ledger import Ledger
from course_lib.verify.numbers import number_of

Kind = Literal["normal", "small", "special"]
_HOW_MANY = 400  # patterns of a case


class Format(NamedTuple):
    """A number format as PyTorch has it."""

    stored: torch.dtype  # whole numbers with as many bits
    dtype: torch.dtype
    exponent_bits: int
    mantissa_bits: int


FORMATS = {
    "fp32": Format(torch.int32, torch.float32, 8, 23),
    "bf16": Format(torch.int16, torch.bfloat16, 8, 7),
    "fp16": Format(torch.int16, torch.float16, 5, 10),
    "fp8 e5m2": Format(torch.int8, torch.float8_e5m2, 5, 2),
}


@dataclass(frozen=True, kw_only=True)
class Patterns:
    """Many patterns of one format: normal numbers, those with exponent field 0, or those with it all ones."""

    format: str
    kind: Kind
    world_size: int = 1

    def __str__(self) -> str:
        kind = {"normal": "", "small": ", exponent bits all 0", "special": ", exponent bits all 1"}[self.kind]
        return self.format + kind


class Number(NamedTuple):
    """The three fields of a pattern."""

    sign: int
    exponent: int
    mantissa: int
    exponent_bits: int
    mantissa_bits: int

    @property
    def bits(self) -> int:
        return (self.sign << self.exponent_bits | self.exponent) << self.mantissa_bits | self.mantissa

    @property
    def factor(self) -> float:
        """1 or -1."""
        return -1.0 if self.sign else 1.0

    @property
    def part(self) -> float:
        """The mantissa as a part of 1."""
        return self.mantissa / 2**self.mantissa_bits

    def power(self, exponent: int, bias: int | None = None) -> float:
        """2 to the exponent minus the bias."""
        return 2.0 ** (exponent - (2 ** (self.exponent_bits - 1) - 1 if bias is None else bias))

    def __str__(self) -> str:
        return f"{self.sign} {self.exponent:0{self.exponent_bits}b} {self.mantissa:0{self.mantissa_bits}b}"


def draw(case: Patterns, seed: int) -> list[Number]:
    """Patterns of the case, the smallest and the largest mantissa among them."""
    form, rng = FORMATS[case.format], random.Random(f"{case}{seed}")
    last, ones = 2**form.mantissa_bits - 1, 2**form.exponent_bits - 1
    exponents = {"normal": range(1, ones), "small": range(1), "special": range(ones, ones + 1)}[case.kind]
    found = [
        Number(rng.randint(0, 1), rng.choice(exponents), rng.randint(0, last), form.exponent_bits, form.mantissa_bits)
        for _ in range(_HOW_MANY)
    ]
    return [n._replace(sign=i, mantissa=m) for n in found[:1] for i in (0, 1) for m in (0, 1, last)] + found


def _read_all(function: Callable[[int, int, int], Any], numbers: Sequence[Number]) -> list[Any]:
    """Runs on a rank: what the function reads in each pattern, the name of a type where it is no number."""
    results = [function(number.bits, number.exponent_bits, number.mantissa_bits) for number in numbers]
    found = [(value, number_of(value)) for value in results]
    return [type(value).__name__ if number is None else float(number) for value, number in found]


def verdict(case: Patterns, numbers: list[Number], reports: tuple[Any, ...], book: Ledger) -> str | None:
    """All patterns must have PyTorch's value."""
    got, want = reports[0], by_torch(case.format, numbers)
    wrong = [i for i in range(len(want)) if not _same(got[i], want[i])]
    if not wrong:
        return None
    first = numbers[wrong[0]]
    if all(map(_alike, got, want)):
        return f"{case}: {first} is {want[wrong[0]]:g}, you read {got[wrong[0]]:g}: the sign of zero is lost"
    if isinstance(got[wrong[0]], str):
        return f"{case}: {first} {wrong_kind(got[wrong[0]], 'a number')}"
    for says, of in SLIPS[case.kind].items():
        if all(_alike(got[i], of(numbers[i])) for i in range(len(want))):
            return f"{case}: {len(wrong)} of {len(want)} patterns are wrong: {says}"
    shared = {got[i] / want[i] for i in wrong if want[i] and math.isfinite(want[i])}
    if len(shared) == 1 and len(wrong) > 1:
        return f"{case}: {len(wrong)} of {len(want)} patterns are exactly {_times(shared.pop())} the right value"
    return f"{case}: {first} is {want[wrong[0]]:g}, you read {got[wrong[0]]:g}"


def by_torch(name: str, numbers: Sequence[Number]) -> list[float]:
    """What PyTorch reads in the patterns."""
    form = FORMATS[name]
    size = 1 + form.exponent_bits + form.mantissa_bits
    stored = [number.bits - (number.sign << size) for number in numbers]  # as signed whole numbers
    return [float(x) for x in torch.tensor(stored, dtype=form.stored).view(form.dtype).double().tolist()]


def _times(ratio: float) -> str:
    """A power of two as such: biases differ by them.

    >>> _times(2.0**112), _times(0.5), _times(3.0)
    ('2**112 x', '0.5 x', '3 x')
    """
    part, exponent = math.frexp(ratio)
    return f"2**{exponent - 1} x" if part == 0.5 and abs(exponent) > 4 else f"{ratio:g} x"


def _same(got: Any, want: float) -> bool:
    """Equal, the sign of zero too."""
    return _alike(got, want) and (want != 0 or math.copysign(1, got) == math.copysign(1, want))


def _alike(got: Any, want: float) -> bool:
    return isinstance(got, float) and (got == want or (math.isnan(got) and math.isnan(want)))


def _as_normal(n: Number, shift: int = 0) -> float:
    return n.factor * (1 + n.part) * n.power(n.exponent + shift)


def _as_small(n: Number, shift: int = 0) -> float:
    return n.factor * n.part * n.power(1 + shift)


_SPECIAL = "this exponent field is special, and you read it as that of a normal number"
SLIPS: Mapping[Kind, Mapping[str, Callable[[Number], float]]] = {
    "normal": {
        "the 1 before the point is missing; it counts, though it is not stored":
            lambda n: n.factor * n.part * n.power(n.exponent),
        "the sign is not read: half of the numbers are negative": lambda n: abs(_as_normal(n)),
        "exactly 0.5 x the right value: the bias is 2**(e-1) - 1, yours is 1 more": lambda n: _as_normal(n, -1),
        "exactly 2.0 x the right value: the bias is 2**(e-1) - 1, yours is 1 less": lambda n: _as_normal(n, 1),
        "127 is the bias of 8 exponent bits; with e bits it is 2**(e-1) - 1":
            lambda n: n.factor * (1 + n.part) * n.power(n.exponent, 127),
        "exactly 2**112 x the right value: 15 is the bias of 5 exponent bits; what is it for 8, and for e?":
            lambda n: n.factor * (1 + n.part) * n.power(n.exponent, 15) if n.exponent_bits == 8 else math.inf,
    },
    "small": {
        _SPECIAL: lambda n: _as_normal(n),
        "exactly 0.5 x the right value: the exponent is 1 - bias here, not 0 - bias": lambda n: _as_small(n, -1),
        "every number is 0, but only the one whose mantissa is 0 too is": lambda n: n.factor * 0.0,
    },
    "special": {
        _SPECIAL: lambda n: _as_normal(n),
        "inf for every pattern: with a mantissa other than 0 it is nan": lambda n: n.factor * math.inf,
        "nan for every pattern: with a mantissa of 0 it is inf": lambda n: math.nan,
        "the sign is not read: there is -inf too": lambda n: math.nan if n.mantissa else math.inf,
    },
}  # fmt: skip


def _level(kind: Kind, points: int, formats: tuple[str, ...], praise: str) -> Level:
    cases = tuple(Patterns(format=name, kind=kind) for name in formats)
    return Level(points=points, again=kind == "normal", cases=cases, praise=praise)


VALUE_OF_BITS = ProbeExercise(
    key="01.1",
    title="a number from its bits",
    inputs=draw,
    probe=_read_all,
    verdict=verdict,
    levels={
        "normal": _level("normal", 2, ("bf16", "fp16", "fp8 e5m2", "fp32"), "as PyTorch reads them, in four formats"),
        "small": _level("small", 2, ("fp16", "bf16", "fp8 e5m2"), "both zeros and the numbers next to them as well"),
        "special": _level("special", 1, ("fp16", "bf16", "fp8 e5m2"), "inf where it is inf, nan where it is nan"),
    },
    hints=(
        "Cut the pattern with shifts: mantissa = bits & (2**mantissa_bits - 1); bits >> mantissa_bits holds the rest.",
        "A normal number is (-1)**sign * (1 + mantissa / 2**mantissa_bits) * 2.0**(exponent - bias). "
        "For fp16, with 5 exponent bits, the bias is 15; for bf16 with 8 it is 127. Which formula gives both?",
        "An exponent field of 0: there is no 1 before the point, and the power is that of field 1. "
        "So the numbers go on evenly down to 0.",
        "An exponent field of all ones: float('inf') if the mantissa is 0, with the sign; else float('nan').",
    ),
)
