"""Two sides that were not written together made comparable: names of their own, buffers that one does not show."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from course_lib.parallel.table.agreement import listing
from course_lib.verify.equality import same
from course_lib.verify.trace import AdamWTrace, SgdTrace, Trace

_OF_SGD = ("start", "second_start", "gradients", "halved", "after_first", "second_gradients", "end")
_OF_ADAMW = ("start", "half", "loaded", "end")


def matched(alone: Trace, ranks: Sequence[Trace]) -> tuple[Trace, list[Trace], list[str]]:
    """Both sides with one device's names for what both have, and what is to be said of that."""
    first, notes = ranks[0][0], []
    names = _other_names(alone[0].start, first.start)
    if names:
        ranks = [_edited(trace, lambda name: names.get(name, name)) for trace in ranks]
        pairs = [f"{theirs} is {mine}" for theirs, mine in names.items()]
        notes.append(f"names differ, tensors were matched by shape and value: {listing(pairs)}")
    if alone[0].has_buffers != first.has_buffers:
        alone, *ranks = (_edited(trace, _only(trace[0].parameter_names)) for trace in (alone, *ranks))
        who = "the parallel side" if alone[0].has_buffers else "the reference"
        notes.append(f"buffers are not compared: {who} has no buffers()")
    return alone, list(ranks), notes


def _other_names(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, str]:
    """Of each of their names that I do not have, mine; empty unless each of both has its partner.

    Of several equal tensors the one with the most letters in common at the end is taken.

    >>> import torch
    >>> w = torch.ones(2)
    >>> _other_names({"a.w": w, "b.w": w}, {"m.b.w": w, "m.a.w": w})
    {'m.a.w': 'a.w', 'm.b.w': 'b.w'}
    """
    missing = [name for name in mine if name not in theirs]
    extra = [name for name in theirs if name not in mine]
    found: dict[str, str] = {}
    for name in missing if len(missing) == len(extra) else ():
        fit = [one for one in extra if one not in found and same(theirs[one], mine[name])]
        if not fit:
            return {}
        found[max(fit, key=lambda one: len(os.path.commonprefix([one[::-1], name[::-1]])))] = name
    return found


def _edited(trace: Trace, rename: Callable[[str], str]) -> Trace:
    """A trace by other names; an empty one drops the tensor."""

    def edited(of: SgdTrace | AdamWTrace, fields: Sequence[str]) -> dict[str, dict[str, Tensor]]:
        return {field: {rename(name): x for name, x in getattr(of, field).items() if rename(name)} for field in fields}

    sgd, adamw = trace
    names = {field: tuple(map(rename, getattr(sgd, field))) for field in ("parameter_names", "frozen", "tied")}
    places = {rename(name): place for name, place in sgd.places.items() if rename(name)}
    sgd = replace(sgd, **edited(sgd, _OF_SGD), **names, places=places)  # type: ignore[arg-type]
    return sgd, adamw and replace(adamw, **edited(adamw, _OF_ADAMW))  # type: ignore[arg-type]


def _only(names: Sequence[str]) -> Callable[[str], str]:
    return lambda name: name if name in names else ""
