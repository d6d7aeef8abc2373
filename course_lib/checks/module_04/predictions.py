"""04.6: bubble, bubble fraction and activations in flight of every schedule, as a function."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import isclose, nan
from random import Random
from typing import Literal, NamedTuple

from course_lib.checks.kit.formula import Call, Formula, formula_exercise
from course_lib.checks.kit.sheet import PERCENT, wrong_numbers
from course_lib.checks.kit.spec import Level
from course_lib.costs.comm.pipeline import pipeline_bubble_s, pipeline_in_flight

Where = Literal["middle", "few", "first", "last"]


class Asked(NamedTuple):
    """A schedule, ranks, micro-batches, stages on each rank, a rank, and the seconds of F, B and W on each rank."""

    schedule: str
    p: int
    m: int
    v: int
    i: int
    F: float
    B: float
    W: float

    @property
    def one(self) -> float:
        """Seconds of one micro-batch on a rank."""
        return self.F + self.B + self.W

    @property
    def bubble(self) -> float:
        """Seconds that each rank waits."""
        return pipeline_bubble_s(
            self.schedule,
            n_ranks=self.p,
            n_microbatches=self.m,
            forward_s=self.F,
            backward_input_s=self.B,
            backward_weight_s=self.W,
            stages_per_rank=self.v,
        )

    @property
    def gpipe(self) -> float:
        """GPipe's bubble."""
        return (self.p - 1) * self.one

    def share(self, computes: float | None = None) -> float:
        """Waiting as a share of waiting and computing."""
        return self.bubble / ((self.m * self.one if computes is None else computes) + self.bubble)

    @property
    def held(self) -> int:
        """Activations of one micro-batch at one stage that the rank holds at most."""
        given = {"n_ranks": self.p, "n_microbatches": self.m, "rank": self.i, "stages_per_rank": self.v}
        return pipeline_in_flight(self.schedule, **given)

    @property
    def one_stage_each(self) -> int:
        """What 1F1B holds with one stage on each rank."""
        return min(self.p - self.i, self.m)

    def first(self, rank: int) -> int:
        """Forwards before the first backward, interleaved, if there are so many."""
        return 2 * (self.p - rank - 1) + (self.v - 1) * self.p + 1

    def __str__(self) -> str:
        stages = f", {self.v} stages each" if self.v > 1 else ""
        times = f"F = {self.F:g}, B = {self.B:g}, W = {self.W:g}"
        return f"{self.schedule}, {self.p} ranks{stages}, {self.m} micro-batches, rank {self.i}, {times}"


Wrong = Callable[[Asked], float]


def of(schedules: str, wrong: Wrong) -> Wrong:
    """A likely wrong answer for one schedule, or for several."""
    return lambda g: wrong(g) if g.schedule in schedules.split() else nan


def interleaved(wrong: Wrong) -> Wrong:
    """For that one."""
    return of("interleaved", wrong)


def _zb_h1(wrong: Wrong) -> Wrong:
    """For that one."""
    return of("zb-h1", wrong)


def _not_zb(wrong: Wrong) -> Wrong:
    """For the others, whose waits are 1/v as long with v stages."""
    return of("gpipe 1f1b interleaved", lambda g: wrong(g) / g.v)


DIFFER = "that is right only if F = B = W, and here they differ"
FIRST = "that is rank 0's; a rank nearer to the end gets its first gradient sooner"

