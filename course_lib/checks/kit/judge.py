"""Exercises from tensor to tensor on every rank: what the numbers, the input and the ledger say, in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor

from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.said import wrong_kind, wrong_means
from course_lib.checks.kit.signature import Puzzle, diagnose, only_own_part
from course_lib.checks.kit.spec import Case, Level
from course_lib.comm import ledger
from course_lib.comm.ledger import Event, Ledger
from course_lib.comm.traces import Traffic, count_steps, unmatched
from course_lib.costs.comm.traffic import CommTime
from course_lib.verify.causes import BYTES, MESSAGES, STEPS, explain
from course_lib.verify.ratios import times

_TRAFFIC = {"messages": MESSAGES, "steps": STEPS, "bytes": BYTES}
_POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv"})


@dataclass(frozen=True, kw_only=True)
class _Tensors:
    """What goes in on each rank, what must come out, and what it may cost."""

    arguments: Callable[[Case, int, int], tuple[Any, ...]]  # (case, seed, rank), called on the rank
    puzzle: Callable[[Case, int], Puzzle]  # (case, seed)
    shape: Callable[[Case, int], tuple[int, ...]]  # of a rank's result
    cost: Callable[[Case], CommTime]
    allowed: frozenset[str] = frozenset()  # collectives of the library that may be called
    forbidden_algorithm: str = ""  # of the library: the exercise itself
    extra: Callable[[Case, list[list[int]]], str | None] = lambda case, matrix: None
    compare: Callable[[Sequence[Tensor], Puzzle], str | None] = diagnose  # flat results by rank
    also: Callable[[Case, Ledger, str], str] = lambda case, book, reason: ""  # what the ledger adds to wrong values


class _Given(NamedTuple):
    """What every rank's run starts from."""

    arguments: Callable[[Case, int, int], tuple[Any, ...]]
    case: Case
    seed: int


class _Report(NamedTuple):
    """What a rank's call returned; of what is no tensor, the type's name."""

    result: Any


def write_exercise(
    *, key: str, title: str, levels: Mapping[str, Level], hints: tuple[str, ...], **facts: Any
) -> ProbeExercise:
    """An exercise whose answer is a function from tensor to tensor on every rank; `facts` are those of `_Tensors`."""
    tensors = _Tensors(**facts)
    return ProbeExercise(
        key=key,
        title=title,
        inputs=lambda case, seed: _Given(tensors.arguments, case, seed),
        probe=_attempt,
        verdict=partial(_judge, tensors),
        levels=levels,
        hints=hints,
    )


def _attempt(function: Callable[..., Any], start: _Given) -> _Report:
    """Runs on a rank."""
    given = start.arguments(start.case, start.seed, dist.get_rank())
    ledger.clear()
    result = function(*given)
    return _Report(result.detach().clone() if isinstance(result, Tensor) else type(result).__name__)


def _judge(tensors: _Tensors, case: Case, given: _Given, reports: tuple[_Report, ...], book: Ledger) -> str | None:
    """None if the run is right, else why not. The order is that of a learner's progress."""
    reason = (
        _wrong_form(tensors, case, reports)
        or _wrong_values(tensors, case, reports, tensors.puzzle(case, given.seed), book)
        or _wrong_means(tensors, case, book)
        or (_too_much(tensors, case, book) if case.traffic else None)
    )
    return f"{case}: {reason}" if reason else None


def _wrong_values(
    tensors: _Tensors, case: Case, reports: tuple[_Report, ...], puzzle: Puzzle, book: Ledger
) -> str | None:
    results = [report.result.reshape(-1) for report in reports]
    ranks = range(puzzle.world_size)
    if only_own_part(results, puzzle) and all(book.messages(rank) >= puzzle.world_size - 1 for rank in ranks):
        return (
            "rank 0 returned its own chunk 0 with nothing added. Either what you added stayed in a variable of yours "
            "(chunks[i] += inbox writes it back), or chunk 0 started on rank 0, where it should have started on rank 1"
        )
    reason = tensors.compare(results, puzzle)
    return reason and reason + tensors.also(case, book, reason)


def _wrong_form(tensors: _Tensors, case: Case, reports: tuple[_Report, ...]) -> str | None:
    for rank, report in enumerate(reports):
        if not isinstance(report.result, Tensor):
            return f"rank {rank} {wrong_kind(report.result, 'a tensor')}"
        got, want = tuple(report.result.shape), tensors.shape(case, rank)
        if got != want:
            return f"rank {rank} returned shape {got}, expected {want}"
        dtype = str(report.result.dtype).removeprefix("torch.")
        if dtype != case.dtype:
            return f"rank {rank} returned {dtype}, expected {case.dtype} as in the input"
        if not report.result.isfinite().all():
            strange = "nan" if report.result.isnan().any() else "inf"
            return f"rank {rank} holds {strange}: a division by zero, or memory that was never filled?"
    return None


def _wrong_means(tensors: _Tensors, case: Case, book: Ledger) -> str | None:
    """Right values by a call that is the exercise itself, by no recorded call at all, or with messages left over."""
    foreign = {e.operation for e in book.events} - _POINT_TO_POINT - tensors.allowed
    if tensors.forbidden_algorithm and any(e.algorithm == tensors.forbidden_algorithm for e in book.events):
        foreign = {f"all_reduce(..., algorithm={tensors.forbidden_algorithm!r})"}
    means = " and ".join(f"comm.{name}" for name in sorted(tensors.allowed)) or "comm.irecv and comm.isend"
    if foreign:
        return f"right values, but by comm.{min(foreign)}: this exercise asks you to build it from {means}"
    if tensors.cost(case).total_bytes == 0:
        return unmatched(book.events)
    means += ", not torch.distributed's own calls"
    return wrong_means(book, means) or _out_of_sight(book, means)


def _out_of_sight(book: Ledger, means: str) -> str | None:
    """Some ranks whose numbers have reached all, though by the ledger no message connects them with the others."""
    pairs = {(event.rank, event.peer) for event in book.events if event.kind == "send"}
    met = {0}
    for _ in range(book.world_size):
        met |= {to for pair in pairs for to in pair if to is not None and met & set(pair)}
    alone = set(range(book.world_size)) - met
    if not alone:
        return None
    one, other = (", ".join(map(str, sorted(ranks))) for ranks in (met, alone))
    return f"right values, but the ledger has no message between ranks {one} and {other}: use {means}"


def _too_much(tensors: _Tensors, case: Case, book: Ledger) -> str | None:
    """Messages and steps, bytes of the busiest rank and of all: each at most the formula's."""
    cost, found = tensors.cost(case), Traffic.measured(book)
    if found.messages == tuple(cost.messages) and sum(found.sent_bytes) == 2 * cost.total_bytes:
        return (
            f"values right, bytes {times(2)} the target: the right number of messages, each twice as long. "
            "Do the tensors travel as float64? Send them in their own dtype, and widen only to add"
        )
    special = tensors.extra(case, book.matrix())
    return f"values right, {special}" if special else over_cost(cost, book.events, case.world_size)


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
            meaning = explain(got / limit, world_size, _TRAFFIC[name])
            if name == "bytes" and sum(found.sent_bytes) <= cost.total_bytes:
                meaning = "all ranks together send no more than they should, so one of them sends for others"
            return f"{text}; {meaning}" if meaning else text
    return None
