"""11.10: what each stage of ZeRO shares out, and which entries of a table were filled in by a wrong sentence."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

from course_lib.checks.kit.asked import asked_exercise
from course_lib.checks.kit.probe import Slips
from course_lib.checks.kit.said import wrong_kind
from course_lib.checks.kit.spec import Level
from course_lib.verify.numbers import number_of

_COLUMNS = ("weights", "gradients", "optimizer")
_BYTES = (2, 2, 12)  # of each, for a parameter
_SINCE = (3, 2, 1)  # the stage from which on it is shared out
_Claim = Literal["said", "gradients late", "all whole", "weights early", "none"]
_CLAIMS: tuple[_Claim, ...] = ("said", "gradients late", "all whole", "weights early", "none")
# From which stage on each is shared out, in the words of somebody who is mistaken, up to which stage.
_SAID: dict[_Claim, dict[int, tuple[bool, bool, bool]]] = {
    "said": {2: (True, True, True), 3: (False, False, True)},
    "gradients late": {2: (False, False, True)},
    "all whole": {1: (False, False, False)},
    "weights early": {2: (True, True, True)},
    "none": {},
}


class _Stage(NamedTuple):
    """A line: so many parameters on so many GPUs in a stage, and what is said to be on each GPU, in GB."""

    name: str
    stage: int
    P: int
    N: int
    weights_gb: float
    gradients_gb: float
    optimizer_gb: float

    @property
    def said(self) -> tuple[float, ...]:
        return self.weights_gb, self.gradients_gb, self.optimizer_gb


class _Claims(NamedTuple):
    """Lines."""

    lines: tuple[_Stage, ...]

    def __str__(self) -> str:
        return ""


@dataclass(frozen=True, kw_only=True)
class Told:
    """A table that follows these words; the published one, or one with other sizes."""

    claim: _Claim
    published: bool = False
    world_size: int = 1

    def __str__(self) -> str:
        return "the table of the text" if self.published else f"another table ({_CLAIMS.index(self.claim) + 1})"


_Found = tuple[list[tuple[float, ...]], list[tuple[str, str]]]  # of each line three numbers; pairs of line and column


def _records(case: Told, seed: int) -> Sequence[_Claims]:
    draw = random.Random(f"{case.claim}{case.published}{seed}")
    lines = []
    for stage in range(4):
        P, N = (7_500_000_000, 64) if case.published else (draw.randint(10, 90) * 10**8, draw.choice((8, 16, 32, 128)))
        shared = _SAID[case.claim].get(stage) or tuple(stage >= since for since in _SINCE)
        gb = (round(n * P / (N if cut else 1) / 1e9, 3) for n, cut in zip(_BYTES, shared, strict=True))
        lines.append(_Stage(f"ZeRO-{stage}" if stage else "DDP", stage, P, N, *gb))
    if not case.published:
        draw.shuffle(lines)
    return [_Claims(tuple(lines))]


def _answer(lines: Sequence[_Stage], *, mistake: str = "") -> _Found:
    """The right answer, or one with a mistake."""
    each, since = {
        "gradients fp32": ((2, 4, 12), _SINCE),
        "no copy": ((2, 2, 8), _SINCE),
        "optimizer 4": ((2, 2, 4), _SINCE),
        "said 2": (_BYTES, (2, 2, 1)),
        "gradients at 3": (_BYTES, (3, 3, 1)),
        "gradients at 1": (_BYTES, (3, 1, 1)),
        "never": (_BYTES, (9, 2, 1)),
    }.get(mistake, (_BYTES, _SINCE))
    right, wrong = [], []
    for line in lines:
        stages = (9, 9, 1) if mistake == "said 3" and line.stage == 3 else since
        shared = [line.stage >= one for one in stages]
        right.append(tuple(n * line.P / (line.N if cut else 1) for n, cut in zip(each, shared, strict=True)))
        true = [n * line.P / (line.N if line.stage >= one else 1) for n, one in zip(_BYTES, _SINCE, strict=True)]
        wrong += [
            (line.name, column)
            for column, number, said in zip(_COLUMNS, true, line.said, strict=True)
            if round(number / 1e9, 3) != said
        ]
    if mistake == "GiB":
        right = [tuple(n / 2**30 for n in one) for one in right]
    if mistake == "GB":
        right = [tuple(n / 1e9 for n in one) for one in right]
    return right, wrong


def _use(answer: Callable[..., Any], table: _Claims) -> _Found | str:
    """Runs on a rank; a text says what came instead."""
    found = answer(list(table.lines))
    if not isinstance(found, tuple | list) or len(found) != 2:
        return wrong_kind(type(found).__name__, "two things: a list of triples, and a list of pairs")
    triples, pairs = found
    if not isinstance(triples, tuple | list) or len(triples) != len(table.lines):
        return f"the first thing is not a list with a triple for each of {len(table.lines)} lines"
    numbers = [[number_of(one) for one in triple] if isinstance(triple, tuple | list) else [] for triple in triples]
    if any(len(triple) != len(_COLUMNS) or None in triple for triple in numbers):
        return "the first list is to hold triples of numbers: bytes of weights, gradients and optimizer"
    if not isinstance(pairs, tuple | list | set) or not all(isinstance(one, tuple | list) for one in pairs):
        return "the second thing is to be a list of pairs: a line's name, and a column's"
    right, _ = _answer(table.lines)
    bytes_ = [tuple(float(one) for one in triple if one is not None) for triple in numbers]
    # Which entries are wrong follows from the bytes, and says nothing more where these are not right.
    return bytes_, sorted((str(one[0]), str(one[-1])) for one in pairs) if _alike(bytes_, right) else []


def _alike(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> bool:
    pairs = zip([n for triple in one for n in triple], [n for triple in other for n in triple], strict=True)
    return all(abs(mine - right) <= 1e-9 * right for mine, right in pairs)


def _judge(table: _Claims, found: _Found | str) -> str | None:
    if isinstance(found, str):
        return found
    (triples, pairs), (right, wrong) = found, _answer(table.lines)
    for line, mine, want in zip(table.lines, triples, right, strict=True):
        for column, got, number in zip(_COLUMNS, mine, want, strict=True):
            if abs(got - number) > 1e-9 * number:
                return f"{line.name}, {column}: {got:,.0f} bytes on a GPU there, and {number:,.0f} are right"
    if missing := [one for one in sorted(wrong) if one not in pairs]:
        return (
            f"the bytes are right, and they do not agree with what the table says of {missing[0][0]}'s {missing[0][1]}"
        )
    if extra := [one for one in pairs if one not in wrong]:
        name, column = extra[0]
        if name not in {line.name for line in table.lines} or column not in _COLUMNS:
            return f"the bytes are right, but {name!r}, {column!r} is no entry: a line's name, and one of {_COLUMNS}"
        return f"the bytes are right, and what the table says of {name}'s {column} agrees with them"
    return None if len(pairs) == len(wrong) else "the bytes are right, but an entry is named twice"


def _way(mistake: str) -> Callable[..., Any]:
    return partial(_answer, mistake=mistake)


_SLIPS: Slips = {
    "weights are shared out from stage 2 on there, as the sentence says. Stage 2 has them whole on each GPU": (
        _way("said 2")
    ),
    "in stage 3 only the optimizer is shared out there, as the sentence says. All three are": _way("said 3"),
    "gradients are shared out from stage 2 on": _way("gradients at 3"),
    "stage 1 shares out the optimizer's states alone": _way("gradients at 1"),
    "weights are never shared out there. In stage 3 they are": _way("never"),
    "gradients are in bf16, of 2 bytes": _way("gradients fp32"),
    "the optimizer has 12 bytes: two moments, and an fp32 copy of the weights": _way("no copy"),
    "4 bytes for the optimizer? AdamW has two moments of 4, and an fp32 copy of the weights": _way("optimizer 4"),
    "in GB? Bytes are asked": _way("GB"),
    "in GiB? Bytes are asked": _way("GiB"),
}

_ZERO_CLAIMS = asked_exercise(
    key="11.10",
    title="find the wrong number: what a stage shares out",
    records=_records,
    use=_use,
    judge=_judge,
    slips=_SLIPS,
    levels={
        "text": Level(
            points=2,
            cases=(Told(claim="said", published=True),),
            praise="ZeRO-2's weights stay whole, and in ZeRO-3 nothing does",
        ),
        "others": Level(
            points=2,
            again=True,
            cases=tuple(Told(claim=claim) for claim in _CLAIMS),
            praise="and what is wrong in other tables, also if it is nothing",
        ),
    },
    hints=(
        "Stage 1 shares out the optimizer's states, stage 2 also the gradients, stage 3 also the weights. What is "
        "shared out has an N-th on each GPU.",
        "So three divisors for each line: N for the optimizer if stage >= 1, for gradients if stage >= 2, for weights "
        "if stage >= 3, and else 1.",
        "Compare each of the three with the table's: round(bytes / 1e9, 3). Where they differ, the entry is wrong.",
    ),
)
