"""From what the ranks report to one line that a learner can act on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from course_lib.errors import four_parts
from course_lib.ranks.ends import ends_of
from course_lib.ranks.patience import Limit
from course_lib.ranks.stacks import Frame, Members, Whereabouts
from course_lib.ranks.tasks import Failure, Outcome
from course_lib.ranks.wire import Message

_RESTARTED = "; all ranks were restarted, their variables are gone"


class RankError(RuntimeError):
    """A task that did not end well: `kind` is "raised", "died" or "timeout"; `rank` is the one to look at.

    `reason` is the message without what became of the pool, which was `lost` or not.
    """

    def __init__(
        self, reason: str, *, kind: str, rank: int | None, failure: Failure | None = None, lost: bool = False
    ) -> None:
        super().__init__(f"{reason}{_RESTARTED * lost}")
        self.reason = reason
        self.kind = kind
        self.rank = rank
        self.failure = failure
        self.missing_name = failure.missing_name if failure else None
        self.detail = _own_lines(failure, rank) if failure else []

    def _render_traceback_(self) -> list[str]:
        """IPython shows the learner's own lines, not the machinery between the notebook and the ranks."""
        return [*self.detail, f"{type(self).__name__}: {self}"]


class RankTimeout(RankError):
    """The ranks did not finish within the time limit; the message says which rank waits where."""


def run_error(
    failures: Mapping[int, Failure | None],
    found: Mapping[int, Whereabouts],
    waiting: list[int],
    *,
    deaths: Mapping[int, str],
    finished: list[int],
    lost: bool,
    limit: Limit,
    world_size: int,
) -> RankError:
    """The error of a run on `world_size` ranks that did not end well.

    `found` says where the ranks are, `deaths` what ended a process, `finished` who had nothing left to do.
    """
    there = {rank: found[rank] for rank in waiting if rank in found}
    rest = "; ".join(filter(None, [where_all_wait(there), *_threads(found)]))
    if not failures:
        done = f"; {_rank_names(finished)} {'have' if len(finished) > 1 else 'has'} finished" if finished else ""
        return RankTimeout(f"{limit}: {rest}{done}{_advice(there)}", kind="timeout", rank=None, lost=lost)
    rank = _blame(failures)
    failure = failures[rank]
    rest = f"; {rest}" if rest else ""
    if failure is None:
        return RankError(f"rank {rank} died {deaths[rank]}{rest}", kind="died", rank=rank, lost=lost)
    raised = {number: other for number, other in failures.items() if other is not None}
    text = _raised_message(raised, world_size)
    return RankError(f"{text}{rest}", kind="raised", rank=rank, failure=failure, lost=lost)


def start_error(world_size: int, outcomes: Mapping[int, Outcome], failures: Mapping[int, Failure | None]) -> RankError:
    """The error of ranks that did not start."""
    if not failures:
        rank = next(rank for rank in range(world_size) if rank not in outcomes)
        return RankTimeout(f"rank {rank} did not start in time", kind="timeout", rank=rank)
    rank = _blame(failures)
    failure = failures[rank]
    if failure is None:
        return RankError(f"rank {rank} died at its start", kind="died", rank=rank)
    text = f"rank {rank} could not start: {failure.type}: {failure.text}"
    return RankError(text, kind="raised", rank=rank, failure=failure)


def stray_error(rank: int, process: int, message: Message) -> RankError:
    """The error of an answer that belongs to no call: of another process, or to another task."""
    who = f"process {message.process}, which rank {rank} forked," if message.process != process else f"rank {rank}"
    values = f"{who} answered task {message.number} as well"
    text = four_parts(
        "ranks",
        values,
        "each task has one answer of each rank, from its own process",
        "end a forked process with os._exit(0) before it leaves your code",
    )
    return RankError(text, kind="raised", rank=rank, lost=True)


