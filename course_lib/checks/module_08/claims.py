"""08.4: four lines about large runs, of which one has a wrong label; and what a measured step says."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import nan
from typing import NamedTuple

from course_lib.checks.kit.sheet import PERCENT, Ask, Group, NumberExercise
from course_lib.costs.model.flops import megatron_flops
from course_lib.costs.model.parameters import model_parameters
from course_lib.hardware import load_device
from course_lib.sim.published import published_runs
from course_lib.sim.runs import Run

_LABELS = (  # of each line's number: what it is, and what it is not
    ("efficiency of weak scaling", "share of the peak"),
    ("efficiency of weak scaling", "efficiency of strong scaling"),
    ("hardware FLOPs utilisation (HFU)", "model FLOPs utilisation (MFU)"),
    ("model FLOPs utilisation (MFU)", "share of the sparse peak"),
)
_A100, _H100 = (load_device(name).dense_flops_per_s["bf16"] for name in ("a100_sxm_80", "h100_sxm_80"))
_SPARSE = 2  # times the dense peak
_OF_V100, _ALONE, _TOGETHER, _V100S = 0.30, 39.0, 15.1e3, 512  # Shoeybi et al. 2019: share of the peak, and TFLOP/s
_LLAMA = 430.0  # TFLOP/s of a GPU: Grattafiori et al. 2024, table 4, 8,192 GPUs
_SMALL, _LARGE = "mlm20-008", "mlm20-012"  # Megatron-LM's page of 2020: eight GPUs, and 128 times as many
_TABLE = tuple(f"mlm21t1-{row:03}" for row in (10, 7, 8, 9, 6))  # Narayanan et al. 2021, table 1


class Claims(NamedTuple):
    """What the lines and the questions stand on: rates of a GPU in TFLOP/s, steps in seconds; and the lines' labels."""

    v100s: int
    alone: float
    together: float
    small_s: float
    large_s: float
    name: str
    a100s: int
    a100_each: float
    h100_each: float
    a100_peak: float
    h100_peak: float
    parameters: int
    tokens: int
    step_s: float
    labels: tuple[str, ...]

    @property
    def wrong_line(self) -> int:
        """Whose label is not what its number is."""
        return 1 + [one != true for one, (true, _) in zip(self.labels, _LABELS, strict=True)].index(True)

    @property
    def used(self) -> float:
        """Share of the peak for the model's own operations, six for each parameter and token."""
        return 6 * self.parameters * self.tokens / (self.a100s * self.a100_peak * 1e12 * self.step_s)

    @property
    def claimed(self) -> float:
        """Line 3's number."""
        return self.a100_each / self.a100_peak

    @property
    def of_one(self) -> float:
        """What all V100s do together, over as many times what one does alone."""
        return self.together / (self.v100s * self.alone)

    @property
    def llama(self) -> float:
        """Line 4's number."""
        return self.h100_each / self.h100_peak


def claims(seed: int) -> Claims:
    """Megatron's largest model, unless an instructor asks for another row of its table, and for another wrong label."""
    draw = random.Random(seed)
    name, wrong = (_TABLE[0], 3) if seed == 0 else (draw.choice(_TABLE[1:]), draw.randrange(1, 5))
    labels = tuple(both[number == wrong] for number, both in enumerate(_LABELS, 1))
    runs = {run.name: run for run in published_runs() if run.name in (name, _SMALL, _LARGE)}
    run, small, large = runs[name], runs[_SMALL], runs[_LARGE]
    batch, sequence = int(run.policies.global_batch), int(run.policies.sequence)
    done = megatron_flops(run.model, batch=batch, sequence=sequence) / (run.gpus * _seconds(run)) / 1e12
    rates = round(done), _LLAMA, _A100 / 1e12, _H100 / 1e12
    measured = model_parameters(run.model), batch * sequence, round(_seconds(run), 1)
    published = _V100S, _ALONE, _TOGETHER, _seconds(small), _seconds(large)
    return Claims(*published, run.model.name, run.gpus, *rates, *measured, labels)


def _true_line(number: int) -> Callable[[Claims], float]:
    """It, unless it is the wrong one."""
    return lambda g: nan if number == g.wrong_line else number


def _seconds(run: Run) -> float:
    assert run.step_s is not None
    return run.step_s


