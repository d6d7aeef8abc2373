"""Exercises that leave gradients on ranks: scene, slips, causes and traffic are data; how to judge is said here, once.

Values are judged in float64, where no sum that cancels looks wrong. A case that looks at traffic runs a second time, in
float32: that is what an exercise counts bytes in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import isclose, isfinite
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checks.kit import models
from course_lib.checks.kit.forwards import Forwards, forwards_of
from course_lib.checks.kit.gradients import Place, agree, differing, gradients_on, malformed
from course_lib.checks.kit.probe import ProbeExercise, Says, Slips
from course_lib.checks.kit.runner import Trial
from course_lib.checks.kit.spec import Level
from course_lib.comm import ledger
from course_lib.comm.ledger import Ledger
from course_lib.comm.traces import sent_by_pair, unmatched
from course_lib.verify.causes import OF_GRADIENTS, Causes
from course_lib.verify.numbers import number_of
from course_lib.verify.ratios import exactly

FP32 = 4
ROUGHLY = 1e-3  # in float32, of values that are right in float64
TOO_EARLY = "was a torch.empty(...) used before its numbers had come in? With irecv, that is after wait()"
Cause = tuple[float | Callable[[Any], float], Says]  # a ratio, and what gives just that; both may be of the case
ALL_ZEROS: Cause = (0.0, "set to zero afterwards, or computed from an inbox before its handle's wait()?")
Sent = Sequence[Sequence[tuple[int, int]]]  # [rank][other]: messages, and their bytes in all


class Case(Protocol):
    """One run, and in its text which; it may `look` at traffic or time."""

    @property
    def world_size(self) -> int: ...
    @property
    def look(self) -> bool: ...


class Report(NamedTuple):
    """One rank after its step."""

    gradients: dict[Place, Tensor | None]
    loss: float | str  # a text says what was returned, if it is no number
    changed: bool  # the weights
    written: bool  # even if with the same numbers
    forwards: Forwards
    more: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One step of training: each rank's part of a model, what the answer gets there, and the same on one device.

    `parts` and `loss` share their weights; of replicas, each part is the model itself.
    """

    parts: Sequence[nn.Module]
    arguments: Callable[[nn.Module, int], tuple[Any, ...]]  # on a rank, from its part
    loss: Callable[[], Tensor]  # of all ranks' data
    alone: Callable[[int], Tensor] | None = None  # of one rank's, if the gradients are averages
    told: Sequence[int] = ()  # the ranks that return the loss
    tensors: bool = False  # whether it may be a tensor
    rows: int = 0  # that one forward may take at most; 0: any number
    held: int = 0  # forwards that may wait for their backward; 0: any number
    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)

    def on_one_device(self, loss: Callable[[], Tensor]) -> tuple[dict[Place, Tensor | None], float]:
        """The gradients that a loss leaves, by the ranks that have them, and its value."""
        with in_dtype(self.dtype):
            for part in self.parts:
                part.zero_grad()
            value = loss()
            value.backward()
        found = [gradients_on(rank, part) for rank, part in enumerate(self.parts)]
        return {place: x for mine in found for place, x in mine.items()}, value.item()

    @cached_property
    def wanted(self) -> tuple[dict[Place, Tensor | None], float]:
        """What all ranks together must have, and the loss."""
        return self.on_one_device(self.loss)

    @cached_property
    def own(self) -> dict[Place, Tensor | None]:
        """Each rank's gradients if nothing is averaged; empty where that is right."""
        if self.alone is None or len(self.parts) == 1:
            return {}
        found = [self.on_one_device(partial(self.alone, rank))[0] for rank in range(len(self.parts))]
        return {(rank, name): found[rank][rank, name] for rank, name in found[0]}

    def run(self, program: Callable[..., Any]) -> Report:
        """On a rank: let a program take the step. The ledger then holds what it sent."""
        rank = dist.get_rank()
        part = self.parts[rank]
        with in_dtype(self.dtype), _nothing_in_empty(), forwards_of(part) as forwards:
            with self.around(part) as more:
                arguments = self.arguments(part, rank)
                before, untouched = models.state(part), _marks(part)
                ledger.clear()
                loss, gradients = _number(program(*arguments), self.tensors), gradients_on(rank, part)
            after, marks, events = models.state(part), _marks(part), list(ledger.current())
            more |= self.after(arguments)
            ledger.clear()
            ledger.current().extend(events)
        changed = any(not before[name].equal(after[name]) for name in before)
        return Report(gradients, loss, changed, marks != untouched, forwards, more)

    @contextmanager
    def around(self, part: nn.Module) -> Iterator[dict[str, Any]]:
        """Around the answer and the making of its arguments; what it yields is reported."""
        yield {}

    def after(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        """On a rank, once the step is over: more that is reported."""
        return {}


@contextmanager
def in_dtype(dtype: torch.dtype) -> Iterator[None]:
    """What torch makes is of this type, unless it is told otherwise."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _nothing_in_empty() -> Iterator[None]:
    """Let torch.empty give nan: what is read too early shows, where old memory may hold the right numbers."""
    torch.set_deterministic_debug_mode("warn")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode("default")


def _marks(part: nn.Module) -> list[tuple[int, int]]:
    """What writing a weight changes, even if its numbers stay."""
    return [(p._version, p.data_ptr()) for p in part.parameters()]


def _number(loss: object, tensors: bool) -> float | str:
    """A number as it is, anything else in words: it need not be able to travel."""
    if isinstance(loss, Tensor) and tensors and loss.numel() == 1:
        loss = loss.item()
    if isinstance(loss, Tensor):
        return "a tensor with its history" if loss.requires_grad else "a tensor"
    number = number_of(loss)
    return type(loss).__name__ if number is None else float(number)


def step_exercise(
    *,
    key: str,
    title: str,
    scene: Callable[[Any, int], Scene],
    levels: Mapping[str, Level],
    hints: tuple[str, ...],
    slips: Slips = MappingProxyType({}),
    causes: Sequence[Cause] = (),
    look: Callable[[Any, Any, Sequence[Report], Ledger], str | None] = lambda *given: None,
    first: Callable[[Any, Any, Sequence[Report]], str | None] = lambda *given: None,
    also: Callable[[Any, Any, Sequence[Report]], str | None] = lambda *given: None,
    nan: str = TOO_EARLY,
    loss: str = "",
    means: str = "comm's collectives, not torch.distributed's own",
    too_much: str = "",
) -> ProbeExercise:
    """An exercise that is judged by `first`, then the gradients it leaves, then `also`, then its traffic in `look`."""
    twice = {name: replace(level, cases=_values_first(level.cases)) for name, level in levels.items()}

    def verdict(case: Any, found: Scene, reports: tuple[Report, ...], book: Ledger) -> str | None:
        known = _possible(causes, case, twice)
        reason = (
            first(case, found, reports)
            or _wrong_gradients(case, found, reports, known, nan)
            or _wrong_loss(found, reports, nan, loss)
            or _wrong_means(reports, book, means)
            or _too_much_at_once(found, reports, too_much)
            or also(case, found, reports)
            or (look(case, found, reports, book) if case.look else None)
        )
        return f"{case}: {reason}" if reason else None

    return ProbeExercise(
        key=key,
        title=title,
        inputs=partial(_made, scene),
        probe=_take,
        verdict=verdict,
        levels=twice,
        hints=hints,
        slips=slips,
        left=_left,
    )


def causes_of_averages(micro_batches: Callable[[Any], int] = lambda case: 1) -> tuple[Cause, ...]:
    """What gives a ratio of gradients that are averaged over the ranks."""
    common = [
        (lambda case, of=cause.ratio: of(case.world_size, micro_batches(case)), cause.question)
        for cause in OF_GRADIENTS
    ]
    fixed = "is a 4 written in, where world_size belongs? Here it is {}"
    return (*common, (lambda case: case.world_size / 4, lambda case: fixed.format(case.world_size)))


def _made(scene: Callable[[Any, int], Scene], case: Case, seed: int) -> Scene:
    with in_dtype(torch.float32 if case.look else torch.float64):
        return scene(case, seed)


def _take(answer: Callable[..., Any], scene: Scene) -> Report:
    return scene.run(answer)


def _values_first(cases: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(one for case in cases for one in ((replace(case, look=False), case) if case.look else (case,)))


def _left(case: Case, scene: Scene, trial: Trial) -> Any:
    """Gradients that are wrong; or, where traffic is looked at, the bytes of each message."""
    got, want = together(trial.reports), scene.wanted[0]
    if not case.look:
        return None if agree(got, want) else got
    sent = {pair: sorted(event.nbytes for event in sends) for pair, sends in sent_by_pair(trial.events).items()}
    return sent, agree(got, want, ROUGHLY)


def together(reports: Sequence[Report]) -> dict[Place, Tensor | None]:
    """The gradients of all ranks."""
    return {place: x for report in reports for place, x in report.gradients.items()}


def _possible(causes: Sequence[Cause], case: Any, levels: Mapping[str, Level]) -> Causes:
    """Those that would have shown in no case before; a level comes to a case only if the ones before it are right."""
    cases = next(level.cases for level in levels.values() if case in level.cases)
    before = cases[: cases.index(case)]
    fitting = [(of, text) for of, text in causes if not callable(of) or all(of(c) in (1, of(case)) for c in before)]
    found = [(of(case) if callable(of) else of, text if isinstance(text, str) else text(case)) for of, text in fitting]
    return [(ratio, text) for ratio, text in found if ratio != 1]


def _wrong_gradients(case: Case, scene: Scene, reports: Sequence[Report], causes: Causes, nan: str) -> str | None:
    got, (want, _) = together(reports), scene.wanted
    if formal := malformed(got, want, nan):
        return formal
    return None if agree(got, want, ROUGHLY if case.look else None) else differing(got, want, causes, scene.own)


def _wrong_loss(scene: Scene, reports: Sequence[Report], nan: str, advice: str) -> str | None:
    if any(report.changed for report in reports):
        return "right gradients, but the weights have changed: the optimizer comes later"
    want = scene.wanted[1]
    for rank in scene.told:
        loss = reports[rank].loss
        if isinstance(loss, str):
            return f"right gradients, but rank {rank} returned {loss}, not the loss as a number: loss.item()"
        if not isfinite(loss):
            return f"right gradients, but the loss on rank {rank} is {loss}{f': {nan}' if nan != TOO_EARLY else ''}"
        if not isclose(loss, want, rel_tol=ROUGHLY if scene.dtype == torch.float32 else 1e-9):
            return f"right gradients, but the loss on rank {rank} is {exactly(loss / want)} that of all rows{advice}"
    return None


def _wrong_means(reports: Sequence[Report], book: Ledger, means: str) -> str | None:
    if len(reports) > 1 and not any(event.kind == "send" for event in book.events):
        return f"right values, but nothing is in the ledger: use {means}"
    return unmatched(book.events)


def _too_much_at_once(scene: Scene, reports: Sequence[Report], too_much: str) -> str | None:
    for rank, report in enumerate(reports):
        if scene.rows and report.forwards.rows > scene.rows:
            rows = f"one forward on rank {rank} takes {report.forwards.rows} rows, where {scene.rows} are enough"
            return f"right values, but {rows}: {too_much}"
        if scene.held and report.forwards.held > scene.held:
            return f"right values, but on rank {rank} {report.forwards.held} forwards wait for backward: {too_much}"
    return None


def wrong_traffic(book: Ledger, want: Sent, advice: str) -> str | None:
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
    return f"{number} message{'s' * (number != 1)} of {nbytes} bytes in all" if number else "nothing"
