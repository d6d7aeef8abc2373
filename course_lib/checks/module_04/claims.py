"""04.2: five lines of a slide about a pipeline's idle time, one of them wrong."""

from __future__ import annotations

import random
from typing import NamedTuple

from course_lib.checks.kit.sheet import PERCENT, Ask, Group, NumberExercise
from course_lib.costs.comm.pipeline import pipeline_bubble_s

WRONG_LINE = 5
SMALL = 0.1  # the share of idle time that is asked for


class ClaimedPipeline(NamedTuple):
    """GPUs, micro-batches, and the seconds of one micro-batch's forward and whole backward on each GPU."""

    N: int
    m: int
    F: int
    B: int

    @property
    def idle(self) -> float:
        """Seconds that each GPU waits in a step."""
        return pipeline_bubble_s(
            "gpipe", n_ranks=self.N, n_microbatches=1, forward_s=self.F, backward_input_s=self.B, backward_weight_s=0.0
        )

    @property
    def busy(self) -> float:
        """Seconds that each GPU computes in a step."""
        return self.m * (self.F + self.B)

    @property
    def step(self) -> float:
        """Seconds from the first forward to the last backward."""
        return self.busy + self.idle

    @property
    def share(self) -> float:
        """Of the step, in which a GPU waits."""
        return self.idle / self.step


def given(seed: int) -> ClaimedPipeline:
    """6 GPUs and 20 micro-batches unless an instructor asks for other numbers."""
    if seed == 0:
        return ClaimedPipeline(6, 20, 2, 4)
    draw = random.Random(seed)
    n = draw.choice((5, 6, 8, 16))
    return ClaimedPipeline(n, n * draw.choice((2, 3, 4)), draw.choice((1, 2)), draw.choice((3, 4, 5)))


_CLAIMS = NumberExercise(
    key="04.2",
    title="find the wrong number: a slide about a pipeline",
    given=given,
    levels={
        "slide": Group(2, (
            Ask("wrong_line", "", WRONG_LINE, {
                "line 1 is true: it is what is given": 1,
                "line 2 is true: m micro-batches of F + B seconds each": 2,
                "line 3 is true: each GPU waits for N - 1 forwards and N - 1 backwards": 3,
                "line 4 is true: it is lines 2 and 3 together": 4,
            }),
            Ask("step_time", "s", lambda g: g.step, {
                "that is the computing alone": lambda g: g.busy,
                "that is the waiting alone": lambda g: g.idle,
                "that is one GPU after the other, without any overlap": lambda g: g.N * g.busy,
                "the last GPU starts after N - 1 forwards, not N": lambda g: (g.m + g.N) * (g.F + g.B),
                "in milliseconds? Seconds are asked": lambda g: 1000 * g.step,
            }),
        ), "right. Lines 1 to 4 are true, and line 5 divides by line 2 what is a part of line 4"),
        "share": Group(3, (
            Ask("idle_fraction", "", lambda g: g.share, {
                "that is the slide's: idle time over *computing* time. A share is of the whole":
                    lambda g: g.idle / g.busy,
                PERCENT: lambda g: 100 * g.share,
                "that is the share in which it computes": lambda g: 1 - g.share,
                "a step lasts as long as m + N - 1 micro-batches, not m + N": lambda g: (g.N - 1) / (g.m + g.N),
                "the first GPU starts at once: N - 1 micro-batches' time is waited for, not N":
                    lambda g: g.N / (g.m + g.N),
                "those are the seconds; divide them by the whole step's": lambda g: g.idle,
            }, tolerance=1e-3),
            Ask("fraction_of_one", "", lambda g: g._replace(m=1).share, {
                "that is the slide's: which GPU waits longer than the step lasts?": lambda g: g.N - 1,
                "that is the share in which it computes": lambda g: 1 / g.N,
                "does no GPU wait? While one computes, the others have nothing to do": 0,
                "all of the step? A GPU also computes: its part of that one micro-batch": 1,
                PERCENT: lambda g: 100 * (g.N - 1) / g.N,
            }, tolerance=1e-3),
            Ask("enough", "micro-batches", lambda g: (g.N - 1) * (1 - SMALL) / SMALL, {
                "that follows from the slide's formula; use the right one": lambda g: (g.N - 1) / SMALL,
                "N - 1 GPUs are waited for, and the tenth is one of the whole step, not of the computing":
                    lambda g: g.N / SMALL,
                "N - 1 GPUs are waited for, not N": lambda g: 9 * g.N,
                "with so many the share is still a little above one tenth": lambda g: 9 * (g.N - 1) - 1,
                "enough, but not the smallest number that is": lambda g: 9 * (g.N - 1) + 1,
            }),
        ), "right. With one micro-batch the slide's fraction would be more than everything"),
    },
    hints=(
        "A line that agrees with the timed schedule is true. Compare lines 3 and 4 with what the cell below them "
        "prints.",
        "A share is a part over a whole. Which whole does line 5 take, and how long does the whole step last?",
        "A GPU waits for (N-1)(F+B) seconds of a step that lasts (m+N-1)(F+B) seconds. So the share is (N-1) / "
        "(m+N-1). Put in m = 1 for `fraction_of_one`. For `enough` set the share to 0.1, and solve for m.",
    ),
)  # fmt: skip
