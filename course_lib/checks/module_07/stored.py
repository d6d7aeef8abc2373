"""07.8: a rank reads its box of a stored tensor, and nothing else of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_lib.checks.kit.calls import calls_exercise
from course_lib.checks.kit.spec import Level

_NAME = "weight"
Span = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class File:
    """A stored tensor for dp x tp ranks, each of which is asked to read; `counts` where what it reads does as well."""

    dp: int
    tp: int
    shape: tuple[int, ...]
    cut: int | None
    counts: bool = False
    world_size: int = 1

    def __str__(self) -> str:
        how = "tp cuts nothing" if self.cut is None else f"tp cuts dim {self.cut}"
        return f"{self.shape} on dp {self.dp} x tp {self.tp}, {how}"

    def asked(self, seed: int) -> list[StoredAsked]:
        """Other numbers for another seed."""
        generator = torch.Generator().manual_seed(seed)
        stored = torch.randint(1, 1000, self.shape, generator=generator, dtype=torch.int32)
        return [StoredAsked(stored, self.cut, self.dp, self.tp, i, j) for i in range(self.dp) for j in range(self.tp)]


class StoredAsked(NamedTuple):
    """What is stored, the dim that tp cuts, and a rank's coordinates."""

    stored: Tensor
    cut: int | None
    dp: int
    tp: int
    i: int
    j: int

    def __str__(self) -> str:
        return f"the rank at dp {self.i}, tp {self.j}"

    def part(self) -> Tensor:
        """What it should have, cut from the whole."""
        mine = self.stored if self.cut is None else _chunk(self.stored, self.tp, self.j, self.cut)
        return _chunk(mine, self.dp, self.i, 0)


class _Stored:
    """A tensor in a file, as `safe_open(...).get_slice(name)` gives it; `read` are the numbers that were read."""

    def __init__(self, found: Any) -> None:
        self._found, self.read = found, 0

    def get_shape(self) -> list[int]:
        """Its shape, for which nothing is read."""
        return list(self._found.get_shape())

    def __getitem__(self, where: Any) -> Tensor:
        box: Tensor = self._found[where]
        self.read += box.numel()
        return box


def _chunk(x: Tensor, parts: int, number: int, dim: int) -> Tensor:
    found = x.chunk(parts, dim)
    return found[number] if number < len(found) else x.narrow(dim, 0, 0)


