"""Exercises in which each rank has its part of a layer: what it must return, part for part, and what that may cost.

All is judged in float64, where no sum that cancels looks wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.kit.form import another, wrong_form
from course_lib.checks.kit.gradients import differing
from course_lib.checks.kit.left_over import picture
from course_lib.checks.kit.probe import ProbeExercise, Slips
from course_lib.checks.kit.runner import Trial
from course_lib.checks.kit.said import plural, wrong_kind, wrong_means
from course_lib.checks.kit.scene import in_dtype
from course_lib.checks.kit.spec import FP64, Level
from course_lib.checks.kit.step import Cause, possible
from course_lib.checks.kit.work import Work, import_sympy
from course_lib.comm import ledger
from course_lib.comm.ledger import Ledger
from course_lib.costs.comm.collectives import comm_time
from course_lib.verify.causes import Causes
from course_lib.verify.equality import close
from course_lib.verify.numbers import number_of


class Asked(NamedTuple):
    """One collective: the rows of its whole tensor, the numbers of a row, and on how many ranks, if not on all."""

    operation: str
    rows: int
    row: int = 1
    ranks: int = 0


class _Case(Protocol):
    """One run; where it `looks`, traffic and work count as well."""

    @property
    def world_size(self) -> int: ...
    @property
    def look(self) -> bool: ...


def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What each rank is given and what it must return, in the order of the exercise's names.

    `terms` are what a rank has of a sum before anything was added up, by name. Where the answer is no function that
    returns all of it, `drive` uses the answer and returns what it got.
    """

    arguments: Sequence[tuple[Any, ...]]  # by rank
    wanted: Sequence[tuple[Tensor, ...]]  # by rank
    terms: Sequence[Mapping[str, Tensor]] = ()  # by rank
    made: Callable[[], tuple[Any, ...]] = lambda: ()  # more arguments, made on the rank
    multiplications: int = 0  # that a rank needs in products of matrices; 0: any number
    normalised: int = 0  # rows, which a rank need not normalise all; 0: any number
    drive: Callable[..., Any] = _called  # of the answer and its arguments


class Noted(NamedTuple):
    """What a drive got from an answer, and what it saw meanwhile."""

    results: tuple[Any, ...]
    notes: Mapping[str, int]


class Report(NamedTuple):
    """What one rank's call returned; of what is no tensor and no number, the type's name."""

    results: tuple[Tensor | str, ...]
    together: str  # the type's name if there are not several results
    changed: bool  # what the objects of a class were given
    multiplications: int
    normalised: int  # rows
    notes: Mapping[str, int] = {}


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What is said besides slips: of each result's ratios, of what is no number, of bytes and calls, work and norms."""

    causes: Mapping[str, Sequence[Cause]] = field(default_factory=dict)  # by name
    nan: Callable[[Any], str] = lambda case: ""  # of the case
    traffic: str | Callable[[Any, Counter[str]], str] = ""  # of the case, and how often each collective was called
    work: str = ""
    norm: str = ""
    noted: Callable[[Any, Sequence[Report]], str | None] = lambda case, reports: None  # by a drive, of right values
    sent: Callable[[Any, Ledger], str | None] = lambda case, book: None  # by the ledger, of right values


def parts_exercise(
    *,
    key: str,
    title: str,
    names: tuple[str, ...],
    draw: Callable[[Any, int], Parts],
    asked: Callable[[Any], Sequence[Asked]],
    levels: Mapping[str, Level],
    hints: tuple[str, ...],
    slips: Slips,
    advice: Advice,
    only: Callable[[Any], Sequence[int]] | None = None,
    known_by: int | None = None,
    warm_up: Callable[[], None] = import_sympy,
) -> ProbeExercise:
    """An exercise whose answer returns `names` on each rank; `asked` are the collectives that are enough.

    `only` are the places of the names that a case looks at, `known_by` is that of the one that gives a slip away.
    """

    def looked_at(case: Any) -> Sequence[int]:
        return range(len(names)) if only is None else only(case)

    def verdict(case: Any, given: Parts, reports: tuple[Report, ...], book: Ledger) -> str | None:
        causes = partial(_causes, advice, case, levels)
        found = (
            _wrong_number(names, reports)
            or _first_wrong(names, looked_at(case), given, reports, causes, advice.nan(case))
            or _besides_values(case, given, reports, book, asked(case), advice)
        )
        return f"{case}: {found}" if found else None

    return ProbeExercise(
        key=key,
        title=title,
        inputs=_drawn(draw),
        probe=_attempt,
        verdict=verdict,
        warm_up=warm_up,
        levels=levels,
        hints=hints,
        slips=slips,
        left=lambda case, given, trial: _left(case, given, trial, looked_at(case), known_by),
    )


