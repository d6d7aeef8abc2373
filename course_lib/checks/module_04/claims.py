"""04.2: five lines of a slide about a pipeline's idle time, one of them wrong."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import nan
from typing import NamedTuple

from course_lib.checks.kit.sheet import PERCENT, Ask, Group, NumberExercise
from course_lib.costs.comm.pipeline import pipeline_bubble_s

SMALL = 0.1  # the share of idle time that is asked for


class ClaimedPipeline(NamedTuple):
    """GPUs, micro-batches, the seconds of one's forward and whole backward on each GPU; and what lines 2 to 5 say."""

    N: int
    m: int
    F_s: int
    B_s: int
    computes_s: float = 0.0
    waits_s: float = 0.0
    lasts_s: float = 0.0
    share: float = 0.0

    @property
    def one(self) -> int:
        """Seconds of one micro-batch on a GPU."""
        return self.F_s + self.B_s

    @property
    def idle(self) -> float:
        """Seconds that each GPU waits in a step."""
        return pipeline_bubble_s(
            "gpipe",
            n_ranks=self.N,
            n_microbatches=1,
            forward_s=self.F_s,
            backward_input_s=self.B_s,
            backward_weight_s=0.0,
        )

    @property
    def busy(self) -> float:
        """Seconds that each GPU computes in a step."""
        return self.m * self.one

    @property
    def step(self) -> float:
        """Seconds from the first forward to the last backward."""
        return self.busy + self.idle

    @property
    def waiting(self) -> float:
        """The share of the step in which a GPU waits."""
        return self.idle / self.step

    @property
    def true(self) -> tuple[float, ...]:
        """What lines 2 to 5 should say."""
        return self.busy, self.idle, self.step, self.waiting

    @property
    def wrong_line(self) -> int:
        """The one that says something else."""
        said = self.computes_s, self.waits_s, self.lasts_s, self.share
        return 2 + [one != right for one, right in zip(said, self.true, strict=True)].index(True)

    def claiming(self, wrong: int) -> ClaimedPipeline:
        """With all lines true but for this one."""
        amiss = self.m * self.F_s, self.N * self.one, self.step + self.one, self.idle / self.busy
        return ClaimedPipeline(*self[:4], *(amiss[n] if n == wrong - 2 else right for n, right in enumerate(self.true)))


def given(seed: int) -> ClaimedPipeline:
    """6 GPUs and 20 micro-batches unless an instructor asks for other numbers, and for another wrong line."""
    if seed == 0:
        return ClaimedPipeline(6, 20, 2, 4).claiming(5)
    draw = random.Random(seed)
    n = draw.choice((5, 6, 8, 16))
    sizes = n, n * draw.choice((2, 3, 4)), draw.choice((1, 2)), draw.choice((3, 4, 5))
    return ClaimedPipeline(*sizes).claiming(draw.randrange(2, 6))


def _true_line(number: int) -> Callable[[ClaimedPipeline], float]:
    """It, unless it is the wrong one."""
    return lambda g: nan if number == g.wrong_line else number


_CLAIMS = NumberExercise(
    key="04.2",
    title="find the wrong number: a slide about a pipeline",
    given=given,
    levels={
        "slide": Group(2, (
            Ask("wrong_line", "", lambda g: g.wrong_line, {
                "line 1 is true: it is what is given": 1,
                "line 2 is true: m micro-batches of F + B seconds each": _true_line(2),
                "line 3 is true: each GPU waits for N - 1 forwards and N - 1 backwards": _true_line(3),
                "line 4 is true: a GPU computes and waits, and does nothing else": _true_line(4),
                "line 5 is true: it is the waiting, as a share of the whole step": _true_line(5),
            }, choice=True),
            Ask("step_time", "s", lambda g: g.step, {
                "that is the computing alone": lambda g: g.busy,
                "that is the waiting alone": lambda g: g.idle,
                "that is one GPU after the other, without any overlap": lambda g: g.N * g.busy,
                "the last GPU starts after N - 1 forwards, not N": lambda g: (g.m + g.N) * g.one,
                "in milliseconds? Seconds are asked": lambda g: 1000 * g.step,
            }),
        ), "right. Four lines agree with the schedule, and one does not"),
        "share": Group(3, (
            Ask("idle_fraction", "", lambda g: g.waiting, {
                "that is idle time over *computing* time. A share is of the whole":
                    lambda g: g.idle / g.busy,
                PERCENT: lambda g: 100 * g.waiting,
                "that is the share in which it computes": lambda g: 1 - g.waiting,
                "a step lasts as long as m + N - 1 micro-batches, not m + N": lambda g: (g.N - 1) / (g.m + g.N),
                "the first GPU starts at once: N - 1 micro-batches' time is waited for, not N":
                    lambda g: g.N / (g.m + g.N),
                "those are the seconds; divide them by the whole step's": lambda g: g.idle,
            }, tolerance=1e-3),
            Ask("fraction_of_one", "", lambda g: g._replace(m=1).waiting, {
                "that is idle over computing time: which GPU waits longer than the step lasts?": lambda g: g.N - 1,
                "that is the share in which it computes": lambda g: 1 / g.N,
                "does no GPU wait? While one computes, the others have nothing to do": 0,
                "all of the step? A GPU also computes: its part of that one micro-batch": 1,
                PERCENT: lambda g: 100 * (g.N - 1) / g.N,
            }, tolerance=1e-3),
            Ask("enough", "micro-batches", lambda g: (g.N - 1) * (1 - SMALL) / SMALL, {
                "that is a tenth of the computing time; the tenth of the whole step is asked":
                    lambda g: (g.N - 1) / SMALL,
                "N - 1 GPUs are waited for, and the tenth is one of the whole step, not of the computing":
                    lambda g: g.N / SMALL,
                "N - 1 GPUs are waited for, not N": lambda g: 9 * g.N,
                "with so many the share is still a little above one tenth": lambda g: 9 * (g.N - 1) - 1,
                "enough, but not the smallest number that is": lambda g: 9 * (g.N - 1) + 1,
            }),
        ), "right. A share is of the whole step, so it is below one even with a single micro-batch"),
    },
    hints=(
        "A line that agrees with a timed schedule is true. Time a small one, and look how its numbers come from N, m, "
        "F and B.",
        "A share is a part over a whole. Which whole is asked here, and how long does it last?",
        "A GPU waits for (N-1)(F+B) seconds of a step that lasts (m+N-1)(F+B) seconds. So the share is (N-1) / "
        "(m+N-1). Put in m = 1 for `fraction_of_one`. For `enough` set the share to 0.1, and solve for m.",
    ),
)  # fmt: skip
