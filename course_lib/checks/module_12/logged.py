"""12.5: tokens a second, MFU and goodput from the JSON lines of a run that was killed and has gone on."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from course_lib.checks.kit.formula import Call, Formula, formula_exercise
from course_lib.checks.kit.spec import Level

_OPERATIONS = 6  # for each parameter and token
_SLOW = 9.0  # times as long as others the steps are that warm up, at most


class _Log(NamedTuple):
    """What the answer is given."""

    lines: list[str]
    parameters: int
    gpus: int
    sheet: float
    warm_up: int


class _Step(NamedTuple):
    """One time that a step was made: in which attempt, as which of its steps, how long on the slowest rank."""

    attempt: int
    place: int
    number: int
    seconds: float
    tokens: int
    ranks: int


class _Read(NamedTuple):
    """All steps in order, and the seconds from the first line to the last one."""

    steps: list[_Step]
    wall: float

    @property
    def last(self) -> list[_Step]:
        """Each step once, as it was made last."""
        return list({step.number: step for step in self.steps}.values())


def _drawn(attempts: int, seed: int) -> _Log:
    """A run that was killed so many times, but one."""
    draw = random.Random(1013 * seed + attempts)
    ranks, tokens, usual = draw.choice((2, 4)), 2048 * draw.choice((64, 128, 256)), draw.uniform(1.2, 3.0)
    every, warm_up = draw.choice((5, 6, 7)), draw.choice((2, 3))
    now, lines, number = 1.7e9 + draw.randrange(10**6), [], 0
    for attempt in range(attempts):
        now += draw.uniform(20, 60) * (attempt > 0)
        lines.append({"t": round(now, 3), "event": "start", "rank": 0, "resumed_at": number})
        now += draw.uniform(8, 20)
        many = 2 * every + draw.randrange(2, every) if attempt < attempts - 1 else 2 * every
        for place in range(many):
            number += 1
            slow = draw.uniform(3, _SLOW) if place < warm_up else draw.uniform(0.95, 1.1)
            now += usual * slow * 1.01
            lines += _of_ranks(draw, now, number, ranks, usual * slow, tokens)
            if number % every == 0:
                seconds = draw.uniform(1, 4)
                now += seconds
                lines.append({"t": round(now, 3), "event": "checkpoint", "step": number, "seconds": round(seconds, 3)})
        if attempt < attempts - 1:
            number -= number % every  # what was done since the last checkpoint is lost
    parameters = draw.choice((1_176_764_416, 6_888_095_744))
    return _Log(_written(lines, draw), parameters, draw.choice((16, 32)), draw.choice((624.0, 1979.0)), warm_up)


def _of_ranks(
    draw: random.Random, now: float, number: int, ranks: int, seconds: float, tokens: int
) -> list[dict[str, Any]]:
    """A line of each rank, in any order; they have seen nearly the same seconds."""
    lines: list[dict[str, Any]] = [
        {
            "t": round(now, 3),
            "event": "step",
            "rank": rank,
            "step": number,
            "step_s": round(seconds * draw.uniform(0.97, 1), 4),
            "tokens": tokens,
            "loss": round(11 / (1 + number / 9), 4),
        }
        for rank in range(ranks)
    ]
    draw.shuffle(lines)
    return lines


def _written(lines: list[dict[str, Any]], draw: random.Random) -> list[str]:
    """As text; where a process was killed, the next line's beginning was written."""
    texts = []
    for number, line in enumerate(lines):
        if line["event"] == "start" and number:
            texts.append(json.dumps({"t": line["t"] - 15, "event": "step", "rank": 1})[: draw.randrange(20, 40)])
        texts.append(json.dumps(line))
    return texts


def _read(log: _Log) -> _Read:
    steps: dict[tuple[int, int], _Step] = {}
    times, attempt = [], -1
    for text in log.lines:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        times.append(line["t"])
        if line["event"] == "start":
            attempt, first = attempt + 1, line["resumed_at"]
        elif line["event"] == "step":
            key, place = (attempt, line["step"]), line["step"] - first - 1
            before = steps.get(key)
            seconds = max(line["step_s"], before.seconds if before else 0.0)
            ranks = 1 + (before.ranks if before else 0)
            steps[key] = _Step(attempt, place, line["step"], seconds, line["tokens"], ranks)
    return _Read([steps[key] for key in sorted(steps)], max(times) - min(times))


def _rate(steps: Iterable[_Step]) -> float:
    steps = list(steps)
    return sum(step.tokens for step in steps) / sum(step.seconds for step in steps)


def _tokens_per_s(log: _Log) -> float:
    return _rate(step for step in _read(log).last if step.place >= log.warm_up)


def _goodput(log: _Log) -> float:
    found = _read(log)
    return sum(step.seconds for step in found.last) / found.wall


