"""07.2: what a GPU of dp x tp holds, and the longest sequence that it has room for."""

from __future__ import annotations

import random
from math import ceil, floor
from typing import NamedTuple

from course_lib.checks.kit.sheet import Ask, Group, NumberExercise
from course_lib.checks.kit.spec import BF16
from course_lib.checks.module_07.llama import Bytes, bytes_of, numbers_of
from course_lib.config import load_model
from course_lib.units import GB, GiB

_STATES = 16  # bytes of each parameter: weight, gradient and Adam


class Memory(NamedTuple):
    """A Llama's numbers in matrices, norms and root; a token's bytes; degrees, tokens, and GB of a GPU."""

    matrices: int
    norms: int
    root: int
    inside: int
    between: int
    everywhere: int
    dp: int
    tp: int
    S: int
    budget: int

    @property
    def token(self) -> Bytes:
        """What a token leaves."""
        return Bytes(self.inside, self.between, self.everywhere)

    @property
    def states(self) -> float:
        """Bytes that last."""
        return _STATES * (self.matrices / self.tp + self.norms) / self.dp

    @property
    def unit(self) -> float:
        """Bytes of the largest unit while it is gathered."""
        return BF16 * self.root / self.tp

    @property
    def alone(self) -> float:
        """Bytes with FSDP on all GPUs, without activations."""
        return _STATES * (self.matrices + self.norms) / (self.dp * self.tp) + BF16 * self.root

    def fitting(self, fixed: float, of_token: float, each: int = 1) -> int:
        """Tokens that fit beside so many bytes, a multiple of `each`."""
        return floor((self.budget * GB - fixed) / of_token) // each * each


_DEGREES = ((2, 8, 40), (8, 2, 48), (4, 2, 40), (2, 4, 40), (8, 4, 24))  # no rule is met by chance


def memory(seed: int) -> Memory:
    """The 8B on the lesson's eight GPUs, unless an instructor asks for other numbers."""
    draw = random.Random(seed)
    degrees = (2, 4, 32) if seed == 0 else draw.choice(_DEGREES)
    dp, tp, budget = degrees
    model = load_model("llama3_1_8b")
    return Memory(
        *numbers_of(model), *bytes_of(model), dp, tp, 8192 if seed == 0 else draw.choice((4096, 6144)), budget
    )


_OTHER_UNIT = "in bytes, or in GiB? Here GB are asked, of 10^9 bytes"
_OWN_TEXT = "divided by dp? Ranks along dp read sequences of their own, and each keeps all that its sequence leaves"
_ALSO_STATES = "what lasts from step to step takes its room first"
_ALSO_UNIT = "the gathered unit takes its room as well"
_DOWN = "a part of a token? Round down to whole ones"


