"""08.11: a profile of one's own, in which a collective is exposed, and the step that hides it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isclose
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.checks.kit.said import plural
from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import Level
from course_lib.checks.kit.traces import Event, events_in, events_of, named
from course_lib.checks.module_08.made_trace import BACKWARD, RUN, exposed_in, made_trace, why_wrong
from course_lib.ranks.script import Ended
from course_lib.verify.equality import close, scale_of
from course_lib.verify.ratios import exactly, times

_WIDTH, _LAYERS, _ROWS, _BUCKETS = 128, 6, 64, 3
_LAUNCH = "c10d::allreduce_"
_MADE, _MADE_FILE = "made", "made.json"
_STEPS = {"after": "after backward", "during": "during backward"}


def _model() -> nn.Module:
    """The one that stands in the learner's file."""
    return nn.Sequential(*[nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.GELU()) for _ in range(_LAYERS)]).double()


def _task(case: Start, seed: int) -> dict[str, Any]:
    """Buckets are listed as backward fills them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1031 * seed + 43)
        weights, x = _model().state_dict(), torch.randn(_ROWS, _WIDTH).double()
    names, each = list(weights)[::-1], len(weights) // _BUCKETS
    return {"weights": weights, "x": x, "buckets": [names[i * each : (i + 1) * each] for i in range(_BUCKETS)]}


def _verdict(case: Start, ran: Ran) -> str | None:
    """Of each step: what the parser says of the made trace, the gradients, the trace, and what it says of that."""
    steps = ("after", "during") if case.look else ("after",)
    for rank, one in enumerate(ran.ended):
        saved = ran.saved(f"rank{rank}.pt")
        for step in steps:
            if not isinstance(saved, dict) or {_MADE, step, f"gradients_{step}"} - saved.keys():
                return f"rank{rank}.pt is to hold a dict with '{_MADE}', '{step}' and 'gradients_{step}'"
            if reason := _wrong_made(saved[_MADE], ran.beside[_MADE_FILE]):
                return f"rank {rank}: {reason}"
            if reason := _wrong_gradients(saved[f"gradients_{step}"], ran.task, case.world_size, rank):
                return f"rank {rank}: in the step that communicates {_STEPS[step]}, {reason}"
            events = events_of(ran.folder / f"{step}{rank}.json")
            if isinstance(events, str):
                return events
            if reason := _wrong_trace(events, one) or _wrong_place(events, step):
                return f"{step}{rank}.json: {reason}"
            if reason := _wrong_time(saved[step], events, (step, rank), ran):
                return f"rank {rank}: {reason}"
    if case.look and all(_waits(events_of(ran.folder / f"during{r}.json")) for r in range(case.world_size)):
        return "in each during*.json, each all-reduce is over before its hook is: wait for all of them after backward"
    return _wrong_calls(ran, len(steps)) if case.look else None


def _wrong_gradients(found: Any, task: Mapping[str, Any], ranks: int, rank: int) -> str | None:
    """Of the mean over all ranks."""
    if not isinstance(found, dict):
        return f"the gradients are of type {type(found).__name__}: save a dict of tensors by the parameters' names"
    parts = [_gradients(task, part) for part in task["x"].chunk(ranks)]
    for name in task["weights"]:
        got, right = found.get(name), torch.stack([part[name] for part in parts]).mean(dim=0)
        if not isinstance(got, Tensor) or got.shape != right.shape:
            return f"there is no gradient of shape {tuple(right.shape)} by the name {name}"
        if close(got, right, tolerance=1e-9):
            continue
        if close(got, parts[rank][name], tolerance=1e-9):
            return f"the gradient of {name} is that of the rank's own rows: was it put back after the all-reduce?"
        if (ratio := scale_of(got, right)) is not None:
            return f"the gradient of {name} is {exactly(ratio)} the ranks' average"
        return f"the gradient of {name} is not the ranks' average"
    return None


def _gradients(task: Mapping[str, Any], x: Tensor) -> dict[str, Tensor]:
    model = _model()
    model.load_state_dict(task["weights"])
    model(x).square().mean().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _wrong_trace(events: Sequence[Event], one: Ended) -> str | None:
    """Whether it is one step of this process."""
    runs, launches = named(events, RUN), named(events, _LAUNCH)
    if not named(events, BACKWARD):
        return "no backward is in it: let the profiler see the whole step"
    if len(runs) != _BUCKETS or len(launches) != _BUCKETS:
        return (
            f"it holds {plural(len(launches), 'launch')} ({_LAUNCH}) and {plural(len(runs), 'run')} "
            f"({RUN}all_reduce) of all-reduces, and a step has {_BUCKETS} buckets: is one step in it, and all of it?"
        )
    if pids := {run.pid for run in runs} - {one.pid}:
        return f"it is of process {pids.pop()}, and this rank is process {one.pid}"
    return None


def _wrong_place(events: Sequence[Event], step: str) -> str | None:
    """Where launches stand beside the backward, by their order alone."""
    backward, launches = named(events, BACKWARD), named(events, _LAUNCH)
    end = max(event.end for event in backward)
    early = sum(event.start < end for event in launches)
    if step == "after" and early:
        return f"{early} of {_BUCKETS} all-reduces are launched before backward has ended; that is the second step"
    if step == "during" and early < _BUCKETS:
        what = "none is" if not early else f"only {early} of {_BUCKETS} are"
        return f"of the all-reduces {what} launched before backward has ended; launch each when its bucket is full"
    return None


def _wrong_made(found: Any, text: str) -> str | None:
    """What the learner's parser says of the trace that was made, and which misreading gives that."""
    if not isinstance(found, int | float):
        return f"'{_MADE}' is of type {type(found).__name__}: save the microseconds as a number"
    events = events_in(text)
    right, why = exposed_in(events), why_wrong(found, events)
    return None if _same(found, right) else _off(_MADE_FILE, found, right) + (why and f": {why}")


