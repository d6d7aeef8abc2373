"""12.4: how many microseconds of each collective are exposed in a GPU's traces, read by a script of one's own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any

from course_lib.checks.kit.said import plural
from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import Level
from course_lib.checks.kit.traces import Event, union
from course_lib.checks.module_12.traced import COLLECTIVE, TracedStep
from course_lib.gauges.exposed import length, without

_KIND = re.compile(COLLECTIVE + r"([A-Za-z]+)")
_LINE = re.compile(r"^(\S+\.json):? +(\S+) +(-?\d\S*)", re.MULTILINE)
_FSDP = ("AllGather", "ReduceScatter", "AllReduce")
_Found = dict[str, float]  # microseconds by the collective's name, the most exposed one first


@dataclass(frozen=True, kw_only=True)
class _Traces(Start):
    """The traces that lie in the folder."""

    text: str
    steps: tuple[TracedStep, ...]

    def __str__(self) -> str:
        return self.text


def _texts(case: _Traces, seed: int) -> dict[str, str]:
    return {step.file: step.written(seed) for step in case.steps} | {"job.log": "no trace\n"}


def _verdict(case: _Traces, ran: Ran) -> str | None:
    """The names of each trace, then the microseconds, then which stands first; and which mistake gives all of this."""
    found: dict[str, _Found] = {}
    for path, name, number in _LINE.findall(ran.ended[0].printed):
        of_trace = found.setdefault(Path(path).name, {})
        if name in of_trace:
            return f"of {Path(path).name} it prints two lines for {name}: add up what is exposed of one name"
        try:
            of_trace[name] = float(number)
        except ValueError:
            return f"of {Path(path).name} it prints {number!r} for {name}, and microseconds are asked"
    written = {name: text for name, text in ran.beside.items() if name.endswith(".json")}
    traces = {name: json.loads(text)["traceEvents"] for name, text in written.items()}
    if missing := [name for name in traces if name not in found]:
        if found:
            return f"it prints nothing of {missing[0]}, but of {', '.join(found)}: does it open every file?"
        lines = plural(len(ran.ended[0].printed.splitlines()), "line")
        return f"it prints {lines}, and none begins with {missing[0]}, a name and a number"
    reasons = (_wrong(name, found[name], exposed_us(events)) for name, events in traces.items())
    reason = next(filter(None, reasons), None)
    if not reason:
        return None
    whys = (why for why, mistake in MISTAKES.items() if _same(found, traces, mistake))
    return ": ".join([reason, *whys][:2])


def _wrong(trace: str, found: _Found, right: _Found) -> str | None:
    if found.keys() != right.keys():
        names = f"the names in {trace} are {', '.join(sorted(found))}, expected {', '.join(sorted(right))}"
        return names + _why_others(found, right)
    for name, want in right.items():
        if not _near(found[name], want):
            return f"{name} in {trace} is exposed for {found[name]:.1f} us there, and {want:.1f} us are right"
    if list(found) != list(right):
        first, most = next(iter(found)), next(iter(right))
        if first != most:
            return f"the microseconds are right, but {trace} begins with {first}, and of {most} more are exposed"
        return f"the microseconds are right, but in {trace} the names stand as {', '.join(found)}: most first"
    return None


def _why_others(found: _Found, right: _Found) -> str:
    """Which rule of the names was not kept."""
    if any(name not in right and name.startswith(tuple(right)) for name in found):
        return ": a name ends before the first character that is no letter"
    missing = right.keys() - found.keys()
    hidden = missing and not any(right[name] for name in missing)
    return ": one that is never exposed has a line, too" if hidden else ""


def _same(found: Mapping[str, _Found], traces: Mapping[str, Any], mistake: str) -> bool:
    """Whether this mistake gives all of it, also the order."""
    for name, events in traces.items():
        other = exposed_us(events, mistake)
        if list(found[name]) != list(other) or not all(_near(found[name][kind], us) for kind, us in other.items()):
            return False
    return True


def _near(got: float, want: float) -> bool:
    return isclose(got, want, rel_tol=1e-6, abs_tol=0.06)  # printed with one digit behind the point


MISTAKES = {
    "that is all time of this collective. What computes meanwhile hides some of it": "total",
    "what the CPU did, or an annotation, is taken for computing. The GPU computes in kernels alone": "ops",
    "copies are taken for computing. They move bytes": "copies",
    "kernels are cut out one by one, and where two overlap, the time is cut out twice": "one by one",
    "two collectives of the same kind that run at the same time are counted twice": "each",
    "another collective is taken for computing. Two that run at the same time hide nothing of each other": "others",
    "that is the collective that takes longest. Most of it is hidden": "longest",
    "those are milliseconds": "milliseconds",
    "that is a million times too much. In a trace times are microseconds already": "seconds",
}


def exposed_us(traced: Sequence[Mapping[str, Any]], mistake: str = "") -> _Found:
    """The right answer, and a few wrong ones."""
    events = [
        Event(one["name"], one["cat"], one["ts"], one["ts"] + one["dur"], one["pid"], one["tid"])
        for one in traced
        if one["ph"] == "X"
    ]
    ours = [event for event in events if event.category == "kernel" and event.name.startswith(COLLECTIVE)]
    counted = {"ops": ("cpu_op",), "copies": ("kernel", "gpu_memcpy")}.get(mistake, ("kernel",))
    computing = [one for one in events if one.category in counted and not one.name.startswith(COLLECTIVE)]
    by_kind: dict[str, list[Event]] = {}
    for event in ours:
        if (named := _KIND.match(event.name)) is not None:
            by_kind.setdefault(named[1], []).append(event)
    found, total = {}, {kind: length(union(mine)) for kind, mine in by_kind.items()}
    for kind, mine in by_kind.items():
        others = [event for event in ours if event not in mine] if mistake == "others" else []
        spans = union(mine)
        found[kind] = length(without(spans, union([*computing, *others])))
        if mistake == "total":
            found[kind] = length(spans)
        if mistake == "one by one":
            found[kind] = length(spans) - sum(length(spans) - length(without(spans, union([op]))) for op in computing)
        if mistake == "each":
            found[kind] = _each(mine, computing)
        found[kind] *= {"milliseconds": 1e-3, "seconds": 1e6}.get(mistake, 1.0)
    by = total if mistake == "longest" else found
    return {kind: found[kind] for kind in sorted(by, key=by.__getitem__, reverse=True)}


def _each(collectives: Iterable[Event], computing: Sequence[Event]) -> float:
    """Added up, so what runs twice at the same time counts twice."""
    return sum(length(without(union([event]), union(computing))) for event in collectives)


_UNCOVERED = ScriptExercise(
    key="12.4",
    title="which collective is exposed? Read a GPU's traces",
    alone=True,
    beside=_texts,
    verdict=_verdict,
    levels={
        "plain": Level(
            points=2,
            cases=(
                _Traces(
                    world_size=1,
                    text="traces of FSDP and of DDP",
                    steps=(
                        TracedStep(file="fsdp_rank0.json", kinds=_FSDP, hidden=True),
                        TracedStep(file="ddp_rank0.json", kinds=("AllReduce",)),
                    ),
                ),
            ),
            praise="the collective that takes longest is hidden, and a short one costs the most",
        ),
        "streams": Level(
            points=2,
            again=True,
            cases=(
                _Traces(
                    world_size=1,
                    text="traces in which streams overlap",
                    steps=(
                        TracedStep(file="two_that_compute.json", kinds=_FSDP, beside=True),
                        TracedStep(file="two_collectives.json", kinds=_FSDP, beside=True, together=True),
                        TracedStep(file="pipeline.json", kinds=("AllGather", "SendRecv"), together=True),
                    ),
                ),
            ),
            praise="and where streams overlap, each microsecond counts once",
        ),
    },
    hints=(
        "Begin with three lists: spans of the collectives by name, spans of the kernels that compute, and all the "
        "rest, which you throw away. How do you tell a kernel from what the CPU has done?",
        "Join the spans that touch: sort by start, and let a span that begins before the last one has ended make it "
        "longer. Then no microsecond stands in two of them.",
        "Exposed is what is left of a collective's spans when the joined spans of computing are cut out. Or take the "
        "edges of all spans in order of time, and count how many of each kind are open.",
        "re.match(r'ncclDevKernel_([A-Za-z]+)', name) finds the collective's name, also where no underscore follows.",
    ),
)