def _mfu(log: _Log, *, operations: int = _OPERATIONS, sparse: int = 2, gpus: int = 0) -> float:
    peak = log.sheet * 1e12 / sparse * (gpus or log.gpus)
    return operations * log.parameters * _tokens_per_s(log) / peak


def _mean_of_rates(log: _Log) -> float:
    rates = [_rate([step]) for step in _read(log).last if step.place >= log.warm_up]
    return sum(rates) / len(rates)


def _first_times(log: _Log) -> list[_Step]:
    found: dict[int, _Step] = {}
    for step in _read(log).steps:
        found.setdefault(step.number, step)
    return list(found.values())


_FORMULAS = (
    Formula(
        name="tokens a second",
        answer=_tokens_per_s,
        tolerance=1e-9,
        slips={
            "the tokens of a step are counted once for each rank's line. Each line has those of the whole batch": (
                lambda log: _tokens_per_s(log) * _read(log).steps[0].ranks
            ),
            "the steps that warm up are in it": lambda log: _rate(_read(log).last),
            "steps that warm up are left out at the beginning of the run alone. Each start has some": (
                lambda log: _rate(s for s in _read(log).last if s.attempt or s.place >= log.warm_up)
            ),
            "a step that was made twice is counted twice": (
                lambda log: _rate(s for s in _read(log).steps if s.place >= log.warm_up)
            ),
            "of a step that was made twice the first time counts. It is lost; the last one counts": (
                lambda log: _rate(s for s in _first_times(log) if s.place >= log.warm_up)
            ),
            "that is the mean of the steps' rates. All tokens over all seconds are asked": _mean_of_rates,
        },
    ),
    Formula(
        name="MFU",
        answer=_mfu,
        tolerance=1e-9,
        slips={
            "that is over the sparse peak, which the sheet advertises. The dense one is half of it": partial(
                _mfu, sparse=1
            ),
            "that is over one GPU's peak": partial(_mfu, gpus=1),
            "two operations are forward alone. Backward takes four more": partial(_mfu, operations=2),
            "eight operations count a second forward, which the model does not need": partial(_mfu, operations=8),
            "in percent? The share itself is asked, between 0 and 1": lambda log: 100 * _mfu(log),
            "peak and tokens are in other units: TFLOP/s are 10**12 operations a second": lambda log: 1e12 * _mfu(log),
        },
    ),
    Formula(
        name="goodput",
        answer=_goodput,
        tolerance=1e-9,
        slips={
            "what was made and then lost is in it, too": lambda log: (
                sum(step.seconds for step in _read(log).steps) / _read(log).wall
            ),
            "steps that warm up are slow, but they train: they count here": lambda log: (
                sum(s.seconds for s in _read(log).last if s.place >= log.warm_up) / _read(log).wall
            ),
            "of a step that was made twice the first time counts. It is lost; the last one counts": lambda log: (
                sum(step.seconds for step in _first_times(log)) / _read(log).wall
            ),
            "that is of the seconds of all steps. The whole time is asked, from the first line to the last": (
                lambda log: (
                    sum(step.seconds for step in _read(log).last) / sum(step.seconds for step in _read(log).steps)
                )
            ),
            "in percent? The share itself is asked, between 0 and 1": lambda log: 100 * _goodput(log),
        },
    ),
)


def _calls(part: int) -> tuple[Call, ...]:
    texts = ("a run that was never killed", "a run that was killed once", "a run that was killed twice")
    drawn: list[Callable[[int], _Log]] = [partial(_drawn, attempts) for attempts in (1, 2, 3)]
    return tuple(Call(text=text, arguments=log, part=part) for text, log in zip(texts, drawn, strict=True))


_LOGGED = formula_exercise(
    key="12.5",
    title="how fast was it really? Read a run's log",
    formulas=_FORMULAS,
    together="three numbers: tokens a second, MFU and goodput",
    levels={
        "rate": Level(points=2, cases=_calls(0), praise="the speed of the machine, without its warm-up"),
        "mfu": Level(points=1, cases=_calls(1), praise="and how much of the GPUs' peak that is"),
        "goodput": Level(points=2, cases=_calls(2), praise="and how much of the time it paid for has become training"),
    },
    hints=(
        "Read each line by json.loads, and go on where it fails: a line that a kill has cut short says nothing.",
        "Keep a dict by the step's number, so that a later time takes the place of an earlier one. It holds "
        "the tokens, the longest seconds of all ranks, and which step after its start it was.",
        "A new start must not add to what the killed one has left: its steps begin afresh, with seconds of their own.",
        "MFU: 6 · parameters · tokens a second is what the model needed. All GPUs together could have done gpus times "
        "the dense peak, which is half of what the sheet says.",
    ),
)
