"""04.6: bubble, idle share and activations in flight of every schedule, as a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from math import isclose, nan
from random import Random
from typing import Any, Literal

from course_lib.checks.kit import formula
from course_lib.checks.kit.formula import Call, Formula, Report, formula_exercise
from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.spec import Level
from course_lib.comm.ledger import Ledger
from course_lib.costs.comm.pipeline import pipeline_bubble_s, pipeline_in_flight

Part = Literal["bubble", "share", "held"]
Where = Literal["middle", "few", "first", "last"]
PARTS: tuple[Part, ...] = ("bubble", "share", "held")
Numbers = tuple[str, int, int, int, int, float, float, float]  # schedule, p, m, v, rank, F, B, W
NOT_ZB = "gpipe 1f1b interleaved"
TOGETHER = "returned {}, not three things: return bubble_s, idle_share, in_flight"


@dataclass(frozen=True, kw_only=True)
class Ask(Call):
    """One call, of which one number is looked at."""

    part: Part


def bubble(schedule: str, p: int, m: int, v: int, rank: int, F: float, B: float, W: float) -> float:
    """Seconds that each rank waits."""
    return pipeline_bubble_s(
        schedule,
        n_ranks=p,
        n_microbatches=m,
        forward_s=F,
        backward_input_s=B,
        backward_weight_s=W,
        stages_per_rank=v,
    )


def share(schedule: str, p: int, m: int, v: int, rank: int, F: float, B: float, W: float) -> float:
    """Of the whole step."""
    return part_of(bubble(schedule, p, m, v, rank, F, B, W), m * (F + B + W))


def part_of(waits: float, computes: float) -> float:
    """Waiting as a share of waiting and computing."""
    return waits / (computes + waits)


def in_flight(schedule: str, p: int, m: int, v: int, rank: int, F: float, B: float, W: float) -> int:
    """Activations of one micro-batch at one stage that the rank holds at most."""
    return pipeline_in_flight(schedule, n_ranks=p, n_microbatches=m, rank=rank, stages_per_rank=v)


def only(schedules: str, wrong: Callable[..., float]) -> Callable[..., float]:
    """A likely wrong answer for one schedule, or for several."""
    return lambda name, *rest: wrong(name, *rest) if name in schedules.split() else nan


def whole(p: int, m: int, v: int, rank: int, F: float, B: float, W: float) -> float:
    """GPipe's bubble."""
    return (p - 1) * (F + B + W)


def forwards_first(p: int, v: int, rank: int) -> int:
    """Forwards before the first backward, interleaved, if there are so many."""
    return 2 * (p - rank - 1) + (v - 1) * p + 1


