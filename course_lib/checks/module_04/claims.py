"""04.2: five lines of a slide about a pipeline's idle time, one of them wrong."""

from __future__ import annotations

import random

from course_lib.checks.kit.numbers import Given, NumberExercise, Question
from course_lib.costs.comm.pipeline import pipeline_bubble_s

WRONG_LINE = 5
SMALL = 0.1  # the share of idle time that is asked for


def given(seed: int) -> Given:
    """GPUs, micro-batches, and the seconds of one micro-batch's forward and whole backward on each GPU."""
    if seed == 0:
        return 6, 20, 2, 4
    draw = random.Random(seed)
    n = draw.choice((5, 6, 8, 16))
    return n, n * draw.choice((2, 3, 4)), draw.choice((1, 2)), draw.choice((3, 4, 5))


def idle_time(N: float, F: float, B: float) -> float:
    """Seconds that each GPU waits in a step."""
    return pipeline_bubble_s(
        "gpipe", n_ranks=int(N), n_microbatches=1, forward_s=F, backward_input_s=B, backward_weight_s=0.0
    )


def step_time(N: float, m: float, F: float, B: float) -> float:
    """Seconds from the first forward to the last backward."""
    return m * (F + B) + idle_time(N, F, B)


def idle_fraction(N: float, m: float, F: float, B: float) -> float:
    """The share of the step in which a GPU waits."""
    return idle_time(N, F, B) / step_time(N, m, F, B)


FRACTION_SLIPS = (
    (lambda N, m, F, B: (N - 1) / m, "that is the slide's: idle time over *computing* time. A share is of the whole"),
    (lambda N, m, F, B: 100 * (N - 1) / (m + N - 1), "in percent? The share itself is asked, between 0 and 1"),
    (lambda N, m, F, B: m / (m + N - 1), "that is the share in which it computes"),
    (lambda N, m, F, B: (N - 1) / (m + N), "a step lasts as long as m + N - 1 micro-batches, not m + N"),
    (lambda N, m, F, B: N / (m + N), "the first GPU starts at once: N - 1 micro-batches' time is waited for, not N"),
    (lambda N, m, F, B: idle_time(N, F, B), "those are the seconds; divide them by the whole step's"),
)

CLAIMS = NumberExercise(
    key="04.2",
    title="find the wrong number",
    given=given,
    world_size=lambda N, m, F, B: 0,
    levels={"slide": 2, "share": 3},
    questions=(
        Question(
            name="wrong_line",
            level="slide",
            unit="",
            answer=lambda N, m, F, B: WRONG_LINE,
            typical=(
                (lambda N, m, F, B: 1, "line 1 is true: it is what is given"),
                (lambda N, m, F, B: 2, "line 2 is true: m micro-batches of F + B seconds each"),
                (lambda N, m, F, B: 3, "line 3 is true: each GPU waits for N - 1 forwards and N - 1 backwards"),
                (lambda N, m, F, B: 4, "line 4 is true: it is lines 2 and 3 together"),
            ),
        ),
        Question(
            name="step_time",
            level="slide",
            unit="s",
            answer=step_time,
            typical=(
                (lambda N, m, F, B: m * (F + B), "that is the computing alone"),
                (lambda N, m, F, B: idle_time(N, F, B), "that is the waiting alone"),
                (lambda N, m, F, B: N * m * (F + B), "one GPU after the other, without any overlap"),
                (lambda N, m, F, B: (m + N) * (F + B), "the last GPU starts after N - 1 forwards, not N"),
                (lambda N, m, F, B: 1000 * step_time(N, m, F, B), "in milliseconds? Seconds are asked"),
            ),
        ),
        Question(
            name="idle_fraction",
            level="share",
            unit="",
            tolerance=1e-3,
            answer=idle_fraction,
            typical=FRACTION_SLIPS,
        ),
        Question(
            name="fraction_of_one",
            level="share",
            unit="",
            tolerance=1e-3,
            answer=lambda N, m, F, B: idle_fraction(N, 1, F, B),
            typical=(
                (lambda N, m, F, B: N - 1, "that is the slide's: which GPU waits longer than the step lasts?"),
                (lambda N, m, F, B: 1 / N, "that is the share in which it computes"),
                (lambda N, m, F, B: 0, "does no GPU wait? While one computes, the others have nothing to do"),
                (lambda N, m, F, B: 100 * (N - 1) / N, "in percent? The share itself is asked, between 0 and 1"),
            ),
        ),
        Question(
            name="enough",
            level="share",
            unit="micro-batches",
            answer=lambda N, m, F, B: (N - 1) * (1 - SMALL) / SMALL,
            typical=(
                (lambda N, m, F, B: (N - 1) / SMALL, "that follows from the slide's formula; use the right one"),
                (lambda N, m, F, B: N / SMALL, "N - 1 and not N, and of the whole time, not of the computing time"),
                (lambda N, m, F, B: 9 * N, "N - 1 GPUs are waited for, not N"),
                (lambda N, m, F, B: 9 * (N - 1) - 1, "with so many the share is still a little above one tenth"),
                (lambda N, m, F, B: 9 * (N - 1) + 1, "enough, but not the smallest number that is"),
            ),
        ),
    ),
    praise={
        "slide": "right. Lines 1 to 4 are true, and line 5 divides by line 2 what is a part of line 4",
        "share": "right. With one micro-batch the slide's fraction would be more than everything",
    },
    hints=(
        "A line that agrees with the timed schedule is true. Compare lines 3 and 4 with what that cell prints.",
        "A fraction of the time is a part over the whole. The whole is computing *and* waiting.",
        "Idle (N-1)(F+B), in all (m+N-1)(F+B). For `enough`, solve (N-1) / (m+N-1) = 0.1 for m.",
    ),
)
