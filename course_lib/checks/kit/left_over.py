"""What a call of an answer leaves behind besides its result: inputs that it wrote into, messages nobody waited for.

It is looked at here, once, for every exercise: the caller's lists and tensors belong to another part of the program.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from itertools import count
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from course_lib.comm.p2p import Work

_PLAIN = frozenset((bool, int, float, str, type(None)))


class LeftOver(NamedTuple):
    """Of one rank: an argument that was written into, and a message whose handle was not waited for; empty if none."""

    overwritten: str = ""
    unfinished: str = ""


def picture(x: Any) -> Any:
    """What can be compared later: the numbers of tensors, lists and dicts, however deep. All else may change.

    It has no tensor of its own, for some exercises count those that live.
    """
    if isinstance(x, Tensor):
        with _disable_current_modes():
            flat = x.detach().reshape(-1).cpu()
            return x.shape, flat.view(torch.uint8).numpy().tobytes()
    if isinstance(x, list | tuple):
        return list(x) if _PLAIN.issuperset(map(type, x)) else [picture(one) for one in x]
    if isinstance(x, Mapping):
        return {key: picture(one) for key, one in x.items()}
    return x if type(x) in _PLAIN else None


class Inputs:
    """Hands out an answer that is watched; `overwritten` names the first argument that a call has written into."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self.overwritten = ""
        self._answer = answer

    @property
    def watched(self) -> Callable[..., Any]:
        """The answer; of a class the check that makes its objects knows what belongs to whom."""
        answer = self._answer
        if isinstance(answer, type):
            return answer

        @wraps(answer)
        def call(*args: Any, **kwargs: Any) -> Any:
            before = picture(args)
            result = answer(*args, **kwargs)
            if not self.overwritten:
                changed = (place for place, x in enumerate(args) if picture(x) != before[place])
                self.overwritten = next((self._name(place) for place in changed), "")
            return result

        return call

    def _name(self, place: int) -> str:
        names = [*inspect.signature(self._answer).parameters]
        return names[min(place, len(names) - 1)]


@contextmanager
def messages() -> Iterator[Callable[[], str]]:
    """What is yielded names a message that was begun meanwhile and not waited for; empty if there is none."""
    under_way: dict[int, str] = {}
    numbers, begin = count(), Work.__init__

    def begin_noted(self: Work, what: str, finish: Callable[[], None] | None) -> None:
        if finish is None:  # an empty message, for which nobody need wait
            return begin(self, what, finish)
        number = next(numbers)
        under_way[number] = what

        def finish_noted() -> None:
            del under_way[number]
            finish()

        return begin(self, what, finish_noted)

    with patch.object(Work, "__init__", begin_noted):
        yield lambda: next(iter(under_way.values()), "")


def probed(answer: Callable[..., Any], probe: Callable[[Any, Any], Any], given: Any) -> tuple[Any, LeftOver]:
    """Runs on a rank: what the probe reports, and what the answer left behind."""
    inputs = Inputs(answer)
    with messages() as unfinished:
        report = probe(inputs.watched, given)
        return report, LeftOver(inputs.overwritten, unfinished())


def why_not_clean(left: tuple[LeftOver, ...]) -> str:
    """What is said of the first rank that left something behind; empty if none did."""
    for rank, one in enumerate(left):
        on_rank = f" on rank {rank}" * (len(left) > 1)
        if one.overwritten:
            theirs = "another part of the program may still need it: work on a copy"
            return f"`{one.overwritten}`{on_rank} is overwritten, and {theirs}"
        if one.unfinished:
            return (
                f"nobody waits for the {one.unfinished}{on_rank}: each send needs its receive, each handle its wait()"
            )
    return ""