def _use(answer: Callable[..., Any], asked: StoredAsked) -> tuple[Any, int]:
    """Runs on a rank: write a file, let the answer read, count what it reads."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_file({_NAME: asked.stored}, path)
        with safe_open(path, "pt") as file:
            stored = _Stored(file.get_slice(_NAME))
            return answer(stored, *asked[1:]), stored.read


def span(length: int, parts: int, number: int) -> Span:
    """Where a chunk begins and ends."""
    each = -(-length // parts)
    return min(number * each, length), min((number + 1) * each, length)


def _even(length: int, parts: int, number: int) -> Span:
    """As tensor_split."""
    each, more = divmod(length, parts)
    first = number * each + min(number, more)
    return first, first + each + (number < more)


def _load(
    stored: _Stored,
    cut: int | None,
    dp: int,
    tp: int,
    i: int,
    j: int,
    *,
    spans: Callable[[int, int, int], Span] = span,
    fsdp_first: bool = False,
    from_the_first: bool = False,
) -> Tensor:
    """Right, unless a part is chosen otherwise."""
    box = [(0, length) for length in stored.get_shape()]
    cuts = [(cut, tp, j), (0, dp, i)]
    for dim, parts, number in reversed(cuts) if fsdp_first else cuts:
        if dim is not None:
            first, end = box[dim]
            begin, stop = spans(end - first, parts, number)
            box[dim] = (begin, stop) if from_the_first else (first + begin, first + stop)
    return stored[tuple(slice(*one) for one in box)]


def _too_much(case: File, asked: StoredAsked, read: int) -> str | None:
    if not case.counts or read <= asked.part().numel():
        return None
    found = f"right values, but {read} numbers were read from the file, target {asked.part().numel()}"
    if read >= asked.stored.numel():
        return f"{found}: stored[...] with all its rows and columns reads the whole tensor. Find your box first"
    return f"{found}: cut both times before you read, not once before and once after"


_LOADER = calls_exercise(
    key="07.8",
    title="read your box, and nothing else",
    names=("the part",),
    records=lambda case, seed: case.asked(seed),
    wanted=lambda asked: (asked.part(),),
    use=_use,
    counted=_too_much,
    slips={
        "FSDP has cut first, which is the part of another rank where tp cuts rows too. First tp's part, then dp's rows "
        "of it": partial(_load, fsdp_first=True),
        "i and j are swapped: j is the coordinate along tp, i the one along dp": (
            lambda stored, cut, dp, tp, i, j: _load(stored, cut, tp, dp, j, i)
        ),
        "the dp rows were counted from the top of the tensor; they are rows of tp's part, which begins further down": (
            partial(_load, from_the_first=True)
        ),
        "the parts are tensor_split's. These are as torch.chunk's, where all but the last ones are equally long": (
            partial(_load, spans=_even)
        ),
        "where `cut` is 0, tp has not cut: `if cut` is false for 0 as well as for None. Ask `if cut is not None`": (
            lambda stored, cut, dp, tp, i, j: _load(stored, cut or None, dp, tp, i, j)
        ),
        "tp has not cut: the part has all that the ranks along tp share": (
            lambda stored, cut, dp, tp, i, j: _load(stored, None, dp, tp, i, j)
        ),
        "dp has not cut: those are all rows that tp leaves this rank. Rows are dim 0, for which `if dim` is false": (
            lambda stored, cut, dp, tp, i, j: _load(stored, cut, 1, tp, 0, j)
        ),
        "tp cut the other dim": (
            lambda stored, cut, dp, tp, i, j: _load(
                stored, cut if cut is None or len(stored.get_shape()) < 2 else 1 - cut, dp, tp, i, j
            )
        ),
        "what tp leaves whole was cut as well. With None each rank along tp has all columns": (
            lambda stored, cut, dp, tp, i, j: _load(
                stored, len(stored.get_shape()) - 1 if cut is None else cut, dp, tp, i, j
            )
        ),
    },
    levels={
        "values": Level(
            points=2,
            again=True,
            cases=(
                File(dp=2, tp=2, shape=(6, 8), cut=1),
                File(dp=3, tp=2, shape=(12, 4), cut=0),
                File(dp=2, tp=4, shape=(6, 8), cut=None),
            ),
            praise="first tp's part, then dp's rows of it",
        ),
        "reading": Level(
            points=2,
            cases=(
                File(dp=2, tp=2, shape=(6, 8), cut=1, counts=True),
                File(dp=3, tp=2, shape=(12, 4), cut=0, counts=True),
                File(dp=2, tp=4, shape=(6, 8), cut=None, counts=True),
            ),
            praise="each number of the file is read once, by the rank that has it: no rank ever holds the whole",
        ),
        "edges": Level(
            points=1,
            cases=(
                File(dp=2, tp=3, shape=(7, 5), cut=0, counts=True),
                File(dp=4, tp=3, shape=(5, 7), cut=1, counts=True),
                File(dp=4, tp=2, shape=(6,), cut=0, counts=True),
                File(dp=1, tp=1, shape=(3, 2), cut=1, counts=True),
            ),
            praise="also where chunks are shorter, or empty, and for a tensor of one dim",
        ),
    },
    hints=(
        "A box is a begin and an end for each dim. Before anything is cut it is [(0, n) for n in stored.get_shape()].",
        "torch.chunk gives every part -(-n // parts) numbers, so part k begins at k times that, but not behind n, and "
        "ends at k + 1 times that, but not behind n.",
        "tp narrows the box along `cut`, if that is not None. Then dp narrows it along dim 0: by a chunk of the rows "
        "that are left, counted from where these begin.",
        "stored[tuple(slice(begin, end) for begin, end in box)] reads just that.",
    ),
)
