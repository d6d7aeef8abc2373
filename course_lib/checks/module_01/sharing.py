"""01.5 and 01.8: bytes of each ZeRO stage on the fullest rank, and how many GPUs that takes."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, nan
from typing import NamedTuple

from course_lib.checks.kit.formula import Call, Formula, formula_exercise
from course_lib.checks.kit.spec import Level
from course_lib.checks.module_01 import draw
from course_lib.costs.model.conventions import Convention, find_convention
from course_lib.costs.model.states import state_bytes
from course_lib.units import GB


class States(NamedTuple):
    """Parameters, ranks, ZeRO's stage, and bytes of each parameter's weight, gradient and optimizer states."""

    n: int
    p: int
    stage: int
    w: int
    g: int
    o: int

    @property
    def right(self) -> int:
        """What the fullest rank holds."""
        each = Convention(name="drawn", weights=self.w, gradients=self.g, optimizer=self.o, assumes="", source="")
        return state_bytes(self.n, each, zero_stage=self.stage, shards=self.p).total

    @property
    def shard(self) -> int:
        """Numbers of the longest one."""
        return ceil(self.n / self.p)

    def split(self) -> tuple[int, int]:
        """Bytes per parameter that every rank holds, and those that the ranks share."""
        return _whole_and_shared(self.stage, self.w, self.g, self.o)

    def summed(self, part: Callable[[int, int], int], firsts: tuple[int, int, int] = (3, 2, 1)) -> int:
        """`part` of the bytes of each kind, and the stage from which on it is shared."""
        return sum(part(each, first) for each, first in zip((self.w, self.g, self.o), firsts, strict=True))


def _whole_and_shared(stage: int, w: int, g: int, o: int) -> tuple[int, int]:
    """Bytes per parameter that every rank holds, and those that the ranks share."""
    return {0: (w + g + o, 0), 1: (w + g, o), 2: (w, g + o), 3: (0, w + g + o)}[stage]


def _bytes_case(text: str, stage: int, *, divides: bool = True, usual: bool = True, ranks: int = 0) -> Call:
    def arguments(seed: int) -> States:
        p = ranks or draw.choice(f"ranks{text}{stage}", seed, (12, 24, 40, 56))
        n = p * draw.number(f"shard{text}{stage}", seed, 10**6, 10**8)
        each = (2, 2, 12) if usual else draw.choice(f"bytes{stage}", seed, ((4, 4, 8), (2, 4, 12), (2, 2, 16)))
        return States(n if divides else n + draw.number(f"rest{stage}", seed, 1, p // 2), p, stage, *each)

    return Call(text=f"{text}, stage {stage}", arguments=arguments)


STAGES = "1 shards the optimizer's, 2 the gradients too, 3 the weights too"
BYTES = Formula(
    name="number of bytes",
    answer=lambda s: s.right,
    show=lambda s: f"{s.n:,} parameters, {s.p} ranks, {s.w} + {s.g} + {s.o} bytes",
    slips={
        f"that is the next stage: {STAGES}": lambda s: s._replace(stage=min(s.stage + 1, 3)).right,
        f"that is the stage before: {STAGES}": lambda s: s._replace(stage=max(s.stage - 1, 0)).right,
        "you divide only what this stage adds; it divides what the stages before it do too":
            lambda s: s.summed(lambda each, at: each * (s.shard if s.stage == at else s.n)),
        "you divide the weights first; the stages begin with the optimizer's states":
            lambda s: s.summed(lambda each, first: each * (s.shard if s.stage >= first else s.n), (1, 2, 3)),
        "everything is divided, whatever the stage: what does each rank still hold whole?":
            lambda s: (s.w + s.g + s.o) * s.shard,
        "the remainder is forgotten: the fullest rank takes one number more":
            lambda s: s.split()[0] * s.n + s.split()[1] * (s.n // s.p),
        "you divide bytes; the ranks divide numbers, and a number is not cut": (
            lambda s: s.split()[0] * s.n + ceil(s.split()[1] * s.n / s.p),
            lambda s: s.summed(lambda each, first: ceil(each * s.n / s.p) if s.stage >= first else each * s.n),
        ),
        "2, 2 and 12 bytes, whatever is given": lambda s: s._replace(w=2, g=2, o=12).right,
    },
)  # fmt: skip

_ZERO_BYTES = formula_exercise(
    key="01.5",
    title="memory of the ZeRO stages",
    formulas=(BYTES,),
    levels={
        "stages": Level(
            points=2, cases=tuple(_bytes_case("equal shards", stage) for stage in range(4)), praise="all four stages"
        ),
        "remainder": Level(
            points=2,
            cases=tuple(_bytes_case("a remainder", stage, divides=False) for stage in (3, 2, 1)),
            praise="the fullest rank, where the parameters do not divide",
        ),
        "formats": Level(
            points=1,
            cases=(
                *(_bytes_case("other formats", stage, divides=False, usual=False) for stage in range(4)),
                _bytes_case("one rank", 3, ranks=1),
            ),
            praise="with other formats, and on one rank",
        ),
    },
    hints=(
        "Three terms: weights, gradients, optimizer. Each is bytes x all parameters, or, by the stage, x one shard.",
        "Shards are those of torch.tensor_split: the first ranks have one number more. The longest has "
        "-(-parameters // ranks) numbers, which is the quotient rounded up, without floats.",
        "Stage 1 shards the optimizer's states, stage 2 the gradients as well, stage 3 the weights as well.",
    ),
)


class _Fit(NamedTuple):
    """Parameters, bytes of activations and of memory on each GPU, and ZeRO's stage."""

    n: int
    activations: int
    memory: int
    stage: int

    @property
    def split(self) -> tuple[int, int]:
        """Bytes per parameter that every GPU holds, and those that they share."""
        zero = find_convention("zero")
        return _whole_and_shared(self.stage, zero.weights, zero.gradients, zero.optimizer)

    @property
    def room(self) -> int:
        """Bytes that are left for what is shared."""
        return self.memory - self.activations - self.split[0] * self.n

    @property
    def right(self) -> int | None:
        """The smallest number of GPUs; None if no number is enough."""
        if not self.split[1]:
            return 1 if self.room >= 0 else None
        longest_shard = self.room // self.split[1]
        return -(-self.n // longest_shard) if longest_shard > 0 else None

    @property
    def numbers_cut(self) -> float:
        """The quotient of bytes: right where a number may be cut."""
        return ceil(self.split[1] * self.n / self.room) if self.split[1] and self.room > 0 else nan

    @property
    def activations_shared(self) -> float | None:
        """As if each GPU had a part of them, where there are some and something is shared."""
        room = self.room + self.activations
        if not (self.activations and self.split[1]):
            return nan
        return -(-(self.split[1] * self.n + self.activations) // room) if room > 0 else None


def _gpus_case(text: str, stage: int, *, activations: bool, fits: bool = True) -> Call:
    def arguments(seed: int) -> _Fit:
        memory = draw.choice(f"{text}{stage}", seed, (40, 80)) * GB
        whole = _whole_and_shared(stage, 2, 2, 12)[0]
        most = memory // whole if whole else 5 * 10**11
        n = draw.number(f"n{text}{stage}", seed, most // 4, most // 2) if fits else int(1.5 * most)
        room = memory - whole * n
        filled = draw.number(f"a{text}{stage}", seed, room // 8, room // 2) if activations and fits else 0
        return _Fit(n, filled, memory, stage)

    return Call(text=f"{text}, stage {stage}", arguments=arguments)


def _show_gpus(g: _Fit) -> str:
    size = f"{g.memory:,} bytes" if g.memory % GB else f"{g.memory // GB} GB"
    return f"{g.n:,} parameters, {g.activations:,} bytes of activations, {size}"


def _fixed(text: str, *arguments: int) -> Call:
    return Call(text=f"{text}, stage {arguments[-1]}", arguments=lambda seed: _Fit(*arguments))


def _room_used_up(seed: int) -> _Fit:
    """Everything divides, and still no number of GPUs is enough: activations fill each of them."""
    return _Fit(draw.number("full", seed, 10**9, 10**10), 80 * GB, 80 * GB, 3)


GPUS = Formula(
    name="number of GPUs",
    answer=lambda g: g.right,
    show=_show_gpus,
    slips={
        "the activations are forgotten": lambda g: g._replace(activations=0).right,
        "you stopped searching at some number, and more GPUs than that do it":
            lambda g: None if (g.right or 0) > 1000 else nan,
        "the ranks hold whole numbers: the fullest has parameters / ranks of them, rounded up": lambda g: g.numbers_cut,
        "exactly full still fits: <=, not <": lambda g: g._replace(memory=g.memory - 1).right,
        "activations are not shared: every GPU has its own, on any number of them": lambda g: g.activations_shared,
        "with one GPU less than needed: round up, and let the fullest rank fit": lambda g: (g.right or 0) - 1,
        "that is stage 3; before it something stays whole": lambda g: g._replace(stage=3).right,
    },
)  # fmt: skip

_GPUS_NEEDED = formula_exercise(
    key="01.8",
    title="how many GPUs",
    formulas=(GPUS,),
    levels={
        "states": Level(
            points=2,
            cases=(
                *(_gpus_case("states alone", stage, activations=False) for stage in (3, 1, 2)),
                _fixed("ten numbers", 10, 0, 60, 3),
                _fixed("hardly any room", 9 * GB, 0, 36 * GB + 10**6, 1),
            ),
            praise="exact for the states alone",
        ),
        "activations": Level(
            points=2,
            cases=(
                *(_gpus_case("with activations", stage, activations=True) for stage in (3, 1, 2)),
                _fixed("filled to the last byte", 70 * GB, 10 * GB, 80 * GB, 3),
            ),
            praise="and with activations, which no number of GPUs makes smaller",
        ),
        "never": Level(
            points=1,
            cases=(
                *(_gpus_case("too large", stage, activations=False, fits=False) for stage in (1, 2, 0)),
                _gpus_case("a whole copy fits", 0, activations=True),
                Call(text="no room left, stage 3", arguments=_room_used_up),
            ),
            praise="and None where no number is enough",
        ),
    },
    hints=(
        "Start from one GPU: what is left of its memory when the activations and all that stays whole are in it?",
        "What is left, divided by the bytes of each shared number and rounded down, is the longest shard that fits.",
        "parameters / longest shard, rounded up, is the answer: -(-parameters // longest). A shard of 0 numbers "
        "helps nobody: None.",
        "Stage 0 shares nothing: one GPU does, or none.",
    ),
)
