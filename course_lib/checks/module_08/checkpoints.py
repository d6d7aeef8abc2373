"""08.8: how often a long run should write a checkpoint, and what failures leave of its time."""

from __future__ import annotations

import random
from math import sqrt
from typing import NamedTuple

from course_lib.checks.kit.sheet import PERCENT, Ask, Group, NumberExercise
from course_lib.config import load_model
from course_lib.costs.model.parameters import model_parameters
from course_lib.planner.reliability import Reliability, first_order_goodput, young_interval_s
from course_lib.planner.stops import LLAMA_3_STOPS, LLAMA_3_STORAGE_BYTES_PER_S

_BYTES = 14  # of a checkpoint for each parameter
_SLACK = 0.01  # of all the time
_HOUR, _DAY, _YEAR = 3600.0, 24.0, 24.0 * 365.25  # seconds; hours


class Stops(NamedTuple):
    """A run's GPUs, days and stops; bytes of a checkpoint, bytes per second, minutes of a restart; and more GPUs."""

    gpus: int
    days: float
    stops: float
    nbytes: int
    storage: float
    restart_min: float
    more: int

    @property
    def mtbf_h(self) -> float:
        """Hours from stop to stop."""
        return self.days * _DAY / self.stops

    @property
    def run(self) -> Reliability:
        """In seconds."""
        return Reliability(
            mtbf_s=self.mtbf_h * _HOUR, checkpoint_s=self.nbytes / self.storage, restart_s=60 * self.restart_min
        )

    @property
    def larger(self) -> Stops:
        """The same on more GPUs, each as reliable as before."""
        return self._replace(gpus=self.more, stops=self.stops * self.more / self.gpus)

    @property
    def interval_min(self) -> float:
        """Young's."""
        return young_interval_s(self.run) / 60

    def within(self, slack: float) -> float:
        """Minutes of the longest interval that loses so much more of the time; of the shortest where it is negative."""
        least = 2 * self.writing  # checkpoints, and as much lost work
        share = least + abs(slack)
        root = sqrt(share * share - least * least)
        return self.run.mtbf_s * (share + (root if slack > 0 else -root)) / 60

    @property
    def writing(self) -> float:
        """Share of the time that goes into checkpoints."""
        return self.run.checkpoint_s / (60 * self.interval_min)

    @property
    def losing(self) -> float:
        """Share of the time whose work a stop destroys: half an interval each."""
        return 30 * self.interval_min / self.run.mtbf_s

    @property
    def restarting(self) -> float:
        """Share of the time in which it comes back."""
        return self.run.restart_s / self.run.mtbf_s

    @property
    def goodput(self) -> float:
        """What is left, to first order."""
        return first_order_goodput(self.run, 60 * self.interval_min)


def stops(seed: int) -> Stops:
    """Llama 3's own stops, unless an instructor asks for other numbers."""
    draw = random.Random(seed)
    meta, nbytes = LLAMA_3_STOPS, _BYTES * model_parameters(load_model("llama3_1_405b"))
    if seed == 0:
        return Stops(meta.gpus, meta.days, meta.stops, nbytes, LLAMA_3_STORAGE_BYTES_PER_S, 10.0, 65_536)
    gpus, days, number = draw.choice(((8192, 60, 180), (16_384, 30, 250), (4096, 90, 160)))
    storage = draw.choice((0.5e12, 1e12, 4e12))
    return Stops(gpus, days, number, nbytes, storage, draw.choice((6.0, 8.0, 12.0)), 4 * gpus)


def _young_min(checkpoint_s: float, mtbf_s: float) -> float:
    return sqrt(2 * checkpoint_s * mtbf_s) / 60