_MEMORY = NumberExercise(
    key="07.2",
    title="the longest sequence that fits",
    given=memory,
    levels={
        "states": Group(2, (
            Ask("states_gb", "GB", lambda g: g.states / GB, {
                "the norms were cut along tp too. Each rank along tp has them whole, and dp alone shares them": (
                    lambda g: _STATES * (g.matrices + g.norms) / g.dp / g.tp / GB
                ),
                "the norms are cut along dp, as everything else": (
                    lambda g: _STATES * (g.matrices / g.tp / g.dp + g.norms) / GB
                ),
                "the norms are missing": lambda g: _STATES * g.matrices / g.tp / g.dp / GB,
                "tp has cut, and FSDP has not: the dp ranks share what tp leaves": (
                    lambda g: _STATES * (g.matrices / g.tp + g.norms) / GB
                ),
                "FSDP has cut, and tp has not": lambda g: _STATES * (g.matrices + g.norms) / g.dp / GB,
                "the weights alone? Gradients and Adam's numbers last as well, 16 bytes in all": (
                    lambda g: 2 * (g.matrices / g.tp + g.norms) / g.dp / GB
                ),
                _OTHER_UNIT: (lambda g: g.states, lambda g: g.states / GiB),
            }, collective=False),
            Ask("unit_gb", "GB", lambda g: g.unit / GB, {
                "tp's part of it is enough: a rank never sees the rest of a matrix": lambda g: BF16 * g.root / GB,
                "that is the piece of it. While it computes, the unit is gathered from all dp ranks": (
                    lambda g: BF16 * g.root / g.tp / g.dp / GB
                ),
                "gathered along tp instead of dp": lambda g: BF16 * g.root / g.dp / GB,
                "what is gathered are bf16 weights alone, of 2 bytes": lambda g: _STATES * g.root / g.tp / GB,
                "4 bytes a number? What is gathered is bf16, of 2": lambda g: 2 * g.unit / GB,
                _OTHER_UNIT: (lambda g: g.unit, lambda g: g.unit / GiB),
            }, collective=False),
        ), "right: both axes share what lasts, and tp alone what is gathered"),
        "activations": Group(2, (
            Ask("plain_gb", "GB", lambda g: g.S * g.token.on_rank(g.tp, False) / GB, {
                "that is with sequence parallelism. Without it each rank has all that lies between the blocks": (
                    lambda g: g.S * g.token.on_rank(g.tp) / GB
                ),
                "everything was divided by tp, also what lies between the blocks and what every rank has": (
                    lambda g: g.S * sum(g.token) / g.tp / GB
                ),
                "nothing was shared. Ranks along tp divide what lies inside the blocks": (
                    lambda g: g.S * sum(g.token) / GB
                ),
                _OWN_TEXT: lambda g: g.S * g.token.on_rank(g.tp, False) / g.dp / GB,
                "what every rank has is missing": lambda g: g.S * (g.inside / g.tp + g.between) / GB,
                _OTHER_UNIT: (
                    lambda g: g.S * g.token.on_rank(g.tp, False),
                    lambda g: g.S * g.token.on_rank(g.tp, False) / GiB,
                ),
            }, collective=False),
            Ask("sequence_gb", "GB", lambda g: g.S * g.token.on_rank(g.tp) / GB, {
                "that is without sequence parallelism, which shares what lies between the blocks": (
                    lambda g: g.S * g.token.on_rank(g.tp, False) / GB
                ),
                "everything was divided by tp, also what every rank has whole": (
                    lambda g: g.S * sum(g.token) / g.tp / GB
                ),
                "only what lies between the blocks was divided by tp": (
                    lambda g: g.S * (g.inside + g.between / g.tp + g.everywhere) / GB
                ),
                _OWN_TEXT: lambda g: g.S * g.token.on_rank(g.tp) / g.dp / GB,
                "what every rank has is missing": lambda g: g.S * (g.inside + g.between) / g.tp / GB,
            }, collective=False),
        ), "right. tp shares a sequence, and sequence parallelism the part of it that tp alone leaves whole"),
        "longest": Group(2, (
            Ask("longest_fsdp", "tokens", lambda g: g.fitting(g.alone, sum(g.token)), {
                _ALSO_STATES: lambda g: g.fitting(BF16 * g.root, sum(g.token)),
                f"{_ALSO_UNIT}, and with FSDP alone it is gathered whole": (
                    lambda g: g.fitting(g.alone - BF16 * g.root, sum(g.token)),
                    lambda g: g.fitting(g.alone - BF16 * g.root + g.unit, sum(g.token)),
                ),
                _DOWN: (
                    lambda g: (g.budget * GB - g.alone) / sum(g.token),
                    lambda g: ceil((g.budget * GB - g.alone) / sum(g.token)),
                ),
                "only dp GPUs share the states? FSDP alone takes all dp x tp of them": (
                    lambda g: g.fitting(_STATES * (g.matrices + g.norms) / g.dp + BF16 * g.root, sum(g.token)),
                    lambda g: int(
                        (g.budget * GB - _STATES * (g.matrices + g.norms) / g.dp - BF16 * g.root) / sum(g.token)
                    ),
                ),
            }, collective=False),
            Ask("longest_plain", "tokens", lambda g: g.fitting(g.states + g.unit, g.token.on_rank(g.tp, False)), {
                _ALSO_STATES: lambda g: g.fitting(g.unit, g.token.on_rank(g.tp, False)),
                _ALSO_UNIT: lambda g: g.fitting(g.states, g.token.on_rank(g.tp, False)),
                "that is with sequence parallelism": lambda g: g.fitting(g.states + g.unit, g.token.on_rank(g.tp)),
                "tp times as long as with FSDP alone? What lies between the blocks is not shared": (
                    lambda g: g.tp * g.fitting(g.alone, sum(g.token))
                ),
                _DOWN: (
                    lambda g: (g.budget * GB - g.states - g.unit) / g.token.on_rank(g.tp, False),
                    lambda g: ceil((g.budget * GB - g.states - g.unit) / g.token.on_rank(g.tp, False)),
                ),
            }, follows=lambda own, g: int(
                (g.budget - own["states_gb"] - own["unit_gb"]) * g.S / own["plain_gb"]
            ), collective=False),
            Ask("longest", "tokens", lambda g: g.fitting(g.states + g.unit, g.token.on_rank(g.tp), g.tp), {
                "with sequence parallelism each rank has equally many tokens: round down to a multiple of tp": (
                    lambda g: g.fitting(g.states + g.unit, g.token.on_rank(g.tp)),
                    lambda g: g.fitting(g.states + g.unit, g.token.on_rank(g.tp), g.tp) + g.tp,
                ),
                _ALSO_STATES: lambda g: g.fitting(g.unit, g.token.on_rank(g.tp), g.tp),
                _ALSO_UNIT: lambda g: g.fitting(g.states, g.token.on_rank(g.tp), g.tp),
                "that is without sequence parallelism": (
                    lambda g: g.fitting(g.states + g.unit, g.token.on_rank(g.tp, False)),
                    lambda g: g.fitting(g.states + g.unit, g.token.on_rank(g.tp, False), g.tp),
                ),
                "dp times as long? Ranks along dp do not share a sequence": (
                    lambda g: g.dp * g.fitting(g.states + g.unit, g.token.on_rank(g.tp), g.tp)
                ),
            }, follows=lambda own, g: int(
                (g.budget - own["states_gb"] - own["unit_gb"]) * g.S / own["sequence_gb"]
            ) // g.tp * g.tp, collective=False),
        ), "right: the same GPUs read a sequence several times as long, because tp of them read it together"),
    },
    hints=(
        "A rank has a tp-th of each matrix and every norm. Of that it keeps a dp-th, with 16 bytes for each number.",
        "While the root computes, its weights are gathered along dp: a tp-th of it in bf16.",
        "A token has inside / tp + between + everywhere bytes on each rank that reads it. Sequence parallelism "
        "divides `between` by tp as well.",
        "budget * 1e9 bytes, less the states and less the unit, are for activations. Divide by the bytes of a token.",
        "FSDP alone is dp * tp ranks along dp and one along tp.",
    ),
)  # fmt: skip
