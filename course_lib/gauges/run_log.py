"""The log of a training run: lines of JSON, a step each, and what in them asks for somebody to look.

A line has `step` and `loss`; what else it has is read too:

    gradient_norm   of all gradients before they were clipped; null if it was not finite
    tokens_per_s    of all ranks together
    seconds         that the step took
    mfu             model FLOPs utilisation, a share of 1
    own_s           a list with a number for each rank: the seconds of its own work, before it waited for the others

`python -m course_lib train` writes them into `metrics.jsonl`, on CPUs with `own_s` in every tenth step. A loop of your
own may write the same names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from course_lib.errors import four_parts
from course_lib.gauges.own_work import is_slow, slowest_ratio, stragglers

METRICS, CONFIG = "metrics.jsonl", "config.yaml"  # in the folder of a run
SLOWEST = "slowest rank"  # the column
_BEFORE, _LEAST = 16, 8  # steps that say what is usual, and how few of them do
_DEVIATIONS, _HIGHER = 6.0, 1.1  # of a spike, which is also higher than the usual by a tenth
_MAD = 1.4826  # median absolute deviations of a normal distribution that make its standard deviation
_LAST, _FALLEN = 10, 0.8  # steps, and the share of the throughput before them
_OWN = 50  # steps in which a rank is slow or not
_STANDS_S, _STANDS_STEPS = 60.0, 10


@dataclass(frozen=True, kw_only=True)
class LoggedStep:
    """One line; None is what it did not say, nan what was not finite."""

    step: int
    loss: float
    gradient_norm: float | None = None
    tokens_per_s: float | None = None
    seconds: float | None = None
    mfu: float | None = None
    own_s: tuple[float, ...] = ()


class Alarm(NamedTuple):
    """What somebody should look at, in which step it began, and its column and its rank, where it has one."""

    what: str  # "not finite", "spike", "slower", "stands" or "straggler"
    step: int
    said: str
    column: str = ""
    rank: int | None = None


def read_run(path: str | Path) -> list[LoggedStep]:
    """The steps of a run's folder, or of one file; a last line that is still being written is left out.

    Of a step that is there twice the later line counts: after a restart the run goes on from its last checkpoint.
    Raises: ValueError for a file that is not there or a line that is no step.
    """
    file = Path(path).expanduser()
    file = file / METRICS if file.is_dir() else file
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        rule = f"its lines cannot be read: {error.strerror}"
        way_out = f"name the folder of a run, which has {METRICS}, or the file itself"
        raise ValueError(four_parts("read_run", str(file), rule, way_out)) from None
    whole = text.split("\n")[:-1]
    steps = [_step(f"line {number} of {file}", line) for number, line in enumerate(whole, 1) if line.strip()]
    return sorted({one.step: one for one in steps}.values(), key=lambda one: one.step)


def _step(place: str, line: str) -> LoggedStep:
    try:
        said = json.loads(line)
        step, loss = int(said["step"]), _number(said["loss"])
        more = {name: _number(said[name]) for name in ("tokens_per_s", "seconds", "mfu") if name in said}
        if "gradient_norm" in said:
            more["gradient_norm"] = _number(said["gradient_norm"])
        return LoggedStep(step=step, loss=loss, **more, own_s=tuple(map(float, said.get("own_s") or ())))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        rule, way_out = "a line is a step as JSON, with step and loss", "leave it out, or write it anew"
        raise ValueError(four_parts("read_run", place, rule, way_out)) from None


def _number(value: Any) -> float:
    """JSON has no word for what is not finite, so null stands for it."""
    return nan if value is None else float(value)


def alarms(steps: Sequence[LoggedStep], *, idle_s: float = 0.0) -> list[Alarm]:
    """What asks for somebody to look, by the step in which it began; `idle_s` is how long no line has come.

    A spike is a loss that is six deviations and a tenth above the median of the 16 steps before it, and goes on until
    a step is below. The throughput has fallen if the last ten steps have less than 80 % of that before them.
    """
    found = [*_not_finite(steps), *_spikes(steps), *_slower(steps), *_own_work(steps), *_stands(steps, idle_s)]
    return sorted(found, key=lambda one: one.step)


def _not_finite(steps: Sequence[LoggedStep]) -> Iterator[Alarm]:
    for name, values in (
        ("loss", [one.loss for one in steps]),
        ("gradient norm", [one.gradient_norm for one in steps]),
    ):
        bad = [one.step for one, value in zip(steps, values, strict=True) if value is not None and not isfinite(value)]
        if bad:
            more = f", and in {len(bad) - 1} later ones" if len(bad) > 1 else ""
            yield Alarm("not finite", bad[0], f"the {name} is not finite in step {bad[0]}{more}", name)


def _spikes(steps: Sequence[LoggedStep]) -> Iterator[Alarm]:
    usual: list[float] = []  # losses of steps that were no spike
    inside = False
    for one in steps:
        if not isfinite(one.loss):
            continue
        limit = _limit(usual[-_BEFORE:])
        if one.loss > limit and not inside:
            said = f"the loss is {one.loss:.4g} in step {one.step}, where {median(usual[-_BEFORE:]):.4g} was usual"
            yield Alarm("spike", one.step, said, "loss")
        inside = one.loss > limit
        if not inside:
            usual.append(one.loss)


def _limit(before: Sequence[float]) -> float:
    if len(before) < _LEAST:
        return inf
    middle = median(before)
    spread = _MAD * median(abs(loss - middle) for loss in before)
    return max(middle + _DEVIATIONS * spread, middle + (_HIGHER - 1) * abs(middle))


def _slower(steps: Sequence[LoggedStep]) -> Iterator[Alarm]:
    rates = [(one.step, one.tokens_per_s) for one in steps if one.tokens_per_s is not None][1:]  # the first starts up
    last = len(rates) - _LAST
    if last < 2 * _LAST:
        return
    limit = _FALLEN * median(rate for _, rate in rates[:last])
    if median(rate for _, rate in rates[last:]) < limit:
        while last > _LAST and rates[last - 1][1] < limit:  # back to where it fell
            last -= 1
        now, before = (median(rate for _, rate in part) for part in (rates[last:], rates[:last]))
        said = f"{now:,.0f} tokens/s since step {rates[last][0]}, {before:,.0f} before"
        yield Alarm("slower", rates[last][0], said, "tokens/s")


def _own_work(steps: Sequence[LoggedStep]) -> Iterator[Alarm]:
    told = [one for one in steps if one.own_s]
    told = [one for one in told if len(one.own_s) == len(told[-1].own_s)]
    last = {one.step for one in steps[-_OWN:]}
    for slow in stragglers([one.own_s for one in told if one.step in last]):
        said = f"rank {slow.rank} takes {slow.ratio:.1f} x as long as the others for its own work"
        said += f", in {slow.share:.0%} of the steps"
        yield Alarm("straggler", _slow_since(slow.rank, told), said, SLOWEST, slow.rank)


def _slow_since(rank: int, told: Sequence[LoggedStep]) -> int:
    """The step from which on the steps in which the rank was slow outnumber the others by most."""
    since, ahead, most = told[-1].step, 0, 0
    for one in reversed(told):
        ahead += 1 if is_slow(rank, one.own_s) else -1
        if ahead > most:
            since, most = one.step, ahead
    return since


def _stands(steps: Sequence[LoggedStep], idle_s: float) -> Iterator[Alarm]:
    seconds = [one.seconds for one in steps if one.seconds is not None]
    usual = median(seconds) if seconds else 0.0
    if steps and idle_s > max(_STANDS_S, _STANDS_STEPS * usual):
        said = f"no step for {idle_s:,.0f} s" + (f", where one takes {usual:.3g} s" if seconds else "")
        yield Alarm("stands", steps[-1].step, said)


def columns(steps: Sequence[LoggedStep]) -> Mapping[str, Mapping[int, float]]:
    """What the run tells of itself, by name, a number for each step that says it; nan is what was not finite.

    Of the slowest rank it is `slowest_ratio`, which one rank alone does not have.
    """
    names = {"loss": "loss", "gradient norm": "gradient_norm", "tokens/s": "tokens_per_s", "MFU": "mfu"}
    told = {
        shown: {one.step: value for one in steps if (value := getattr(one, name)) is not None}
        for shown, name in names.items()
    }
    told[SLOWEST] = {one.step: slowest_ratio(one.own_s) for one in steps if len(one.own_s) > 1}
    return {shown: values for shown, values in told.items() if values}
