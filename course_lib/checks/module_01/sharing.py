"""01.5 and 01.8: bytes of each ZeRO stage on the fullest rank, and how many GPUs that takes."""

from __future__ import annotations

from math import ceil, nan

from course_lib.checks.kit.formula import Call, Formula, formula_exercise
from course_lib.checks.kit.spec import Level
from course_lib.checks.module_01 import draw
from course_lib.costs.model.conventions import Convention, find_convention
from course_lib.costs.model.states import state_bytes
from course_lib.units import GB


def zero_bytes(parameters: int, ranks: int, stage: int, weights: int, gradients: int, optimizer: int) -> int:
    """What the fullest rank holds."""
    bytes_each = Convention(
        name="drawn", weights=weights, gradients=gradients, optimizer=optimizer, assumes="", source=""
    )
    return state_bytes(parameters, bytes_each, zero_stage=stage, shards=ranks).total


def _everything_divided(n: int, p: int, stage: int, w: int, g: int, o: int) -> int:
    return (w + g + o) * ceil(n / p)


def _remainder_forgotten(n: int, p: int, stage: int, w: int, g: int, o: int) -> int:
    whole, shared = _whole_and_shared(stage, w, g, o)
    return whole * n + shared * (n // p)


def _bytes_divided(n: int, p: int, stage: int, w: int, g: int, o: int) -> int:
    whole, shared = _whole_and_shared(stage, w, g, o)
    return whole * n + ceil(shared * n / p)


def _bytes_divided_each(n: int, p: int, stage: int, w: int, g: int, o: int) -> int:
    return sum(ceil(each * n / p) if stage >= first else each * n for each, first in ((w, 3), (g, 2), (o, 1)))


def _only_what_a_stage_adds(n: int, p: int, stage: int, w: int, g: int, o: int) -> int:
    return sum(each * (ceil(n / p) if stage == at else n) for each, at in ((w, 3), (g, 2), (o, 1)))


def _weights_first(n: int, p: int, stage: int, w: int, g: int, o: int) -> int:
    return sum(each * (ceil(n / p) if stage >= first else n) for each, first in ((w, 1), (g, 2), (o, 3)))


def _whole_and_shared(stage: int, w: int, g: int, o: int) -> tuple[int, int]:
    """Bytes per parameter that every rank holds, and those that the ranks share."""
    return {0: (w + g + o, 0), 1: (w + g, o), 2: (w, g + o), 3: (0, w + g + o)}[stage]


def _bytes_case(text: str, stage: int, *, divides: bool = True, usual: bool = True, ranks: int = 0) -> Call:
    def arguments(seed: int) -> tuple[int, int, int, int, int, int]:
        p = ranks or draw.choice(f"ranks{text}{stage}", seed, (12, 24, 40, 56))
        n = p * draw.number(f"shard{text}{stage}", seed, 10**6, 10**8)
        each = (2, 2, 12) if usual else draw.choice(f"bytes{stage}", seed, ((4, 4, 8), (2, 4, 12), (2, 2, 16)))
        return n if divides else n + draw.number(f"rest{stage}", seed, 1, p // 2), p, stage, *each

    return Call(text=f"{text}, stage {stage}", arguments=arguments)


def _show_bytes(n: int, p: int, stage: int, w: int, g: int, o: int) -> str:
    return f"{n:,} parameters, {p} ranks, {w} + {g} + {o} bytes"


ZERO_BYTES = formula_exercise(
    key="01.5",
    title="memory of the ZeRO stages",
    formula=Formula(
        name="number of bytes",
        answer=zero_bytes,
        show=_show_bytes,
        typical=(
            (
                lambda n, p, stage, w, g, o: zero_bytes(n, p, min(stage + 1, 3), w, g, o),
                "that is the next stage: 1 shards the optimizer's, 2 the gradients too, 3 the weights too",
            ),
            (
                lambda n, p, stage, w, g, o: zero_bytes(n, p, max(stage - 1, 0), w, g, o),
                "that is the stage before: 1 shards the optimizer's, 2 the gradients too, 3 the weights too",
            ),
            (
                _only_what_a_stage_adds,
                "you divide only what this stage adds; it divides what the stages before it do too",
            ),
            (_weights_first, "you divide the weights first; the stages begin with the optimizer's states"),
            (_everything_divided, "everything is divided, whatever the stage: what does each rank still hold whole?"),
            (_remainder_forgotten, "the remainder is forgotten: the fullest rank takes one number more"),
            (_bytes_divided, "you divide bytes; the ranks divide numbers, and a number is not cut"),
            (_bytes_divided_each, "you divide bytes; the ranks divide numbers, and a number is not cut"),
            (lambda n, p, stage, w, g, o: zero_bytes(n, p, stage, 2, 2, 12), "2, 2 and 12 bytes, whatever is given"),
        ),
    ),
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


def gpus_needed(parameters: int, activations: int, memory: int, stage: int) -> int | None:
    """The smallest number of GPUs, each with activations of its own; None if no number is enough."""
    zero = find_convention("zero")
    whole, shared = _whole_and_shared(stage, zero.weights, zero.gradients, zero.optimizer)
    room = memory - activations - whole * parameters
    if not shared:
        return 1 if room >= 0 else None
    longest_shard = room // shared
    return -(-parameters // longest_shard) if longest_shard > 0 else None


def _activations_shared(n: int, activations: int, memory: int, stage: int) -> int | None:
    whole = _whole_and_shared(stage, 2, 2, 12)[0] * n
    room = memory - whole
    return -(-(16 * n - whole + activations) // room) if room > 0 else None


def _numbers_cut(n: int, activations: int, memory: int, stage: int) -> float:
    """The quotient of bytes: right where a number may be cut."""
    whole, shared = _whole_and_shared(stage, 2, 2, 12)
    room = memory - activations - whole * n
    return ceil(shared * n / room) if shared and room > 0 else nan


def _search_ended(n: int, activations: int, memory: int, stage: int) -> float | None:
    """What a search up to 1,000 GPUs or more gives, where more are needed."""
    return None if (gpus_needed(n, activations, memory, stage) or 0) > 1000 else nan


def _gpus_case(text: str, stage: int, *, activations: bool, fits: bool = True) -> Call:
    def arguments(seed: int) -> tuple[int, int, int, int]:
        memory = draw.choice(f"{text}{stage}", seed, (40, 80)) * GB
        whole = _whole_and_shared(stage, 2, 2, 12)[0]
        most = memory // whole if whole else 5 * 10**11
        n = draw.number(f"n{text}{stage}", seed, most // 4, most // 2) if fits else int(1.5 * most)
        room = memory - whole * n
        filled = draw.number(f"a{text}{stage}", seed, room // 8, room // 2) if activations and fits else 0
        return n, filled, memory, stage

    return Call(text=f"{text}, stage {stage}", arguments=arguments)


def _show_gpus(n: int, activations: int, memory: int, stage: int) -> str:
    size = f"{memory:,} bytes" if memory % GB else f"{memory // GB} GB"
    return f"{n:,} parameters, {activations:,} bytes of activations, {size}"


def _fixed(text: str, *arguments: int) -> Call:
    return Call(text=f"{text}, stage {arguments[-1]}", arguments=lambda seed: arguments)


def _room_used_up(seed: int) -> tuple[int, int, int, int]:
    """Everything divides, and still no number of GPUs is enough: activations fill each of them."""
    return draw.number("full", seed, 10**9, 10**10), 80 * GB, 80 * GB, 3


GPUS_NEEDED = formula_exercise(
    key="01.8",
    title="how many GPUs",
    formula=Formula(
        name="number of GPUs",
        answer=gpus_needed,
        show=_show_gpus,
        typical=(
            (lambda n, a, m, stage: gpus_needed(n, 0, m, stage), "the activations are forgotten"),
            (_search_ended, "you stopped searching at some number, and more GPUs than that do it"),
            (_numbers_cut, "the ranks hold whole numbers: the fullest has parameters / ranks of them, rounded up"),
            (lambda n, a, m, stage: gpus_needed(n, a, m - 1, stage), "exactly full still fits: <=, not <"),
            (_activations_shared, "activations are not shared: every GPU has its own, on any number of them"),
            (
                lambda n, a, m, stage: (gpus_needed(n, a, m, stage) or 0) - 1,
                "with one GPU less than needed: round up, and let the fullest rank fit",
            ),
            (lambda n, a, m, stage: gpus_needed(n, a, m, 3), "that is stage 3; before it something stays whole"),
        ),
    ),
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