_CLAIMS = NumberExercise(
    key="08.4",
    title="find the wrong number: whose GPUs are busiest?",
    given=claims,
    levels={
        "line": Group(2, (
            Ask("wrong_line", "", lambda g: g.wrong_line, {
                "line 1 is true: it is what all GPUs do, over as many times what one does alone": _true_line(1),
                "line 2 is true: with 128 times as many GPUs and sequences a step takes a little longer": _true_line(2),
                "line 3 is true: all that the GPUs have done counts there, the second forward too": _true_line(3),
                "line 4 is true: nothing was recomputed, and the peak is the dense one": _true_line(4),
            }, collective=False, choice=True),
            Ask("mfu_of_line_3", "", lambda g: g.claimed * 6 / 8, {
                "that is the line's own number. It counts the second forward, which the model does not need": (
                    lambda g: g.claimed
                ),
                "the second forward is two of eight operations, not one of three": lambda g: g.claimed * 2 / 3,
                "two of eight go. What is left are three quarters of it": lambda g: g.claimed / 4,
                "that is over the sparse peak, which no dense model reaches": lambda g: g.claimed * 3 / 8,
                PERCENT: lambda g: 75 * g.claimed,
            }, collective=False, tolerance=1e-3),
        ), "right. Line 3 counts operations that were done, and line 4 those that the model needs"),
        "step": Group(2, (
            Ask("from_step", "", lambda g: g.used, {
                "that counts eight operations. The model needs six for each parameter and token": (
                    lambda g: g.used * 8 / 6
                ),
                "two operations are forward alone. Backward takes four more": lambda g: g.used / 3,
                "with one GPU's peak? All of them have worked for the whole step": lambda g: g.used * g.a100s,
                "that is a sequence's tokens. The step read a whole batch": lambda g: g.used * 2048 / g.tokens,
                "that is over the H100's peak. These were A100s": lambda g: g.used * g.a100_peak / g.h100_peak,
                PERCENT: lambda g: 100 * g.used,
            }, collective=False, tolerance=1e-3),
            Ask("done", "", lambda g: g.used * 8 / 6, {
                "that is the model's own. With the second forward there are eight operations": lambda g: g.used,
                "the second forward adds two operations, not four": lambda g: g.used * 10 / 6,
                PERCENT: lambda g: 100 * g.used * 8 / 6,
            }, follows=lambda own, g: own["from_step"] * 8 / 6, collective=False, tolerance=1e-3),
        ), "right: nearly the same. The paper also counts the scores of attention, which have no parameters"),
        "whole": Group(2, (
            Ask("of_peak", "", lambda g: g.of_one * _OF_V100, {
                "that is line 1's own, a share of what one GPU does alone": lambda g: g.of_one,
                "that is one GPU alone": _OF_V100,
                "one GPU alone reaches a part of its peak, so all together reach less than that": (
                    lambda g: g.of_one / _OF_V100
                ),
                PERCENT: lambda g: 100 * g.of_one * _OF_V100,
            }, collective=False, tolerance=1e-3),
            Ask("of_sparse", "", lambda g: g.llama / _SPARSE, {
                "that is of the dense peak, as line 4 has it": lambda g: g.llama,
                "the sparse peak is twice the dense one, so the share is half": lambda g: g.llama * _SPARSE,
                PERCENT: lambda g: 100 * g.llama / _SPARSE,
            }, collective=False, tolerance=1e-3),
        ), "right: the same run may be a half, a quarter or a fifth. Always ask: a share of what?"),
    },
    hints=(
        "Recompute each line from its own numbers. All four come out. So ask of each what was divided by what, and "
        "whether its label says so.",
        "Which of the runs recomputed activations? Lesson 08 has that run's table: all of it, in every layer.",
        "Forward has two operations for each parameter and token, backward four. With a second forward there are "
        "eight, of which the model needs six.",
        "From the seconds: 6 · parameters · tokens is what the model needs. All GPUs could have done a100s · "
        "a100_peak · 1e12 · step_s in that time.",
        "Line 1 divides by what one GPU does alone. That is 0.3 of its peak already, so multiply. The sparse peak "
        "is twice the dense one.",
    ),
)  # fmt: skip