def _wrong_time(found: Any, events: Sequence[Event], which: tuple[str, int], ran: Ran) -> str | None:
    """What the learner's parser says of a step's trace, beside ours; a made one has shown that it can read."""
    right = exposed_in(events)
    if not isinstance(found, int | float):
        return f"'{which[0]}' is of type {type(found).__name__}: save the microseconds as a number"
    if _same(found, right):
        return None
    for path in sorted(ran.folder.glob("*.json")):
        others = events_of(path)
        if not isinstance(others, str) and isclose(found, exposed_in(others), rel_tol=1e-6):
            return f"{_off(f'{which[0]}{which[1]}.json', found, right)}: that is what {path.name} gives"
    return _off(f"{which[0]}{which[1]}.json", found, right)


def _off(name: str, found: float, right: float) -> str:
    return f"of {name} it says {found:.1f} us, and {right:.1f} us are exposed"


def _same(got: float, want: float) -> bool:
    return isclose(got, want, rel_tol=1e-6, abs_tol=1.0)


def _waits(events: Sequence[Event] | str) -> bool:
    """Whether each all-reduce but the last has ended before the backward op that launched it."""
    if isinstance(events, str):
        return False
    launches = sorted(named(events, _LAUNCH), key=lambda event: event.start)
    runs = sorted(named(events, RUN), key=lambda event: event.start)
    pairs = zip(launches[:-1], runs, strict=False)
    return all(run.end < _around(launch, named(events, BACKWARD)).end for launch, run in pairs)


def _around(launch: Event, ops: Iterable[Event]) -> Event:
    return next((op for op in ops if op.start <= launch.start <= op.end and op.thread == launch.thread), launch)


def _wrong_calls(ran: Ran, steps: int) -> str | None:
    due = steps * sum(tensor.nbytes for tensor in ran.task["weights"].values())
    for rank, one in enumerate(ran.ended):
        found = sum(call.bytes for call in one.calls if call.operation == "all_reduce")
        if found != due:
            return (
                f"right, but rank {rank} hands {found} B to all-reduces, {times(found / due)} the two steps' gradients"
            )
    return None


_PROFILE = ScriptExercise(
    key="08.11",
    title="your own profile",
    task=_task,
    beside=lambda case, seed: {_MADE_FILE: made_trace(seed)},
    verdict=_verdict,
    levels={
        "exposed": Level(
            points=2,
            cases=(Start(world_size=2),),
            praise="each rank's trace holds one step, and you find what is exposed in it, as in the made one",
        ),
        "hidden": Level(
            points=3,
            again=True,
            cases=(Start(world_size=4, look="hidden"),),
            praise="and each bucket leaves during backward, with the same gradients",
        ),
    },
    hints=(
        "with profile(activities=[ProfilerActivity.CPU]) as seen: stands around the whole step, and afterwards "
        "seen.export_chrome_trace(path) writes it. Open it at https://ui.perfetto.dev before you parse it.",
        "Times of ops overlap, since one op calls another. So sort the ops by their start, and join those that touch "
        "into spans that do not. What is left of a collective's span, when these are cut out of it?",
        "A parameter's hook, p.register_post_accumulate_grad_hook(f), runs f(p) when p.grad is ready. Count down for "
        "each bucket, and launch at 0, with async_op=True. That returns at once, and gives a handle.",
        "Keep the handle and the flat tensor of each bucket in a list. After backward, wait for each handle, divide, "
        "and copy each part of the flat tensor back into its p.grad.",
    ),
)