_CHECKPOINTS = NumberExercise(
    key="08.8",
    title="how often to write a checkpoint",
    given=stops,
    levels={
        "stops": Group(2, (
            Ask("mtbf_h", "hours", lambda g: g.mtbf_h, {
                "those are days. Hours are asked": lambda g: g.days / g.stops,
                "those are minutes. Hours are asked": lambda g: 60 * g.mtbf_h,
                "those are seconds. Hours are asked": lambda g: _HOUR * g.mtbf_h,
                "that is one GPU's. The run stops whenever any of them fails": lambda g: g.mtbf_h * g.gpus,
                "those are stops in an hour. Hours from one stop to the next are asked": lambda g: 1 / g.mtbf_h,
                "the run stops as a whole. Its GPUs are divided out already": lambda g: g.mtbf_h / g.gpus,
            }, collective=False),
            Ask("gpu_years", "years", lambda g: g.mtbf_h * g.gpus / _YEAR, {
                "one GPU alone stops a run far less often than all of them, not more often": (
                    lambda g: g.mtbf_h / g.gpus / _YEAR
                ),
                "that is the run's. One GPU alone would stop it once in so many times longer": (
                    lambda g: g.mtbf_h / _YEAR
                ),
                "those are hours. Years are asked": lambda g: g.mtbf_h * g.gpus,
                "those are days. Years are asked": lambda g: g.mtbf_h * g.gpus / _DAY,
                "with 365 days in a year? The mean one has 365.25": lambda g: g.mtbf_h * g.gpus / _DAY / 365,
            }, follows=lambda own, g: own["mtbf_h"] * g.gpus / _YEAR, collective=False, tolerance=1e-4),
        ), "right: a GPU that fails once in years, and thousands of them"),
        "interval": Group(2, (
            Ask("checkpoint_s", "s", lambda g: g.run.checkpoint_s, {
                "in milliseconds? Seconds are asked": lambda g: 1e3 * g.run.checkpoint_s,
                "that is turned round: bytes over bytes per second are seconds": lambda g: 1 / g.run.checkpoint_s,
                "each GPU's share of the bytes? The storage takes all of them together": (
                    lambda g: g.run.checkpoint_s / g.gpus
                ),
            }, collective=False),
            Ask("interval_min", "minutes", lambda g: g.interval_min, {
                "the 2 under the root is missing": lambda g: g.interval_min / sqrt(2),
                "the 2 stands under the root, too": lambda g: g.interval_min * sqrt(2),
                "those are seconds. Minutes are asked": lambda g: 60 * g.interval_min,
                "those are hours. Minutes are asked": lambda g: g.interval_min / 60,
                "the root is missing": lambda g: 2 * g.run.checkpoint_s * g.run.mtbf_s / 60,
                "that is with one GPU's time between stops. The run's is that divided by their number": (
                    lambda g: _young_min(g.run.checkpoint_s, g.run.mtbf_s * g.gpus)
                ),
                "seconds and hours stand under one root. Take seconds for both, then divide by 60": (
                    lambda g: sqrt(2 * g.run.checkpoint_s * g.mtbf_h) / 60
                ),
                "hours and minutes stand under one root. Take seconds for both, then divide by 60": (
                    lambda g: sqrt(2 * g.run.checkpoint_s / 60 * g.mtbf_h)
                ),
                "that is with the restart in place of the checkpoint. A stop costs a restart, whatever you choose": (
                    lambda g: _young_min(g.run.restart_s, g.run.mtbf_s)
                ),
            }, follows=lambda own, g: _young_min(own["checkpoint_s"], _HOUR * own["mtbf_h"]), collective=False),
            Ask("goodput", "", lambda g: g.goodput, {
                "the restarts are missing. Each stop costs one": lambda g: g.goodput + g.restarting,
                "the checkpoints are missing, or the lost work. At the best interval each of them costs as much": (
                    lambda g: g.goodput + g.writing
                ),
                "a whole interval is lost at each stop? A stop may come at any time in it, so half on average": (
                    lambda g: g.goodput - g.losing
                ),
                "that is the share that is lost": lambda g: 1 - g.goodput,
                PERCENT: lambda g: 100 * g.goodput,
            }, follows=lambda own, g: 1 - own["checkpoint_s"] / (60 * own["interval_min"]) - (
                30 * own["interval_min"] + g.run.restart_s
            ) / (_HOUR * own["mtbf_h"]), collective=False, tolerance=1e-4),
        ), "right: at the best interval checkpoints and lost work cost the same, and restarts come on top"),
        "slack": Group(1, (
            Ask("lazy_min", "minutes", lambda g: g.within(_SLACK), {
                "that is the shortest such interval, with more checkpoints than needed": lambda g: g.within(-_SLACK),
                "twice the best interval? Both losses change: one halves, and the other doubles": (
                    lambda g: 2 * g.interval_min
                ),
                "that is the best interval, and a hundredth more of it": lambda g: 1.01 * g.interval_min,
                "a hundredth of what is lost already? A hundredth of all the time is asked": (
                    lambda g: g.within(_SLACK * (1 - g.goodput))
                ),
                "those are seconds. Minutes are asked": lambda g: 60 * g.within(_SLACK),
            }, collective=False, tolerance=1e-4),
        ), "right: around its best the loss is flat, so it matters little to write a bit too seldom"),
        "larger": Group(2, (
            Ask("larger_min", "minutes", lambda g: g.larger.interval_min, {
                "as long as before? Stops come more often": lambda g: g.interval_min,
                "the time between stops stands under a root. So does what it is divided by": (
                    lambda g: g.interval_min * g.gpus / g.more
                ),
                "longer than before? The more often a run stops, the sooner it should write": (
                    lambda g: g.interval_min * sqrt(g.more / g.gpus)
                ),
                "those are seconds. Minutes are asked": lambda g: 60 * g.larger.interval_min,
            }, follows=lambda own, g: own["interval_min"] * sqrt(g.gpus / g.more), collective=False),
            Ask("larger_goodput", "", lambda g: g.larger.goodput, {
                "as good as before? Each GPU fails as often, and there are more of them": lambda g: g.goodput,
                "that is with the old interval. Take the new one": (
                    lambda g: first_order_goodput(g.larger.run, 60 * g.interval_min)
                ),
                "everything that is lost was multiplied. Checkpoints and lost work grow with the root alone": (
                    lambda g: 1 - (1 - g.goodput) * g.more / g.gpus
                ),
                "the restarts are missing. Each stop costs one": lambda g: g.larger.goodput + g.larger.restarting,
                PERCENT: lambda g: 100 * g.larger.goodput,
            }, follows=lambda own, g: 1 - own["checkpoint_s"] / (60 * own["larger_min"]) - (
                30 * own["larger_min"] + g.run.restart_s
            ) / (_HOUR * own["mtbf_h"] * g.gpus / g.more), collective=False, tolerance=1e-4),
        ), "right: four times the GPUs, and restarts eat four times as much. They are what has to get shorter"),
    },
    hints=(
        "The run stops `stops` times in `days` days. Hours from stop to stop are days * 24 / stops. One GPU alone "
        "would stop it `gpus` times less often, and a year has 24 * 365.25 hours.",
        "Bytes over bytes per second are the seconds of a checkpoint. The best interval is the root of 2 · checkpoint "
        "· time between stops, all in seconds.",
        "Three things are lost: checkpoint / interval, then half an interval and a whole restart for each stop. The "
        "last two are shares of the time between stops.",
        "Checkpoints and lost work together cost δ/τ + τ/(2M). Let that be a hundredth more than at its best. Times τ "
        "it is a quadratic equation, and the larger of its two solutions is asked.",
        "With four times as many GPUs the time between stops is a quarter, and its root a half. Put the new interval "
        "and the new time between stops into the same formula.",
    ),
)  # fmt: skip