EACH = "each rank waits equally long: what it waits less before its first forward, it waits after its last backward"
EQUAL = "that is right only if F = B = W, and here they differ"
DOWN = "rounded down to whole seconds: / and not //"
BUBBLE = Formula(
    name="bubble",
    answer=bubble,
    tolerance=1e-6,  # a tensor's fp32
    show=lambda *numbers: show(*numbers),
    typical=(
        (lambda s, p, *n: bubble(s, p, *n) * p / (p - 1), "the first rank starts at once: p - 1 others are waited for"),
        (lambda s, p, *n: bubble(s, p, *n) * p, "that is all ranks together; one rank's is asked"),
        (lambda *numbers: share(*numbers), "that is the idle share; the bubble comes first"),
        (
            only("zb-h1", lambda s, p, m, v, i, F, B, W: (p - 1) * (F + B)),
            "nobody waits for a W any more, that is one half; W also fills part of the waits that are left",
        ),
        (only(NOT_ZB, lambda s, p, m, v, i, F, B, W: (p - 1) * (F + B) / v), "a whole backward is B + W"),
        (only(NOT_ZB, lambda s, p, m, v, i, F, B, W: (p - 1) * (F + 2 * B) / v), "a whole backward is B + W, not 2 B"),
        (only(NOT_ZB, lambda s, p, m, v, i, F, B, W: (p - 1) * F / v), "backwards are waited for too"),
        (only(NOT_ZB, lambda s, p, m, v, i, F, B, W: i * (F + B + W) / v), EACH),
        *((lambda s, p, m, v, i, *d, k=k: bubble(s, p, m, v, i, d[k], d[k], d[k]), EQUAL) for k in range(3)),
        (lambda s, p, m, v, i, F, B, W: (p - 1) / m * (F + B + W), "the bubble is the same for every m"),
        (lambda s, p, m, v, i, F, B, W: (p - 1) / m, "that is a ratio; seconds are asked"),
        (
            only("1f1b", lambda s, *n: whole(*n) * 2 / 3),
            "a third less than GPipe's? 1F1B's order saves memory, not time",
        ),
        (only("interleaved", lambda s, *n: whole(*n)), "v stages on a rank: each of its waits is 1/v as long"),
        (only("interleaved", lambda s, *n: whole(*n) * n[2]), "times v? A stage is smaller, a wait shorter"),
        (only("interleaved", lambda s, *n: whole(*n) // n[2]), DOWN),
        (only("interleaved", lambda s, p, m, v, i, F, B, W: (p - 1) * ((F + B + W) // v)), DOWN),
        (only("zb-h1", lambda s, *n: whole(*n)), "in ZB-H1 a rank computes weights' gradients while it waits"),
        (
            only("zb-h1", lambda s, p, m, v, i, F, B, W: (p - 1) * (F + B - 2 * W)),
            "that is ZB-H2, which holds about twice the activations; ZB-H1 leaves F + B - W",
        ),
        (only("zb-h1", lambda *_: 0), "no bubble at all is ZB-H2's, which holds about twice the activations"),
        (only("zb-h1", lambda s, *n: whole(*n) / 3), "a third is left if F = B = W, and here they differ"),
    ),
)  # fmt: skip
SHARE = Formula(
    name="idle share",
    answer=share,
    tolerance=2e-3,  # of four decimals
    show=lambda *numbers: show(*numbers),
    typical=(
        (
            lambda s, p, m, v, i, F, B, W: bubble(s, p, m, v, i, F, B, W) / (m * (F + B + W)),
            "that is idle over *computing* time; the whole step is both",
        ),
        (lambda *numbers: 100 * share(*numbers), "in percent? The share itself is asked, between 0 and 1"),
        (lambda *numbers: 1 - share(*numbers), "that is the share in which it computes"),
        (lambda *numbers: bubble(*numbers), "those are the seconds, not a share of the step"),
        (lambda s, p, m, v, i, F, B, W: part_of(bubble(s, p, m, v, i, F, B, W), m * (F + B)), "a rank computes W too"),
        *((lambda *n, k=k: part_of(bubble(*n), n[2] * 3 * n[k]), EQUAL) for k in (5, 6, 7)),
        *((lambda *n, k=k: round(share(*n), k), "rounded too far: give four decimals") for k in (2, 3)),
        (
            only("interleaved", lambda s, p, m, v, i, *rest: share(s, p, m * v, v, i, *rest)),
            "F, B and W are a whole rank's, of all its v stages: it computes for m (F + B + W)",
        ),
        (
            lambda s, p, m, v, i, F, B, W: (p - 1) / (m + p - 1),
            "that is GPipe's and 1F1B's; this schedule has another bubble",
        ),
    ),
)
FIRST = "that is rank 0's; a rank nearer to the end gets its first gradient sooner"
STASHED = " (and what is stashed for W does not count)"
BY_ONE = "from rank to rank it is one less here: what does `held` print?"
LAST = "p too many: of the v stages, all but the last have done p forwards by then"
FEW = "there are only m micro-batches, fewer than that"
HELD = Formula(
    name="in_flight",
    answer=in_flight,
    show=lambda *numbers: show(*numbers),
    typical=(
        (only("1f1b", lambda s, p, m, v, i, *_: m), "all m? That is GPipe's; 1F1B begins with backward much sooner"),
        (only("zb-h1", lambda s, p, m, v, i, *_: m), "all m? ZB-H1 holds what 1F1B does"),
        (only("gpipe", lambda s, p, m, v, i, *_: min(p - i, m)), "that is 1F1B's; GPipe does all forwards first"),
        (only("gpipe", lambda s, p, m, v, i, *_: min(p, m)), "p at most? GPipe does all forwards first"),
        (
            only("interleaved", lambda s, p, m, v, i, *_: min(p - i, m)),
            "that is 1F1B's with one stage on each rank; here a rank has v",
        ),
        (
            only("interleaved", lambda s, p, m, v, i, *_: v * min(p - i, m)),
            "v times 1F1B's with one stage? p micro-batches go through a stage before the next stage has its turn",
        ),
        (only("interleaved", lambda s, p, m, v, i, *_: v * m), "all v m? Backward begins before the last forward"),
        (only("interleaved", lambda s, p, m, v, i, *_: m), "m at one stage? A rank has v of them"),
        (only("interleaved", lambda s, p, *n: in_flight(s, p, *n) + p), LAST),
        (
            only("interleaved", lambda *numbers: in_flight(*numbers) - 1),
            "those are the forwards that it is ahead; one more comes before the first backward",
        ),
        (only("interleaved", lambda s, p, m, v, i, *_: min(v * m, p * v - i)), BY_ONE),
        (only("interleaved", lambda s, p, m, v, i, *_: min(v * m, p * v + p - 1 - i)), BY_ONE),
        (only("interleaved", lambda s, p, m, v, i, *_: forwards_first(p, v, i)), "there are only v m in all"),
        (only("interleaved", lambda s, p, m, v, i, *_: min(forwards_first(p, v, 0), v * m)), FIRST),
        (
            only("interleaved", lambda s, p, m, v, i, *_: in_flight(s, p, m, v, i, 1, 1, 1) / v),
            "in whole ranks? Count activations of one *stage*",
        ),
        (only("zb-h1", lambda s, p, m, v, i, *_: p), FIRST + STASHED),
        (only("zb-h1", lambda s, p, m, v, i, *_: p + 1), "with what is stashed for W? That does not count"),
        (lambda s, p, m, v, i, *_: p if p > m else nan, FEW),
        (lambda s, p, m, v, i, *_: p - i if p - i > m else nan, FEW),
        (only("1f1b", lambda s, p, m, v, i, *_: min(p, m)), FIRST),
        (
            only("1f1b zb-h1", lambda s, p, m, v, i, *_: min(i + 1, m)),
            "the other way round: the *first* rank waits longest for a gradient",
        ),
        (
            only("1f1b zb-h1", lambda *numbers: in_flight(*numbers) - 1),
            "one too few: a forward comes before the first backward",
        ),
        (only("gpipe", lambda *numbers: in_flight(*numbers) - 1), "one too few"),
        (lambda *numbers: in_flight(*numbers) + 1, "one too many"),
    ),
)  # fmt: skip


def show(schedule: str, p: int, m: int, v: int, rank: int, F: float, B: float, W: float) -> str:
    """The arguments as a learner reads them."""
    stages = f", {v} stages each" if v > 1 else ""
    return f"{schedule}, {p} ranks{stages}, {m} micro-batches, rank {rank}, F = {F:g}, B = {B:g}, W = {W:g}"


FORMULAS: dict[Part, Formula] = {"bubble": BUBBLE, "share": SHARE, "held": HELD}
VERDICTS = {
    part: formula_exercise(key="04.6", title="", formula=one, levels={}, hints=()).verdict
    for part, one in FORMULAS.items()
}


def plain(value: Any) -> Any:
    """Numbers and lists also of what NumPy or PyTorch returns."""
    return value.tolist() if hasattr(value, "tolist") else value


def attempt(function: Callable[..., Any], given: tuple[Part, Numbers]) -> Report | str:
    """Runs on a rank: one of the three numbers, or what came in their place."""
    part, numbers = given
    strange: list[str] = []

    def number(*arguments: Any) -> Any:
        found = plain(function(*arguments))
        if not isinstance(found, tuple | list) or len(found) != len(PARTS):
            strange.append(type(found).__name__)
            return None
        return found[PARTS.index(part)]

    report = formula.call(number, numbers)
    return TOGETHER.format(strange[0]) if strange else report


def verdict(case: Ask, given: tuple[Part, Numbers], reports: tuple[Any, ...], book: Ledger) -> str | None:
    """As the formula's own exercise would judge it."""
    if isinstance(reports[0], str):
        return f"{case}: {reports[0]}"
    return VERDICTS[case.part](case, given[1], reports, book)


def numbers_of(part: Part, schedule: str, where: Where, seed: int) -> Numbers:
    """Numbers for which the formulas hold: W <= F and B, m >= p for ZB-H1, and groups of p if interleaved."""
    draw = Random(f"{part}{schedule}{where}{seed}")
    while True:
        numbers = drawn(draw, schedule, where)
        if no_chance(*numbers) and (where != "middle" or told_apart(FORMULAS[part], numbers)):
            return numbers


def drawn(draw: Random, schedule: str, where: Where) -> Numbers:
    """A few micro-batches are the limit on rank 1; but no ZB-H1 is drawn with m = p."""
    p, interleaved = draw.randint(5, 9), schedule == "interleaved"
    v = draw.randint(2, 4) if interleaved else 1
    few = {"interleaved": p, "zb-h1": p + 2}.get(schedule, 2)
    many = p * draw.randint(2, 5) if interleaved else draw.randint(p + 3, 40)
    m = few if where == "few" or (where == "last" and interleaved) else many
    rank = {"middle": draw.randint(1, p - 2), "few": 1, "first": 0, "last": p - 1}[where]
    F, B, W = map(float, draw.sample(range(3, 13), 3))
    return schedule, p, m, v, rank, F, B, W


def no_chance(schedule: str, p: int, m: int, v: int, rank: int, F: float, B: float, W: float) -> bool:
    """Whether the sum is no multiple that a wrong formula may hit, and ZB-H1's formula holds."""
    total = F + B + W
    whole_seconds = v > 1 and (p - 1) * total % v == 0
    return (
        total not in (3 * F, 3 * B, 3 * W)
        and B != F + 1
        and not whole_seconds
        and (schedule != "zb-h1" or W < F and W < B)
    )


def told_apart(formula: Formula, numbers: Numbers) -> bool:
    """Whether no two likely wrong answers of different causes agree here."""

    def same(one: float | None, other: float | None) -> bool:
        return one is not None and other is not None and isclose(one, other, rel_tol=formula.tolerance)

    right = formula.answer(*numbers)
    slips = [(wrong(*numbers), cause) for wrong, cause in formula.typical]
    wrong = [(number, cause) for number, cause in slips if not same(number, right)]
    return not any(same(one, other) for (one, why), (other, why_not) in combinations(wrong, 2) if why != why_not)


def asks(part: Part, *places: Where) -> tuple[Ask, ...]:
    """Every schedule once for each of these ranks."""

    def ask(schedule: str, where: Where) -> Ask:
        return Ask(text=part, part=part, arguments=lambda seed: numbers_of(part, schedule, where, seed))

    return tuple(ask(schedule, where) for schedule in ("gpipe", "1f1b", "interleaved", "zb-h1") for where in places)


PREDICT = ProbeExercise(
    key="04.6",
    title="bubble, share and memory of a schedule",
    inputs=lambda case, seed: (case.part, case.arguments(seed)),
    probe=attempt,
    verdict=verdict,
    levels={
        "bubble": Level(
            points=2,
            cases=asks("bubble", "middle", "last"),
            praise="GPipe and 1F1B wait equally long; interleaving waits 1/v of it, and ZB-H1 fills it with W",
        ),
        "share": Level(
            points=1,
            cases=asks("share", "middle", "last"),
            praise="a part of the whole step",
        ),
        "held": Level(
            points=2,
            cases=asks("held", "middle", "few", "first", "last"),
            praise="what 1F1B is for: p - rank activations at most, however many micro-batches",
        ),
    },
    hints=(
        "Draw GPipe for p = 2 and m = 2, a box for each F, B and W. How long does each rank wait in all? Then add a "
        "rank, and then a micro-batch.",
        "F + B + W are one micro-batch on one rank. GPipe and 1F1B: before a rank's first forward and after its last "
        "backward, p - 1 others are waited for. Interleaved, each of these waits is one *stage* long, 1/v of a rank.",
        "In ZB-H1 nobody waits for a W any more, and each wait that is left is filled by a W for W seconds. The share "
        "is a part of the whole step: computing, m (F + B + W), and waiting.",
        "In flight: m; min(p - rank, m) for 1F1B and ZB-H1. Interleaved: let held(...).in_flight "
        "tell you a few, and see what one rank further, or one stage more on each rank, changes.",
        "Interleaved, before its first backward a rank does (v - 1)p forwards of its earlier stages, two for each rank "
        "after it, and one more. There are v m in all.",
    ),
)
