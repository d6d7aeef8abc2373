"""From what the ranks report to one line that a learner can act on."""

from __future__ import annotations

from collections.abc import Iterable

from course_lib.ranks.stacks import Frame
from course_lib.ranks.tasks import Failure


class RankError(RuntimeError):
    """A task that did not end well: `kind` is "raised", "died" or "timeout"; `rank` is the one to look at."""

    def __init__(self, message: str, *, kind: str, rank: int | None, failure: Failure | None = None) -> None:
        super().__init__(message)
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


def _waiting_place(stack: list[Frame]) -> str:
    """Say in which call and on which of the learner's lines a stack stands.

    >>> cell = Frame(file="<ranks cell 1>", line=9, name="<module>")
    >>> waiting_place([cell, Frame(file="/x/torch/distributed/c10d.py", line=1, name="recv", values={"src": 1})])
    'in recv from 1, cell line 9'
    """
    own = max((i for i, frame in enumerate(stack) if frame.is_own), default=None)
    if own is None:
        return "outside the learner's code"
    calls = [frame for frame in stack[own:] if _communicates(frame)]
    if not calls or calls[0].name.startswith(("get_", "is_")):  # asking for one's rank is no waiting
        return f"at {stack[own].place}{_quoted(stack[own].source)}"
    return f"in {_call_text(calls)}, {stack[own].place}"


def where_all_wait(stacks: dict[int, list[Frame]]) -> str:
    """Group ranks that stand at the same place: "ranks 0, 1 wait in all_reduce #5, cell line 7; rank 2 waits …"."""
    places: dict[str, list[int]] = {}
    for rank, stack in sorted(stacks.items()):
        places.setdefault(_waiting_place(stack), []).append(rank)
    return "; ".join(f"{_rank_names(ranks)} {_verb(place, ranks)} {place}" for place, ranks in places.items())


def blame(failures: dict[int, Failure | None]) -> int:
    """The rank to look at: a dead process (None) first, then the first to fail that is not another's echo.

    Ranks that failed alike differ only by chance in when they did: the lowest speaks for them.
    """
    dead = [rank for rank, failure in failures.items() if failure is None]
    if dead:
        return dead[0]
    own = [rank for rank, failure in failures.items() if failure is not None and not failure.is_echo]
    first = (own or list(failures))[0]
    return min(rank for rank, failure in failures.items() if _alike(failure, failures[first]))


def raised_message(failures: dict[int, Failure], world_size: int) -> str:
    """One line about exceptions: who failed, on which line, with what."""
    culprit = blame(dict(failures))
    failure = failures[culprit]
    same = [rank for rank, other in failures.items() if _alike(other, failure)]
    who = "all ranks" if 1 < world_size == len(same) else _rank_names(sorted(same))
    place = ""
    if failure.frames:
        last = failure.frames[-1]
        place = f" at {last.place}{_quoted(last.source)}"
    return f"{who} failed{place}: {failure.type}: {failure.text}"


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
    inside = "torch/distributed/" in path or "course_lib/comm/" in path
    return inside and frame.name != "wrapper" and not frame.name.startswith(("_", "<"))


def _call_text(calls: list[Frame]) -> str:
    """`all_reduce #5` or `recv from 1`: the learner's call, with what the frames below it know."""
    first = calls[0]
    number = next((frame.values["call"] for frame in calls if "call" in frame.values), None)
    if number is not None:
        return f"{first.name} #{number}"
    peers = [f" {word} {first.values[key]}" for key, word in (("src", "from"), ("dst", "to")) if key in first.values]
    return first.name + "".join(peers)


def _verb(place: str, ranks: list[int]) -> str:
    waits = place.startswith("in ")
    if len(ranks) == 1:
        return "waits" if waits else "still runs"
    return "wait" if waits else "still run"


def _quoted(source: str) -> str:
    return f" `{source}`" if source else ""
