"""What a hang, a crash or an exception on the ranks tells."""

from __future__ import annotations

import math
import re
from types import CodeType, FunctionType
from typing import Any

from course_lib.ranks.report import RankError

NOT_YET = "not written yet: put your code in place of the line `raise NotImplementedError`"
_UNWRITTEN = re.compile(r"NotImplementedError: Exercise (\d\d\.\d+)")
_WAITS = re.compile(r"ranks? (\d+(?:, \d+)*) waits? in (i?send to|i?recv from) (\d+)")
_LENGTHS = re.compile(r"recv: rank \d+ sends (\d+) of (\w+), rank \d+ expects (\d+) of (\w+);")
_COLLECTIVE = re.compile(r"waits? in \w+ #\d+")
_NO_MEMORY = "out of bounds for storage of size 0"
_FREED = "; memory that was given back is read: a unit was freed too early, or not gathered again"
_NO_SUCH_PART = (
    "; torch.chunk may give fewer parts than it is asked for: of 5 rows 4 ranks get 2, 2 and 1, and there is no fourth "
    "part. What has such a rank?"
)
_NO_LEAF = "; what `comm` returns has no history: make it a new leaf with `.requires_grad_()`"
_NO_HISTORY = "; backward starts at a tensor without history: was it detached? Only what is sent needs none"


def ended_badly(error: RankError, key: str, answer: Any, *, row: tuple[int, ...] = ()) -> str:
    """What a hang, a crash or an exception in exercise `key` tells; `row` is the shape of one row of its tensors."""
    text = error.reason
    unwritten = _UNWRITTEN.search(text)
    if unwritten and unwritten[1] != key:
        return f"it calls your answer to {unwritten[1]}, which is not written yet"
    if unwritten:
        return NOT_YET
    lead = {"timeout": "a hang", "died": "a crash", "raised": "an error"}[error.kind]
    advice = _advice_on_hang(text) if error.kind == "timeout" else _advice_on_error(text, row)
    if "IndexError: tuple index" in text and "chunk" in _names_in(answer):
        advice = _NO_SUCH_PART
    return f"{lead}: {text}{advice}"


def _names_in(answer: Any) -> set[str]:
    """The names of methods and globals in a function, in all functions inside it, or in a class's methods."""
    found = [getattr(one, "__func__", one) for one in (vars(answer).values() if isinstance(answer, type) else [answer])]
    codes, names = [one.__code__ for one in found if isinstance(one, FunctionType)], set[str]()
    while codes:
        code = codes.pop()
        names |= {*code.co_names}
        codes += [one for one in code.co_consts if isinstance(one, CodeType)]
    return names


def _advice_on_hang(text: str) -> str:
    sends, receives = " send to " in text, " recv from " in text or " irecv from " in text
    if "still run" in text:
        return "; an endless loop? Or far more steps than are needed?"
    gone = _partner_that_returned(text)
    if gone:
        return gone
    if sends and not receives:
        return "; all that wait are sending, nobody receives: start the receive first (comm.irecv), then send"
    if receives and not sends:
        asked = "does each partner send to the rank that expects it, and wait() for each isend?"
        return f"; all that wait are receiving, nobody sends: {asked}"
    if _COLLECTIVE.search(text):
        return "; a collective waits until every rank of its group has called it"
    return ""


def _partner_that_returned(text: str) -> str | None:
    """Who waits is in the report; a partner that is not has nothing left to do."""
    found = [([int(rank) for rank in m[1].split(", ")], m[2], int(m[3])) for m in _WAITS.finditer(text)]
    waiting = {rank for ranks, _, _ in found for rank in ranks}
    for ranks, call, partner in found:
        if partner not in waiting:
            returned = f"{partner}, which has already returned"
            if "send" in call:
                return f"; rank {ranks[0]} sends to {returned}: is there such a partner in this step?"
            asked = "did it send as often as it is received from, and wait() for each isend?"
            return f"; rank {ranks[0]} receives from {returned}: {asked}"
    return None


def _advice_on_error(text: str, row: tuple[int, ...]) -> str:
    if "does not require grad and does not have a grad_fn" in text:
        return _NO_HISTORY
    if "One of the differentiated Tensors does not require grad" in text:
        return _NO_LEAF
    if _NO_MEMORY in text:
        return _FREED
    lengths = _LENGTHS.search(text)
    if lengths and lengths[1] == lengths[3] and lengths[2] != lengths[4]:
        return f"; this check computes in {lengths[2]}: name no dtype, or take that of a tensor which you were given"
    if not lengths or lengths[2] != lengths[4] or abs(int(lengths[1]) - int(lengths[3])) != math.prod(row):
        return ""
    return "; chunks may differ by one row: make the inbox as long as the chunk that comes in"
