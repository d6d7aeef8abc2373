"""Exercises that leave gradients on ranks: scene, slips, causes and traffic are data; how to judge is said here, once.

Values are judged in float64, where no sum that cancels looks wrong; those of an answer that names float32, in that. A
case that looks at traffic runs a second time, in float32: that is what an exercise counts bytes in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isclose, isfinite
from types import MappingProxyType
from typing import Any, Protocol

import torch

from course_lib.checks.kit.gradients import agree, differing, malformed
from course_lib.checks.kit.probe import ProbeExercise, Says, Slips
from course_lib.checks.kit.runner import Trial
from course_lib.checks.kit.said import plural, wrong_kind, wrong_means
from course_lib.checks.kit.scene import Report, Scene, in_dtype, together
from course_lib.checks.kit.spec import Level
from course_lib.comm.ledger import Ledger
from course_lib.comm.traces import sent_by_pair
from course_lib.ranks.report import RankError
from course_lib.verify.causes import OF_GRADIENTS, Causes
from course_lib.verify.ratios import exactly

_ROUGHLY = 1e-3  # in float32, of values that are right in float64
_OF_LOSSES = {torch.float64: 1e-9, torch.float32: 1e-5}  # relative
_NAMES_FLOAT32 = re.compile(r"\bfloat32\b|\bFloat\b")
TOO_EARLY = "was a torch.empty(...) used before its numbers had come in? With irecv, that is after wait()"
Cause = tuple[float | Callable[[Any], float], Says]  # a ratio, and what gives just that; both may be of the case
OF_SUM: Cause = (lambda case: case.world_size, "a sum over the ranks, where their average is asked for")
OF_SECOND_DIVISION: Cause = (lambda case: 1 / case.world_size, "divided by the number of ranks twice?")
ALL_ZEROS: Cause = (0.0, "set to zero afterwards, or computed from an inbox before its handle's wait()?")
Sent = Sequence[Sequence[tuple[int, int]]]  # [rank][other]: messages, and their bytes in all


class _Case(Protocol):
    """One run, and in its text which; it may `look` at traffic or time."""

    @property
    def world_size(self) -> int: ...
    @property
    def look(self) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class Words:
    """What an exercise says besides its slips and causes: what gives nan, what is wrong with a loss, and so on."""

    nan: str = TOO_EARLY
    loss: str = ""
    means: str = "comm's collectives, not torch.distributed's own"
    too_much: str = ""  # at once
    traffic: str = ""


_WORDS = Words()


def step_exercise(
    *,
    key: str,
    title: str,
    scene: Callable[[Any, int], Scene],
    levels: Mapping[str, Level],
    hints: tuple[str, ...],
    slips: Slips = MappingProxyType({}),
    causes: Sequence[Cause] = (),
    sent: Callable[[Any], Sent] | None = None,
    look: Callable[[Any, Any, Sequence[Report], Ledger], str | None] = lambda *given: None,
    first: Callable[[Any, Any, Sequence[Report]], str | None] = lambda *given: None,
    also: Callable[[Any, Any, Sequence[Report]], str | None] = lambda *given: None,
    roughly: float = _ROUGHLY,
    words: Words = _WORDS,
) -> ProbeExercise:
    """An exercise that is judged by `first`, then the gradients it leaves, then `also`.

    Where traffic is looked at, `sent` is what ranks send each other, `look` what else counts, `roughly` the tolerance.
    """
    twice = {name: replace(level, cases=_values_first(level.cases)) for name, level in levels.items()}

    def verdict(case: Any, found: Scene, reports: tuple[Report, ...], book: Ledger) -> str | None:
        reason = (
            first(case, found, reports)
            or wrong_values(found, reports, possible(causes, case, twice), words, roughly if case.look else None)
            or wrong_means(book, words.means)
            or also(case, found, reports)
            or (_wrong_traffic(book, sent(case), words.traffic) if case.look and sent else None)
            or (look(case, found, reports, book) if case.look else None)
        )
        return f"{case}: {reason}" if reason else None

    return ProbeExercise(
        key=key,
        title=title,
        inputs=lambda case, seed: _made(scene, case, seed, torch.float32 if case.look else torch.float64),
        probe=_take,
        verdict=verdict,
        levels=twice,
        hints=hints,
        slips=slips,
        left=_left,
        instead=partial(_in_float32, scene),
    )


def causes_of_averages(micro_batches: Callable[[Any], int] = lambda case: 1) -> tuple[Cause, ...]:
    """What gives a ratio of gradients that are averaged over the ranks."""
    common = [
        (lambda case, of=cause.ratio: of(case.world_size, micro_batches(case)), cause.question)
        for cause in OF_GRADIENTS
    ]
    fixed = "is a 4 written in, where world_size belongs? Here it is {}"
    return (*common, (lambda case: case.world_size / 4, lambda case: fixed.format(case.world_size)))


def _made(scene: Callable[[Any, int], Scene], case: _Case, seed: int, dtype: torch.dtype) -> Scene:
    with in_dtype(dtype):
        return scene(case, seed)


def _in_float32(scene: Callable[[Any, int], Scene], case: _Case, seed: int, error: RankError) -> Scene | None:
    """The case as an answer sees it that takes every tensor for float32, where that may be what went wrong."""
    return None if case.look or not _NAMES_FLOAT32.search(str(error)) else _made(scene, case, seed, torch.float32)


def _take(answer: Callable[..., Any], scene: Scene) -> Report:
    return scene.run(answer)


def _values_first(cases: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(one for case in cases for one in ((replace(case, look=False), case) if case.look else (case,)))


def _left(case: _Case, scene: Scene, trial: Trial) -> Any:
    """Gradients that are wrong; or, where traffic is looked at, the bytes of each message."""
    got, want = together(trial.reports), scene.wanted[0]
    if not case.look:
        return None if agree(got, want) else got
    sent = {pair: sorted(event.nbytes for event in sends) for pair, sends in sent_by_pair(trial.events).items()}
    return sent, agree(got, want, _ROUGHLY)


def possible(causes: Sequence[Cause], case: Any, levels: Mapping[str, Level]) -> Causes:
    """Those that would have shown in no case before; a level comes to a case only if the ones before it are right."""
    cases = next(level.cases for level in levels.values() if case in level.cases)
    before = cases[: cases.index(case)]
    fitting = [(of, text) for of, text in causes if not callable(of) or all(of(c) in (1, of(case)) for c in before)]
    found = [(of(case) if callable(of) else of, text if isinstance(text, str) else text(case)) for of, text in fitting]
    return [(ratio, text) for ratio, text in found if ratio != 1]


def wrong_values(
    scene: Scene, reports: Sequence[Report], causes: Causes, words: Words, tolerance: float | None = None
) -> str | None:
    """Gradients, weights, loss, then how much was computed at once; within rounding, or else a relative tolerance."""
    got, (want, _) = together(reports), scene.wanted
    if formal := malformed(got, want, words.nan):
        return formal
    if not agree(got, want, tolerance):
        return differing(got, want, causes, scene.own)
    if any(report.changed for report in reports):
        return "right gradients, but the weights have changed: the optimizer comes later"
    return _wrong_loss(scene, reports, words, tolerance or _OF_LOSSES[scene.dtype]) or _too_much_at_once(
        scene, reports, words.too_much
    )


def _wrong_loss(scene: Scene, reports: Sequence[Report], words: Words, tolerance: float) -> str | None:
    want = scene.wanted[1]
    for rank in scene.told:
        loss, where = reports[rank].loss, f"right gradients, but the loss on rank {rank}"
        if isinstance(loss, str):
            advice = ": return loss.item()" * (loss != "NoneType")
            return f"right gradients, but rank {rank} {wrong_kind(loss, 'the loss as a number')}{advice}"
        if not isfinite(loss):
            return f"{where} is {loss}{f': {words.nan}' * (words.nan != TOO_EARLY)}"
        if not isclose(loss, want, rel_tol=tolerance):
            return f"{where} is {exactly(loss / want)} that of all rows{words.loss}"
    return None


def _too_much_at_once(scene: Scene, reports: Sequence[Report], too_much: str) -> str | None:
    for rank, report in enumerate(reports):
        if scene.rows and report.forwards.rows > scene.rows:
            rows = f"one forward on rank {rank} takes {report.forwards.rows} rows, where {scene.rows} are enough"
            return f"right values, but {rows}: {too_much}"
        if scene.held and report.forwards.held > scene.held:
            return f"right values, but on rank {rank} {report.forwards.held} forwards wait for backward: {too_much}"
        if scene.share and (many := len(report.forwards.inputs)) > scene.share:
            return f"right values, but rank {rank} computes {many} rows, of which {scene.share} are its own: {too_much}"
    return None


def _wrong_traffic(book: Ledger, want: Sent, advice: str) -> str | None:
    """None if every rank sent every other one `want[rank][other]`, else the first that did not."""
    sent = sent_by_pair(book.events)
    for rank, row in enumerate(want):
        for other, target in enumerate(row):
            sends = [event.nbytes for event in sent.get((rank, other), ())]
            if target[0] and not sends:
                found = f"the ledger has no message from rank {rank} to rank {other}"
                return f"values right, but {found}: use comm.send and comm.recv, not torch.distributed's own calls"
            if (len(sends), sum(sends)) != target:
                found = f"rank {rank} sends rank {other} {_messages(len(sends), sum(sends))}"
                return f"values right, but {found}, target {_messages(*target)}: {advice}"
    return None


def _messages(number: int, nbytes: int) -> str:
    return f"{plural(number, 'message')} of {nbytes} bytes in all" if number else "nothing"