def _waiting_place(found: Whereabouts, groups_differ: bool = False) -> str:
    """Say in which call and on which of the learner's lines a rank stands, or what else it has not got done.

    >>> cell = Frame(file="<ranks cell 1>", line=9, name="<module>")
    >>> recv = Frame(file="/x/site-packages/torch/distributed/c10d.py", line=1, name="recv", values={"src": 1})
    >>> _waiting_place(Whereabouts(frames=[cell, recv]))
    'in recv from 1, cell line 9'
    >>> _waiting_place(Whereabouts(frames=[Frame(file="course_lib/ranks/worker.py", line=1, name="main")]))
    "outside the learner's code"
    """
    if found.standstill:
        return found.standstill
    own, calls = _last_own(found.frames), _calls(found.frames)
    if own is None and not calls:
        return f"outside the learner's code{', packing what came out' * any(map(_packs, found.frames))}"
    if own is None:
        return f"in {_call_text(calls)}"
    if not calls:
        return f"at {own.place}{_quoted(own.source)}"
    return f"in {_call_text(calls)}{_group_text(_group(calls), groups_differ)}, {own.place}"


def _advice(found: Mapping[int, Whereabouts]) -> str:
    """What the places teach: a group is made by all ranks, and honest work may take its time."""
    calls = [_calls(there.frames) for there in found.values()]
    if any(call and call[0].name == "new_group" for call in calls):
        return "; every rank calls new_group for every group, also those that are not in it"
    if any(not call and _last_own(there.frames) for call, there in zip(calls, found.values(), strict=True)):
        return "; if that is honest work, give it more time: --timeout 300 in a cell, timeout=300 for run_ranks"
    return ""


def _last_own(stack: list[Frame]) -> Frame | None:
    return next((frame for frame in reversed(stack) if frame.is_own), None)


def _calls(stack: list[Frame]) -> list[Frame]:
    """The frames of the communication call that the learner's last line made; empty if it made none."""
    own = max((i for i, frame in enumerate(stack) if frame.is_own), default=0)
    calls = [frame for frame in stack[own:] if _communicates(frame)]
    return [] if calls and calls[0].name.startswith(("get_", "is_")) else calls  # asking for one's rank is no waiting


def where_all_wait(found: Mapping[int, Whereabouts]) -> str:
    """Group ranks that stand at the same place: "ranks 0, 1 wait in all_reduce #5, cell line 7; rank 2 waits …"."""
    calls = {rank: _calls(there.frames) for rank, there in found.items()}
    held = _held_up_by(calls)
    ends, circle = ends_of(held)
    places: dict[str, list[int]] = {}
    for rank, there in sorted(found.items()):
        places.setdefault(_waiting_place(there, groups_differ=bool(circle)), []).append(rank)
    texts = [f"{_rank_names(ranks)} {_verb(place, ranks)}{place}" for place, ranks in places.items()]
    if circle:
        order = ", and groups in the same order" * (len(circle) > 2)
        texts.append(f"these groups differ: all ranks of a group must call it with that group{order}")
    elif any(not others & {*ends} for others in held.values()):
        texts.append(f"in the end all of them wait for {_rank_names(ends)}")
    return "; ".join(texts)


def _held_up_by(calls: Mapping[int, list[Frame]]) -> dict[int, set[int]]:
    """By rank: the ranks of its group that are in no call of that group.

    No frame names the group of all ranks. It is compared with calls of the same function alone, as a send has no
    group's name either.
    """
    held: dict[int, set[int]] = {}
    for rank, call in calls.items():
        group = _group(call)
        if group is not None:
            held[rank] = {other for other in group.ranks if _group(calls.get(other, [])) != group}
        elif call:
            alike = [other for other, theirs in calls.items() if theirs and theirs[0].name == call[0].name]
            held[rank] = {other for other in alike if _group(calls[other]) is not None}
    return {rank: others for rank, others in held.items() if others}


def _group(calls: list[Frame]) -> Members | None:
    return next((frame.group for frame in calls if frame.group is not None), None)


def _group_text(group: Members | None, groups_differ: bool) -> str:
    if group is None:
        return " of the default group" if groups_differ else ""
    return f" of group {list(group.ranks)}{f' (no. {group.name})' if groups_differ else ''}"