def cut(x: Tensor, world_size: int, dim: int = 0) -> list[Tensor]:
    """The ranks' parts, each with its own memory, as `torch.tensor_split` cuts."""
    return [part.clone() for part in x.tensor_split(world_size, dim)]


def own_part(x: Tensor) -> Tensor:
    """Runs on a rank: what it has of `x`, as `torch.tensor_split` cuts; a view."""
    return x.tensor_split(dist.get_world_size())[dist.get_rank()]


def generator(seed: int, *sizes: int) -> torch.Generator:
    """Of a case's random numbers."""
    mixed = seed
    for size in sizes:
        mixed = mixed * 1009 + size
    return torch.Generator().manual_seed(mixed)


def _drawn(draw: Callable[[Any, int], Parts]) -> Callable[[Any, int], Parts]:
    def inputs(case: Any, seed: int) -> Parts:
        with in_dtype(torch.float64):
            return draw(case, seed)

    return inputs


def _attempt(function: Callable[..., Any], given: Parts) -> Report:
    """Runs on a rank."""
    mine = given.arguments[dist.get_rank()]
    with in_dtype(torch.float64):
        arguments = [x.clone() if isinstance(x, Tensor) else x for x in mine]
        more = given.made()
        ledger.clear()
        with Work() as work:
            result = given.drive(function, *arguments, *more)
    result, notes = result if isinstance(result, Noted) else (result, {})
    kept = list(ledger.current())
    changed = isinstance(function, type) and picture(mine) != picture(arguments)
    ledger.clear()
    ledger.current().extend(kept)
    if not isinstance(result, tuple | list):
        return Report((), type(result).__name__, changed, 0, 0)
    wanted = given.wanted[dist.get_rank()]
    found = [_tensor(x, wanted[place] if place < len(wanted) else None) for place, x in enumerate(result)]
    return Report(tuple(found), "", changed, work.multiplications, work.normalised, notes)


def _tensor(x: Any, like: Tensor | None) -> Tensor | str:
    """A result as a tensor: a list of numbers or one number may be one; else its type's name."""
    if not isinstance(x, Tensor):
        numbers = list(x) if isinstance(x, list | tuple | range) else [x]
        if any(number_of(one) is None for one in numbers):
            return type(x).__name__
        x = torch.tensor(numbers, dtype=like.dtype if like is not None else None)
    one = like is not None and like.numel() == x.numel() == 1
    return x.detach().clone().reshape(like.shape if one and like is not None else x.shape)


def _wrong_number(names: tuple[str, ...], reports: Sequence[Report]) -> str | None:
    several = f"{len(names)} things: {', '.join(names)}"
    for rank, report in enumerate(reports):
        if report.together:
            return f"rank {rank} {wrong_kind(report.together, several)}"
        if len(report.results) != len(names):
            return f"rank {rank} returned {plural(len(report.results), 'thing')}, not {several}"
    return None


def _first_wrong(
    names: tuple[str, ...],
    places: Sequence[int],
    given: Parts,
    reports: Sequence[Report],
    causes: Callable[[str], Causes],
    nan: str,
) -> str | None:
    """Of the first result that is wrong, its form or what its values reveal."""
    for place in places:
        name, want = names[place], [wanted[place] for wanted in given.wanted]
        results = [report.results[place] for report in reports]
        for rank, pair in enumerate(zip(results, want, strict=True)):
            swapped = another(names, place, pair[0], given.wanted[rank]) if given.drive is _called else None
            if form := swapped or wrong_form(*pair, len(reports), nan):
                return f"{name} on rank {rank}{form}"
        got = [found for found in results if isinstance(found, Tensor)]
        if not _all_close(got, want):
            terms = [mine[name] for mine in given.terms if name in mine]
            return _wrong_values(name, got, want, terms, causes(name))
    return None


def _wrong_values(
    name: str, got: Sequence[Tensor], want: Sequence[Tensor], terms: Sequence[Tensor], causes: Causes
) -> str:
    if len(terms) > 1 and _all_close(got, terms):
        return f"{name} is on each rank its own term of a sum: the other ranks' terms are missing"
    if not want[0].is_floating_point():
        rank = next(rank for rank, right in enumerate(want) if not close(got[rank], right))
        return f"{name} on rank {rank} are {got[rank].tolist()}, expected {want[rank].tolist()}"
    if together := _put_together(got, want):
        return f"{name} is on every rank the {together}. But these are different things, and each is complete by itself"
    one, other = ({(rank, name): x for rank, x in enumerate(side)} for side in (got, want))
    return differing(one, other, causes, {}).replace("your gradient is", f"{name} is")


