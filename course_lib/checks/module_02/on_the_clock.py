"""02.12: whether a rank's own times are those of the calls that it makes, by another clock at the same calls.

The check notes when each call begins, and when the rank's wait for it comes back. Both lie between a right answer's two
looks at the clock, so its time is never shorter, and longer by what Python needs on the way. What else stands between
the looks is in every repeat; what the machine does meanwhile is not, so it is the repeats together that say something.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from course_lib.ranks.counted import Call
from course_lib.ranks.script import Ended

ALLOWED_S = 2e-4  # for Python: four times what it takes on two busy cores
_NEVER = float("inf")


class _Timed(NamedTuple):
    """One measured all-reduce by the check's clock, and the time that the learner gives for it."""

    bytes: int
    told: float
    began: float
    ended: float  # infinity if nothing waits for it before the next call
    before: Call
    after: str
    after_ended: float

    @property
    def took(self) -> float:
        return self.ended - self.began


def off_the_clock(one: Ended, times: Sequence[Sequence[float]], task: Mapping[str, Any]) -> str | None:
    """What was measured instead of the all-reduces, or with them; None if it was they."""
    by_size = [list(_timed(one, size, own)) for size, own in zip(task["sizes"], times, strict=True)]
    everything = [repeat for repeats in by_size for repeat in repeats]
    for repeats in by_size:
        if reason := _too_short(repeats):
            return reason
    if reason := _reaches_beyond(everything):
        return reason
    return _too_long(everything)


def _timed(one: Ended, size: int, told: Sequence[float]) -> Iterator[_Timed]:
    places = [place for place, call in enumerate(one.calls) if call.bytes == size][-len(told) :]
    for place, seconds in zip(places, told, strict=True):
        began, after = one.calls[place].began, one.calls[place + 1 : place + 2]
        next_began = after[0].began if after else _NEVER
        yield _Timed(
            bytes=size,
            told=seconds,
            began=began,
            ended=next((moment for moment in one.waits if began < moment < next_began), _NEVER),
            before=one.calls[place - 1],
            after=after[0].operation if after else "",
            after_ended=next((moment for moment in one.waits if moment > next_began), _NEVER),
        )


def _too_short(repeats: Sequence[_Timed]) -> str | None:
    size = repeats[0].bytes
    if all(repeat.ended == _NEVER for repeat in repeats):
        return f"nothing waits for the all-reduces of {size} B: with async_op=True a call comes back before it is done"
    if all(repeat.told < repeat.took for repeat in repeats):
        return (
            f"those of {size} B are too short, {_ms(repeat.told for repeat in repeats)} where "
            f"{_ms(repeat.took for repeat in repeats)} pass from the beginning of the call to the end of its wait: "
            "does the second look at the clock come after the wait, and does the clock run while a process waits?"
        )
    return None


def _reaches_beyond(repeats: Sequence[_Timed]) -> str | None:
    """The neighbour that is measured as well.

    Times that hold one of them may be longer than the other, too, by chance and in every repeat: the neighbour that
    leaves least unexplained is meant.
    """
    first = repeats[0]
    neighbours = {
        f"reach back to where the {first.before.operation} before begins: look at the clock after it": [
            repeat.told - (repeat.ended - repeat.before.began) for repeat in repeats
        ],
        f"reach on to where the {first.after} after has ended: look at the clock before it": [
            repeat.told - (repeat.after_ended - repeat.began) for repeat in repeats
        ],
    }
    held = {said: beyond for said, beyond in neighbours.items() if min(beyond) >= 0}
    return f"all {len(repeats)} {min(held, key=lambda said: median(held[said]))}" if held else None


def _too_long(repeats: Sequence[_Timed]) -> str | None:
    """By more than Python needs in each repeat, the shortest included."""
    least = min(repeat.told - repeat.took for repeat in repeats)
    if least <= ALLOWED_S:
        return None
    return (
        f"all {len(repeats)} are {_ms([least])} or more above what the all-reduce itself takes, and "
        f"{_ms([ALLOWED_S])} are enough for Python: what else stands between the two looks at the clock?"
    )


def _ms(seconds: Any) -> str:
    return f"{1e3 * median(seconds):.2g} ms"