BUBBLE = Formula(
    name="bubble",
    answer=lambda g: g.bubble,
    tolerance=1e-6,  # a tensor's fp32
    show=str,
    slips={
        "the first rank starts at once: p - 1 others are waited for": lambda g: g.bubble * g.p / (g.p - 1),
        "that is all ranks together; one rank's is asked": lambda g: g.bubble * g.p,
        "that is the bubble fraction; the bubble in seconds comes first": lambda g: g.share(),
        "nobody waits for a W any more, that is one half; W also fills part of the waits that are left":
            _zb_h1(lambda g: (g.p - 1) * (g.F + g.B)),
        "a whole backward is B + W": _not_zb(lambda g: (g.p - 1) * (g.F + g.B)),
        "a whole backward is B + W, not 2 B": _not_zb(lambda g: (g.p - 1) * (g.F + 2 * g.B)),
        "that is the forwards' part; backwards are waited for too": _not_zb(lambda g: (g.p - 1) * g.F),
        "each rank waits equally long: what it waits less before its first forward, it waits after its last backward":
            _not_zb(lambda g: g.i * g.one),
        DIFFER: (
            lambda g: g._replace(B=g.F, W=g.F).bubble,
            lambda g: g._replace(F=g.B, W=g.B).bubble,
            lambda g: g._replace(F=g.W, B=g.W).bubble,
        ),
        "the bubble is the same for every m": lambda g: g.gpipe / g.m,
        "that is a ratio; seconds are asked": lambda g: (g.p - 1) / g.m,
        "a third less than GPipe's? 1F1B's order saves memory, not time": of("1f1b", lambda g: g.gpipe * 2 / 3),
        "that is GPipe's; with v stages on a rank each of its waits is 1/v as long": interleaved(lambda g: g.gpipe),
        "times v? A stage is smaller, so a wait gets shorter": interleaved(lambda g: g.gpipe * g.v),
        "that is rounded down to whole seconds: divide by / and not by //": (
            interleaved(lambda g: g.gpipe // g.v), interleaved(lambda g: (g.p - 1) * (g.one // g.v)),
        ),
        "in ZB-H1 a rank computes weights' gradients while it waits": _zb_h1(lambda g: g.gpipe),
        "that is ZB-H2, which holds about twice the activations; ZB-H1 leaves F + B - W":
            _zb_h1(lambda g: (g.p - 1) * (g.F + g.B - 2 * g.W)),
        "no bubble at all is ZB-H2's, which holds about twice the activations": _zb_h1(lambda g: 0),
        "a third is left if F = B = W, and here they differ": _zb_h1(lambda g: g.gpipe / 3),
    },
)  # fmt: skip
SHARE = Formula(
    name="bubble fraction",
    answer=lambda g: g.share(),
    tolerance=2e-3,  # of four decimals
    show=str,
    slips={
        "that is idle over *computing* time; the whole step is both": lambda g: g.bubble / (g.m * g.one),
        PERCENT: lambda g: 100 * g.share(),
        "that is the share in which it computes": lambda g: 1 - g.share(),
        "those are the seconds, not a share of the step": lambda g: g.bubble,
        "a rank computes W too, in every micro-batch": lambda g: g.share(g.m * (g.F + g.B)),
        DIFFER: tuple(lambda g, k=k: g.share(g.m * 3 * g[k]) for k in (5, 6, 7)),
        "rounded too far: give four decimals": (lambda g: round(g.share(), 2), lambda g: round(g.share(), 3)),
        "F, B and W are a whole rank's, of all its v stages: it computes for m (F + B + W)":
            interleaved(lambda g: g.share(g.m * g.v * g.one)),
        "that is GPipe's and 1F1B's; this schedule has another bubble": lambda g: (g.p - 1) / (g.m + g.p - 1),
    },
)  # fmt: skip
HELD = Formula(
    name="in_flight",
    answer=lambda g: g.held,
    show=str,
    slips={
        "all m? That is GPipe's; 1F1B begins with backward much sooner": of("1f1b", lambda g: g.m),
        "all m? ZB-H1 holds what 1F1B does": _zb_h1(lambda g: g.m),
        "that is 1F1B's; GPipe does all forwards first": of("gpipe", lambda g: g.one_stage_each),
        "p at most? GPipe does all forwards first": of("gpipe", lambda g: min(g.p, g.m)),
        "that is 1F1B's with one stage on each rank; here a rank has v": interleaved(lambda g: g.one_stage_each),
        "v times 1F1B's with one stage? p micro-batches go through a stage before the next stage has its turn":
            interleaved(lambda g: g.v * g.one_stage_each),
        "all v m? Backward begins before the last forward": interleaved(lambda g: g.v * g.m),
        "m at one stage? A rank has v of them": interleaved(lambda g: g.m),
        "p too many: of the v stages, all but the last have done p forwards by then":
            interleaved(lambda g: g.held + g.p),
        "those are the forwards that it is ahead; one more comes before the first backward":
            interleaved(lambda g: g.held - 1),
        "from rank to rank it is one less here: what does `held` print?": (
            interleaved(lambda g: min(g.v * g.m, g.p * g.v - g.i)),
            interleaved(lambda g: min(g.v * g.m, g.p * g.v + g.p - 1 - g.i)),
        ),
        "there are only v m activations in all, and those are fewer": interleaved(lambda g: g.first(g.i)),
        FIRST: (interleaved(lambda g: min(g.first(0), g.v * g.m)), of("1f1b", lambda g: min(g.p, g.m))),
        "in whole ranks? Count activations of one *stage*": interleaved(lambda g: g.held / g.v),
        f"{FIRST} (and what is stashed for W does not count)": _zb_h1(lambda g: g.p),
        "is that with what is stashed for W? It does not count here": _zb_h1(lambda g: g.p + 1),
        "there are only m micro-batches, fewer than that": (
            lambda g: g.p if g.p > g.m else nan, lambda g: g.p - g.i if g.p - g.i > g.m else nan,
        ),
        "the other way round: the *first* rank waits longest for a gradient":
            of("1f1b zb-h1", lambda g: min(g.i + 1, g.m)),
        "one too few: a forward comes before the first backward": of("1f1b zb-h1", lambda g: g.held - 1),
        "one too few: all m forwards come before the first backward": of("gpipe", lambda g: g.held - 1),
        "one too many": lambda g: g.held + 1,
    },
)  # fmt: skip
FORMULAS = (BUBBLE, SHARE, HELD)


def _drawn_for(formula: Formula, text: str, schedule: str, where: Where, seed: int) -> Asked:
    """Numbers for which the formulas hold: W <= F and B, m >= p for ZB-H1, and groups of p if interleaved."""
    draw = Random(f"{text}{schedule}{where}{seed}")
    while True:
        asked = drawn(draw, schedule, where)
        if _no_chance(asked) and (where != "middle" or _told_apart(formula, asked)):
            return asked


def drawn(draw: Random, schedule: str, where: Where) -> Asked:
    """A few micro-batches are the limit on rank 1; but no ZB-H1 is drawn with m = p."""
    p, groups = draw.randint(5, 9), schedule == "interleaved"
    v = draw.randint(2, 4) if groups else 1
    few = {"interleaved": p, "zb-h1": p + 2}.get(schedule, 2)
    many = p * draw.randint(2, 5) if groups else draw.randint(p + 3, 40)
    m = few if where == "few" or (where == "last" and groups) else many
    rank = {"middle": draw.randint(1, p - 2), "few": 1, "first": 0, "last": p - 1}[where]
    return Asked(schedule, p, m, v, rank, *map(float, draw.sample(range(3, 13), 3)))


def _no_chance(g: Asked) -> bool:
    """Whether the sum is no multiple that a wrong formula may hit, and ZB-H1's formula holds."""
    whole_seconds = g.v > 1 and g.gpipe % g.v == 0
    may_be_equal = g.one in (3 * g.F, 3 * g.B, 3 * g.W) or g.B == g.F + 1
    return not may_be_equal and not whole_seconds and (g.schedule != "zb-h1" or min(g.F, g.B) > g.W)


def _told_apart(formula: Formula, asked: Asked) -> bool:
    """Whether no two likely wrong answers of different causes agree here."""

    def same(one: float | None, other: float | None) -> bool:
        return one is not None and other is not None and isclose(one, other, rel_tol=formula.tolerance)

    right = formula.answer(asked)
    slips = [(cause, wrong(asked)) for cause, wrong in wrong_numbers(formula.slips)]
    wrong = [(cause, number) for cause, number in slips if not same(number, right)]
    return not any(same(one, other) for (why, one), (why_not, other) in combinations(wrong, 2) if why != why_not)


def calls(text: str, part: int, *places: Where) -> tuple[Call, ...]:
    """Every schedule once for each of these ranks."""

    def one(schedule: str, where: Where) -> Call:
        return Call(
            text=text, part=part, arguments=lambda seed: _drawn_for(FORMULAS[part], text, schedule, where, seed)
        )

    return tuple(one(schedule, where) for schedule in ("gpipe", "1f1b", "interleaved", "zb-h1") for where in places)


PREDICT = formula_exercise(
    key="04.6",
    title="bubble, share and memory of a schedule",
    formulas=FORMULAS,
    together="three things: return bubble_s, idle_share, in_flight",
    levels={
        "bubble": Level(
            points=2,
            cases=calls("bubble", 0, "middle", "last"),
            praise="GPipe and 1F1B wait equally long; interleaving waits 1/v of it, and ZB-H1 fills it with W",
        ),
        "share": Level(points=1, cases=calls("share", 1, "middle", "last"), praise="a part of the whole step"),
        "held": Level(
            points=2,
            cases=calls("held", 2, "middle", "few", "first", "last"),
            praise="what 1F1B is for: p - rank activations at most, however many micro-batches",
        ),
    },
    hints=(
        "Draw GPipe for p = 2 and m = 2, with a box for each F, B and W. How long does each rank wait in all? Then "
        "add a rank, and then a micro-batch. Which of the two makes it wait longer?",
        "F + B + W is one micro-batch on one rank. In GPipe and 1F1B a rank waits as long as p - 1 others take for "
        "that, partly before its first forward and partly after its last backward. Interleaved, each of these waits "
        "is only one *stage* long, which is 1/v of a rank.",
        "In ZB-H1 nobody waits for a W any more. Each of the p - 1 waits that are left is F + B long, and a W goes "
        "into it, which fills W seconds. For every schedule the share is the waiting over the whole step, which is "
        "computing, m (F + B + W), and waiting.",
        "GPipe holds m activations, and 1F1B and ZB-H1 hold min(p - rank, m). For the interleaved one let "
        "held(...).in_flight tell you a few. See what changes from one rank to the next, and with one stage more on "
        "each rank.",
        "Interleaved, a rank does (v - 1) p forwards of its earlier stages before its first backward, two for each "
        "rank after it, and one more. But it never holds more than v m, because there are no more.",
    ),
)