def _put_together(got: Sequence[Tensor], want: Sequence[Tensor]) -> str:
    """Which wrong thing was made of parts that are not terms of a sum; empty if none was."""
    if len({x.shape for x in want}) > 1 or all(close(x, want[0]) for x in want):
        return ""
    total = torch.stack(list(want)).sum(0)
    ways = {"sum": total, "average": total / len(want)}
    return next((f"{way} of all ranks' parts" for way, x in ways.items() if _all_close(got, [x] * len(want))), "")


def _causes(advice: Advice, case: _Case, levels: Mapping[str, Level], name: str) -> list[tuple[float, str]]:
    return list(possible(advice.causes.get(name, ()), case, levels))


def _besides_values(
    case: Any, given: Parts, reports: Sequence[Report], book: Ledger, asked: Sequence[Asked], advice: Advice
) -> str | None:
    """What is wrong where the values are right."""
    return (
        _changed(reports)
        or (_wrong_means(given, reports, book) if asked else None)
        or advice.noted(case, reports)
        or advice.sent(case, book)
        or (_too_much(case, given, reports, book, asked, advice) if case.look else None)
    )


def _changed(reports: Sequence[Report]) -> str | None:
    changed = [rank for rank, report in enumerate(reports) if report.changed]
    return f"right values, but what rank {changed[0]} was given is overwritten: work on a copy" if changed else None


def _wrong_means(given: Parts, reports: Sequence[Report], book: Ledger) -> str | None:
    """What is said if nothing was sent: past the ledger, or because every rank did everything."""
    too_many = given.multiplications and min(report.multiplications for report in reports) > given.multiplications
    if book.world_size > 1 and not book.events and too_many:
        return "right values, but every rank did the whole work: so nothing had to be sent, and nothing was saved"
    return wrong_means(book, "comm's collectives, not torch.distributed's own")


def _too_much(
    case: Any, given: Parts, reports: Sequence[Report], book: Ledger, asked: Sequence[Asked], advice: Advice
) -> str | None:
    """Bytes of the busiest rank, calls, products, then norms."""
    limits = [
        max(
            comm_time(
                one.operation,
                "ring",
                world_size=one.ranks or case.world_size,
                length=one.rows,
                itemsize=FP64 * one.row,
            ).sent_bytes
        )
        for one in asked
    ]
    got, want, calls = max(map(book.bytes_sent, range(case.world_size))), sum(limits), _calls(book)
    if got > want or calls.total() > len(asked):
        found = f"a rank sends {got} bytes in {_in_words(calls)}"
        target = f"target {want} bytes in {_in_words(Counter(one.operation for one in asked))}"
        because = advice.traffic if isinstance(advice.traffic, str) else advice.traffic(case, calls)
        return f"values right, but {found}, {target}: {because}"
    for rank, report in enumerate(reports):
        if given.multiplications and report.multiplications > given.multiplications:
            more = f"rank {rank} makes {report.multiplications} multiplications in its products"
            return f"values right, but {more}, target {given.multiplications}: {advice.work}"
        if given.normalised and report.normalised >= given.normalised:
            target = f"target {-(-given.normalised // case.world_size)}"
            return f"values right, but rank {rank} normalises all {given.normalised} positions, {target}: {advice.norm}"
    return None


def _calls(book: Ledger) -> Counter[str]:
    return Counter(operation for _, operation, _ in book.calls())


def _in_words(calls: Counter[str]) -> str:
    return " and ".join(plural(n, name.replace("_", "-")) for name, n in sorted(calls.items())) or "no collective"


def _left(case: _Case, given: Parts, trial: Trial, places: Sequence[int], known_by: int | None) -> Any:
    """Results by rank; where all of them are right, what was sent for them."""
    results = [r.results[place] for r in trial.reports for place in places if place < len(r.results)]
    if _all_close(results, [mine[place] for mine in given.wanted for place in places]):
        return sorted((e.rank, e.operation, e.nbytes) for e in trial.events) if case.look else None
    if known_by is None:
        return results
    known = [report.results[known_by] if report.results else "" for report in trial.reports]
    return None if _all_close(known, [mine[known_by] for mine in given.wanted]) else known


def _all_close(got: Sequence[Tensor | str], want: Sequence[Tensor]) -> bool:
    pairs = zip(got, want, strict=False)
    return len(got) == len(want) and all(isinstance(mine, Tensor) and close(mine, right) for mine, right in pairs)