def _threads(found: Mapping[int, Whereabouts]) -> list[str]:
    """The threads that an earlier task has left running, or that wait in a call: a task may hang on them."""
    texts = []
    for rank, there in sorted(found.items()):
        for thread in there.threads:
            if thread.left or _calls(thread.frames):
                place = _waiting_place(Whereabouts(frames=thread.frames))
                left = ", left running by an earlier task," if thread.left else ""
                texts.append(f"thread {thread.name!r} of rank {rank}{left} {_verb(place, [rank])}{place}")
    return texts


def _blame(failures: Mapping[int, Failure | None]) -> int:
    """The rank to look at: a dead process (None) first, then the first to fail that is not another's echo.

    Ranks that failed alike differ only by chance in when they did: the lowest speaks for them.
    """
    dead = [rank for rank, failure in failures.items() if failure is None]
    if dead:
        return dead[0]
    own = [rank for rank, failure in failures.items() if failure is not None and not failure.is_echo]
    first = (own or list(failures))[0]
    return min(rank for rank, failure in failures.items() if _alike(failure, failures[first]))


def _raised_message(failures: Mapping[int, Failure], world_size: int) -> str:
    """One line about exceptions: who failed, on which line, with what."""
    culprit = _blame(failures)
    failure = failures[culprit]
    same = [rank for rank, other in failures.items() if _alike(other, failure)]
    who = "all ranks" if 1 < world_size == len(same) else _rank_names(sorted(same))
    return f"{who} failed{_places({rank: failures[rank] for rank in sorted(same)})}: {failure.type}: {failure.text}"


def _places(failures: Mapping[int, Failure]) -> str:
    """On which line they failed; ranks that did so on different ones are told apart."""
    found: dict[str, list[int]] = {}
    for rank, failure in failures.items():
        if failure.frames:
            last = failure.frames[-1]
            found.setdefault(f"at {last.place}{_quoted(last.source)}", []).append(rank)
    if len(found) < 2:
        return "".join(f" {place}" for place in found)
    return " " + ", ".join(f"{place} ({_rank_names(ranks)})" for place, ranks in found.items())


def _own_lines(failure: Failure, rank: int | None) -> list[str]:
    """The learner's frames as a short traceback."""
    head = f"Traceback of rank {rank} (your own lines, most recent last):"
    lines = [f"  {frame.place}, in {frame.name}\n    {frame.source}" for frame in failure.frames]
    return [head, *lines] if lines else []


def _rank_names(ranks: Iterable[int]) -> str:
    """`rank 2` or `ranks 0, 1, 3`."""
    numbers = list(ranks)
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _alike(one: Failure | None, other: Failure | None) -> bool:
    return one is not None and other is not None and (one.type, one.text) == (other.type, other.text)


def _communicates(frame: Frame) -> bool:
    path = frame.file.replace("\\", "/")
    inside = "torch/distributed/" in path or "course_lib/comm/" in path or path.endswith("ranks/watch.py")
    return inside and frame.name != "wrapper" and not frame.name.startswith(("_", "<"))


def _packs(frame: Frame) -> bool:
    return frame.name in ("pickled", "_packed") and frame.file.endswith(("ranks/plain.py", "ranks/worker.py"))


def _call_text(calls: list[Frame]) -> str:
    """`all_reduce #5` or `recv from 1`: the learner's call, with what the frames below it know."""
    first = calls[0]
    number = next((frame.values["call"] for frame in calls if "call" in frame.values), None)
    if number is not None:
        return f"{first.name} #{number}"
    peers = [f" {word} {first.values[key]}" for key, word in (("src", "from"), ("dst", "to")) if key in first.values]
    return first.name + "".join(peers)


def _verb(place: str, ranks: list[int]) -> str:
    if not place.startswith(("in ", "at ", "outside ")):
        return ""  # a sentence of its own
    waits = place.startswith("in ")
    if len(ranks) == 1:
        return "waits " if waits else "still runs "
    return "wait " if waits else "still run "


def _quoted(source: str) -> str:
    return f" `{source}`" if source else ""
