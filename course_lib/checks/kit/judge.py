"""From one trial to one sentence: what the numbers, the input and the ledger say."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from torch import Tensor

from course_lib.checks.kit.runner import RankReport, Trial
from course_lib.checks.kit.signature import Puzzle, diagnose, only_own_part
from course_lib.checks.kit.spec import Case, WriteExercise
from course_lib.comm.ledger import Event, Ledger
from course_lib.comm.traces import Traffic, count_steps, unmatched
from course_lib.costs.comm.traffic import CommTime
from course_lib.ranks.report import RankError
from course_lib.verify.causes import BYTES, MESSAGES, STEPS, explain
from course_lib.verify.ratios import times

TRAFFIC = {"messages": MESSAGES, "steps": STEPS, "bytes": BYTES}
UNWRITTEN = re.compile(r"NotImplementedError: Exercise (\d\d\.\d+)")
WAITS = re.compile(r"ranks? (\d+(?:, \d+)*) waits? in (i?send to|i?recv from) (\d+)")
LENGTHS = re.compile(r"recv: rank \d+ sends (\d+) of (\w+), rank \d+ expects (\d+) of (\w+);")
COLLECTIVE = re.compile(r"waits? in \w+ #\d+")
NO_HISTORY = "; backward starts at a tensor without history: was it detached? Only what is sent needs none"
POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv"})


def judge(exercise: WriteExercise, case: Case, trial: Trial, *, seed: int, traffic: bool) -> str | None:
    """None if the trial is right, else why not. The order is that of a learner's progress."""
    if trial.error is not None:
        return ended_badly(trial.error, exercise.key, row=case.row)
    book = Ledger(trial.events, case.world_size)
    return (
        _wrong_form(exercise, case, trial.reports)
        or _wrong_values(trial.reports, exercise.puzzle(case, seed), book)
        or _input_changed(trial.reports)
        or _wrong_means(exercise, case, trial, book)
        or (_too_much(exercise, case, trial, book) if traffic else None)
    )


def ended_badly(error: RankError, key: str, *, row: tuple[int, ...] = ()) -> str:
    """What a hang, a crash or an exception in exercise `key` tells; `row` is the shape of one row of its tensors."""
    text = str(error).removesuffix("; all ranks were restarted, their variables are gone")
    unwritten = UNWRITTEN.search(text)
    if unwritten and unwritten[1] != key:
        return f"it calls your answer to {unwritten[1]}, which is not written yet"
    if unwritten:
        return "not written yet: put your code in place of the line `raise NotImplementedError`"
    lead = {"timeout": "a hang", "died": "a crash", "raised": "an error"}[error.kind]
    advice = _advice_on_hang(text) if error.kind == "timeout" else _advice_on_error(text, row)
    return f"{lead}: {text}{advice}"


def _advice_on_hang(text: str) -> str:
    sends, receives = " send to " in text, " recv from " in text or " irecv from " in text
    if "still run" in text:
        return "; an endless loop? Or far more steps than are needed?"
    gone = _partner_that_returned(text)
    if gone:
        return gone
    if sends and not receives:
        return "; all that wait are sending, nobody receives: start the receive first (comm.irecv), then send"
    if receives and not sends:
        asked = "does each partner send to the rank that expects it, and wait() for each isend?"
        return f"; all that wait are receiving, nobody sends: {asked}"
    if COLLECTIVE.search(text):
        return "; a collective waits until every rank of its group has called it"
    return ""


def _partner_that_returned(text: str) -> str | None:
    """Who waits is in the report; a partner that is not has nothing left to do."""
    found = [([int(rank) for rank in m[1].split(", ")], m[2], int(m[3])) for m in WAITS.finditer(text)]
    waiting = {rank for ranks, _, _ in found for rank in ranks}
    for ranks, call, partner in found:
        if partner not in waiting:
            returned = f"{partner}, which has already returned"
            if "send" in call:
                return f"; rank {ranks[0]} sends to {returned}: is there such a partner in this step?"
            asked = "did it send as often as it is received from, and wait() for each isend?"
            return f"; rank {ranks[0]} receives from {returned}: {asked}"
    return None


