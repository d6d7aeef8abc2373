"""10.9: a compressor whose loss is fine: which promise it breaks, and how it is mended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from course_lib.checks.kit.asked import asked_exercise
from course_lib.checks.kit.probe import Slips
from course_lib.checks.kit.spec import Level
from course_lib.checks.module_10 import sent_and_kept
from course_lib.checks.module_10.sent_and_kept import Sent
from course_lib.checks.module_10.top_k import TopK
from course_lib.verify.numbers import number_of

_PROMISES = ("memory", "everything", "bytes")
_BROKEN, _TWICE = "bytes", 100  # numbers in the second message of one gradient
_SHOULD = 1


@dataclass(frozen=True, kw_only=True)
class LateHunt:
    """The diagnosis, or a run of the mended compressor."""

    run: Sent | None = None
    world_size: int = 1

    def __str__(self) -> str:
        return "diagnosis" if self.run is None else str(self.run)


class _Diagnosed(NamedTuple):
    """Asks for the diagnosis."""

    def __str__(self) -> str:
        return ""


class _Named(TopK):
    """A compressor that knows what is wrong; right, unless it has a mistake."""

    mistake_of = ""

    def __init__(self, one_in: int) -> None:
        super().__init__(one_in, self.mistake_of)

    def diagnosis(self) -> tuple[str, int]:
        """Right."""
        return _BROKEN, _TWICE


class _AsItWas(_Named):
    mistake_of = "added after"


class _ByGradient(_Named):
    mistake_of = "by gradient"


class _GradientAlone(_Named):
    mistake_of = "gradient alone"


class _Twice(_Named):
    mistake_of = "twice"


class _InARow(_Named):
    mistake_of = "in a row"


class _Forgets(_Named):
    mistake_of = "forgets"


class _LastOnly(_Named):
    mistake_of = "last only"


class _All(_Named):
    mistake_of = "all"


def _records(case: LateHunt, seed: int) -> Sequence[Any]:
    return [_Diagnosed()] if case.run is None else sent_and_kept.records(case.run, seed)


def _use(answer: Callable[..., Any], asked: Any) -> Any:
    """Runs on a rank."""
    return answer(_TWICE).diagnosis() if isinstance(asked, _Diagnosed) else sent_and_kept.use(answer, asked)


def _judge(asked: Any, found: Any) -> str | None:
    return _wrong_diagnosis(found) if isinstance(asked, _Diagnosed) else sent_and_kept.judge(asked, found)


def _wrong_diagnosis(found: Any) -> str | None:
    if not isinstance(found, tuple | list) or len(found) != 2:
        return f"returned {found!r}: give two things, the promise's name and how many numbers are in the second message"
    name, number = found[0], number_of(found[1])
    if name not in _PROMISES:
        return f"{name!r} is none of the promises: they are {', '.join(_PROMISES)}"
    if name != _BROKEN:
        return f"promise {name!r} is kept, as the cell above prints. Which one does it not try?"
    if number == _SHOULD:
        return f"the promise is right, but {_SHOULD} number is what should be sent. Count what is"
    if number != _TWICE:
        return f"the promise is right, but the second message has not {found[1]!r} numbers: print len(values)"
    return None


_SLIPS: Slips = {
    "the memory is still added after choosing, so all of it is sent each time": _AsItWas,
    "the memory is added in time, but does not help to choose: take the largest numbers of both together": _ByGradient,
    "the largest numbers of the gradient alone are sent, so what is kept never leaves. It takes part in the choice: "
    "take the largest numbers of both together": _GradientAlone,
    "the gradient and what was kept have each sent their largest numbers, so twice as many as promised. What was kept "
    "takes part in the choice: add first, then choose once": _Twice,
    "it is chosen twice: a number that was not among the gradient's largest had no part in the second choice. Add all "
    "of the gradient to what was kept, then choose once": _InARow,
    "few numbers are sent now, but nothing is kept any more": _Forgets,
    "few numbers are sent now, but of what was kept before nothing is left": _LastOnly,
    "few numbers are sent now, but they are kept as well, and will be sent again": _All,
}

_LATE = asked_exercise(
    key="10.9",
    title="find the bug: nothing is wrong with the loss",
    records=_records,
    use=_use,
    judge=_judge,
    slips=_SLIPS,
    levels={
        "diagnosis": Level(
            points=1,
            alone=True,
            cases=(LateHunt(),),
            praise="what a compressor sends has to be counted: a loss that is too good is no proof",
        ),
        "mended": Level(
            points=2,
            again=True,
            cases=(
                LateHunt(run=Sent(look="one", one_in=5, length=20, ties=True)),
                LateHunt(run=Sent(look="steps", one_in=6)),
                LateHunt(run=Sent(look="steps", one_in=3)),
            ),
            praise="as many numbers as promised, and what is sent and kept is still all that there was",
        ),
    },
    hints=(
        "The cell tries two of the three promises. What does the third one take? values, places = suspect.send(...), "
        "and how long they are.",
        "In the first step nothing is kept yet, so the first message is right. Send one gradient twice, and count the "
        "second message.",
        "`sent` is the largest numbers of the gradient, plus all that was kept. The sum still closes, and the message "
        "has grown to nearly everything.",
        "First add, then choose: due = gradient + before, sent = self.largest(due), and due - sent is kept.",
    ),
)