def _advice_on_error(text: str, row: tuple[int, ...]) -> str:
    if "does not require grad and does not have a grad_fn" in text:
        return NO_HISTORY
    lengths = LENGTHS.search(text)
    if not lengths or lengths[2] != lengths[4] or abs(int(lengths[1]) - int(lengths[3])) != math.prod(row):
        return ""
    return "; chunks may differ by one row: make the inbox as long as the chunk that comes in"


def _wrong_values(reports: tuple[RankReport, ...], puzzle: Puzzle, book: Ledger) -> str | None:
    results = [report.result.reshape(-1) for report in reports]
    ranks = range(puzzle.world_size)
    if only_own_part(results, puzzle) and all(book.messages(rank) >= puzzle.world_size - 1 for rank in ranks):
        return (
            "rank 0 returned its own chunk 0 with nothing added. If chunk 0 starts on rank 0, "
            f"it is finished on rank {puzzle.world_size - 1}, not on rank 0: start one chunk earlier"
        )
    return diagnose(results, puzzle)


def _wrong_form(exercise: WriteExercise, case: Case, reports: tuple[RankReport, ...]) -> str | None:
    for rank, report in enumerate(reports):
        if not isinstance(report.result, Tensor):
            return f"rank {rank} returned {report.result}, not a tensor: is there a return on every path?"
        got, want = tuple(report.result.shape), exercise.shape(case, rank)
        if got != want:
            return f"rank {rank} returned shape {got}, expected {want}"
        dtype = str(report.result.dtype).removeprefix("torch.")
        if dtype != case.dtype:
            return f"rank {rank} returned {dtype}, expected {case.dtype} as in the input"
    return None


def _input_changed(reports: tuple[RankReport, ...]) -> str | None:
    changed = [rank for rank, report in enumerate(reports) if report.input_changed]
    if not changed:
        return None
    return f"right result, but rank {changed[0]}'s input was overwritten: chunks are views; start from x.clone()"


def _wrong_means(exercise: WriteExercise, case: Case, trial: Trial, book: Ledger) -> str | None:
    """Right values by a call that is the exercise itself, by no recorded call at all, or with messages left over."""
    foreign = {e.operation for e in trial.events} - POINT_TO_POINT - exercise.allowed
    if exercise.forbidden_algorithm and any(e.algorithm == exercise.forbidden_algorithm for e in trial.events):
        foreign = {f"all_reduce(..., algorithm={exercise.forbidden_algorithm!r})"}
    if foreign:
        means = " and ".join(f"comm.{name}" for name in sorted(exercise.allowed)) or "comm.isend and comm.irecv"
        return f"right values, but by comm.{min(foreign)}: this exercise asks you to build it from {means}"
    if case.world_size > 1 and exercise.cost(case).total_bytes and not _total_sent(book):
        return "right values, but nothing is in the ledger: use comm.isend and irecv, not torch.distributed's own calls"
    return unmatched(trial.events)


def _too_much(exercise: WriteExercise, case: Case, trial: Trial, book: Ledger) -> str | None:
    """Messages and steps, bytes of the busiest rank and of all: each at most the formula's."""
    special = exercise.extra(case, book.matrix())
    return f"values right, {special}" if special else over_cost(exercise.cost(case), trial.events, case.world_size)


def over_cost(cost: CommTime, events: Sequence[Event], world_size: int) -> str | None:
    """By how much the recorded traffic exceeds the formula's, and what that suggests."""
    found = Traffic.measured(Ledger(events, world_size))
    measures = (
        ("messages", sum(found.messages), sum(cost.messages), "messages of all ranks"),
        ("steps", count_steps(events), cost.steps, "steps that wait for one another"),
        ("bytes", max(found.sent_bytes), max(cost.sent_bytes), "B sent by the busiest rank"),
        ("bytes", sum(found.sent_bytes), cost.total_bytes, "B sent by all ranks"),
    )
    for name, got, limit, unit in measures:
        if got > limit:
            text = f"values right, {name} {times(got / limit)} the target: {got} {unit}, target {limit}"
            meaning = explain(got / limit, world_size, TRAFFIC[name])
            return f"{text}; {meaning}" if meaning else text
    return None


def _total_sent(book: Ledger) -> int:
    return sum(map(sum, book.matrix()))
