"""09.5: which tokens of packed documents each rank has in zigzag order, their positions, the way back, and the work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_lib.checks.kit.asked import asked_exercise
from course_lib.checks.kit.parts import generator
from course_lib.checks.kit.probe import Slips
from course_lib.checks.kit.said import plural, wrong_kind
from course_lib.checks.kit.spec import Level
from course_lib.verify.numbers import number_of

_NAMES = ("held", "angles", "back", "pairs")
_Lists = list[list[int]]
_Four = tuple[_Lists, _Lists, list[int], list[int]]
_Cut = Callable[[Sequence[int], int], _Lists]  # of the documents' lengths and the number of ranks


@dataclass(frozen=True, kw_only=True)
class Packed:
    """So many documents one behind the other, over so many ranks; which wrong ways give something else here."""

    text: str
    ranks: int
    documents: int = 1
    shortest: float = 2.0  # so many times as many tokens as ranks, at least and at most
    longest: float = 6.0
    even: bool = False  # each is cut into equal pieces
    shows: Slips
    world_size: int = 1

    def __str__(self) -> str:
        return self.text

    def __hash__(self) -> int:
        return hash((self.text, self.ranks, self.documents))


class _Row(NamedTuple):
    """What the answer is asked for."""

    lengths: tuple[int, ...]
    ranks: int

    def __str__(self) -> str:
        lengths = ", ".join(map(str, self.lengths))
        return f"{plural(len(self.lengths), 'document')} of {lengths} tokens on {plural(self.ranks, 'rank')}"


def _records(case: Packed, seed: int) -> Sequence[_Row]:
    """Lengths for which each mistake shows that is to show here."""
    for attempt in count():
        source = generator(seed, case.ranks, case.documents, int(10 * case.longest), attempt)
        step = 2 * case.ranks if case.even else 1
        least, most = (max(1, int(times * case.ranks / step)) for times in (case.shortest, case.longest))
        lengths = step * torch.randint(least, most + 1, (case.documents,), generator=source)
        row = _Row(tuple(lengths.tolist()), case.ranks)
        right = _four(*row)
        if all(program(*row) != right for program in case.shows.values()):
            return [row]
    raise AssertionError


def _use(answer: Callable[..., Any], row: _Row) -> list[Any] | str:
    """Runs on a rank: four lists of whole numbers, or of lists of these; a text says what came instead."""
    found = answer(list(row.lengths), row.ranks)
    if not isinstance(found, tuple | list) or len(found) != len(_NAMES):
        kind = plural(len(found), "thing") if isinstance(found, tuple | list) else type(found).__name__
        return wrong_kind(kind, f"four things: {', '.join(_NAMES)}")
    try:
        return [_plain(one) for one in found]
    except TypeError as error:
        return str(error)


def _plain(x: Any) -> Any:
    if isinstance(x, Tensor):
        return _plain(x.tolist())
    if isinstance(x, list | tuple | range):
        return [_plain(one) for one in x]
    number = number_of(x)
    if number is None or number != int(number):
        raise TypeError(f"a whole number is wanted, and {x!r} is none")
    return int(number)


def _judge(row: _Row, found: list[Any] | str) -> str | None:
    if isinstance(found, str):
        return found
    right: tuple[Any, ...] = _four(*row)
    for name, got, want in zip(_NAMES, found, right, strict=True):
        if got == want:
            continue
        if isinstance(want[0], list) and isinstance(got, list) and len(got) == len(want):
            rank = next(rank for rank in range(len(want)) if got[rank] != want[rank])
            return f"{name} of rank {rank} is {got[rank]}, and {want[rank]} is right"
        return f"{name} is {got}, and {want} is right"
    return None


def _sizes(length: int, parts: int) -> list[int]:
    """As `tensor_split` cuts; by PyTorch's own, since an answer of the library would be refused."""
    return [len(part) for part in torch.arange(length).tensor_split(parts)]


def _runs(sizes: Sequence[int]) -> list[list[int]]:
    ends = [0, *accumulate(sizes)]
    return [list(range(start, end)) for start, end in zip(ends, ends[1:], strict=False)]


def _mirrored(pieces: Sequence[list[int]], ranks: int) -> _Lists:
    """To each rank a piece from the front and the one as far from the end."""
    return [[*pieces[rank], *pieces[-1 - rank]] for rank in range(ranks)]


def _by_document(cut: Callable[[int, int], _Lists]) -> _Cut:
    """Each document is cut by itself: what a rank has of one stands behind what it has of the one before."""

    def whole(lengths: Sequence[int], ranks: int) -> _Lists:
        held: _Lists = [[] for _ in range(ranks)]
        for start, length in zip(accumulate(lengths, initial=0), lengths, strict=False):
            for mine, own in zip(held, cut(length, ranks), strict=True):
                mine += [start + at for at in own]
        return held

    return whole


def _zigzag(length: int, ranks: int) -> _Lists:
    return _mirrored(_runs(_sizes(length, 2 * ranks)), ranks)


def _backwards(length: int, ranks: int) -> _Lists:
    pieces = _runs(_sizes(length, 2 * ranks))
    return [[*pieces[rank], *reversed(pieces[-1 - rank])] for rank in range(ranks)]


def _not_mirrored(length: int, ranks: int) -> _Lists:
    pieces = _runs(_sizes(length, 2 * ranks))
    return [[*pieces[rank], *pieces[ranks + rank]] for rank in range(ranks)]


def _in_order(length: int, ranks: int) -> _Lists:
    return _runs(_sizes(length, ranks))


def _dealt(length: int, ranks: int) -> _Lists:
    return [list(range(rank, length, ranks)) for rank in range(ranks)]


def _chunks(length: int, ranks: int) -> _Lists:
    """As `chunk` cuts: all pieces are of the same size, and the last ones short or empty."""
    size = -(-length // (2 * ranks))
    ends = [min(size * number, length) for number in range(2 * ranks + 1)]
    return _mirrored(_runs([end - start for start, end in zip(ends, ends[1:], strict=False)]), ranks)


def _halved(length: int, ranks: int) -> _Lists:
    """Cut for the ranks first, and each part in two."""
    counts = _sizes(length, ranks)
    return _mirrored(_runs([-(-n // 2) for n in counts] + [n // 2 for n in reversed(counts)]), ranks)


def _rest_left(length: int, ranks: int) -> _Lists:
    """The tokens that are left over after equal pieces are lost."""
    return _mirrored(_runs([length // (2 * ranks)] * 2 * ranks), ranks)


_of_each = _by_document(_zigzag)


def _of_the_row(lengths: Sequence[int], ranks: int) -> _Lists:
    return _zigzag(sum(lengths), ranks)


def _fronts_first(lengths: Sequence[int], ranks: int) -> _Lists:
    """Of all documents the pieces from the front, then those from the end."""
    front = _by_document(lambda length, ranks: _runs(_sizes(length, 2 * ranks))[:ranks])
    back = _by_document(lambda length, ranks: _runs(_sizes(length, 2 * ranks))[: ranks - 1 : -1])
    return [one + other for one, other in zip(front(lengths, ranks), back(lengths, ranks), strict=True)]


def _in_document(held: _Lists, lengths: Sequence[int]) -> _Lists:
    """The positions of tokens of the row in their documents."""
    at = [place for length in lengths for place in range(length)]
    return [[at[index] for index in mine] for mine in held]


def _back(held: _Lists) -> list[int]:
    gathered = [index for mine in held for index in mine]
    return sorted(range(len(gathered)), key=gathered.__getitem__)


def _pairs(held: _Lists, lengths: Sequence[int]) -> list[int]:
    return [sum(at + 1 for at in mine) for mine in _in_document(held, lengths)]


def _four(
    lengths: Sequence[int],
    ranks: int,
    *,
    cut: _Cut = _of_each,
    positions: Callable[[_Lists, Sequence[int]], _Lists] = _in_document,
    shown: Callable[[_Lists, _Lists], _Lists] = lambda held, angles: held,
    back: Callable[[_Lists], list[int]] = _back,
    pairs: Callable[[_Lists, Sequence[int]], list[int]] = _pairs,
) -> _Four:
    """Right, unless a part is chosen otherwise."""
    held = cut(lengths, ranks)
    angles = positions(held, lengths)
    return shown(held, angles), angles, back(held), pairs(held, lengths)


def _way(**parts: Any) -> Callable[..., _Four]:
    return lambda lengths, ranks: _four(lengths, ranks, **parts)


_OF_ONE: Slips = {
    "each rank has one run of tokens. Cut twice as many pieces as ranks, and give each rank one from the front and the "
    "one as far from the end": _way(cut=_by_document(_in_order)),
    "tokens are dealt out one by one, and a rank is to have two runs of neighbours": _way(cut=_by_document(_dealt)),
    "the second piece is not as far from the end as the first from the front: rank r has piece 2p - 1 - r": (
        _way(cut=_by_document(_not_mirrored))
    ),
    "the second piece runs backwards. Only the choice of pieces is mirrored, not the order of their tokens": (
        _way(cut=_by_document(_backwards))
    ),
    "angles counts a rank's tokens from 0. A position is a token's place in its document": (
        _way(positions=lambda held, lengths: [list(range(len(mine))) for mine in held])
    ),
    "back says where each gathered token belongs. It is to say where in the gathered ones each token of the row "
    "stands, which is the inverse": _way(back=lambda held: [index for mine in held for index in mine]),
    "back is the row's own order, as if the gathered tokens lay in it": (
        _way(back=lambda held: list(range(sum(map(len, held)))))
    ),
    "pairs leaves a query's own key out, and it sees that too": (
        _way(pairs=lambda held, lengths: [sum(mine) for mine in _in_document(held, lengths)])
    ),
    "pairs has a rank's own keys alone. Its queries meet keys on other ranks": (
        _way(pairs=lambda held, lengths: [len(mine) * (len(mine) + 1) // 2 for mine in held])
    ),
    "pairs has those that the mask hides: a query sees its own key and those before it": (
        _way(pairs=lambda held, lengths: [len(mine) * sum(lengths) for mine in held])
    ),
}
_OF_DOCUMENTS: Slips = {
    "held has positions within documents. It is to say which tokens of the row, so those of the second document begin "
    "behind the first": _way(shown=lambda held, angles: angles),
    "the row was cut as one document. Then a rank gets late pieces of some documents and no early ones for them: cut "
    "each document by itself": _way(cut=_of_the_row),
    "held has the front pieces of all documents first, and then the others. A document is complete before the next "
    "one comes": _way(cut=_fronts_first),
    "angles has places in the row. In each document positions begin with 0 again": (
        _way(positions=lambda held, lengths: held)
    ),
    "pairs lets a query see the documents before its own": (
        _way(pairs=lambda held, lengths: [sum(index + 1 for index in mine) for mine in held])
    ),
}
_OF_UNEVEN: Slips = {
    "the pieces are those of `chunk`, which makes the last ones short. By tensor_split no piece is more than one token "
    "longer than another": _way(cut=_by_document(_chunks)),
    "each document was cut for p ranks first, and each part in two. Cut it into 2p pieces at once": (
        _way(cut=_by_document(_halved))
    ),
    "some tokens are on no rank: those that are left over when all pieces are equally long": (
        _way(cut=_by_document(_rest_left))
    ),
}
_SLIPS: Slips = {**_OF_ONE, **_OF_DOCUMENTS, **_OF_UNEVEN}

_ZIGZAG = asked_exercise(
    key="09.5",
    title="zigzag for packed documents",
    records=_records,
    use=_use,
    judge=_judge,
    slips=_SLIPS,
    levels={
        "one": Level(
            points=1,
            cases=(
                Packed(text="one document", ranks=2, even=True, shortest=4.0, shows=_OF_ONE),
                Packed(text="one document", ranks=4, even=True, shortest=4.0, shows=_OF_ONE),
            ),
            praise="each rank has an early and a late piece, and equal work",
        ),
        "documents": Level(
            points=2,
            cases=(
                Packed(text="packed", ranks=2, documents=2, even=True, shows={**_OF_ONE, **_OF_DOCUMENTS}),
                Packed(text="packed", ranks=3, documents=3, even=True, shows={**_OF_ONE, **_OF_DOCUMENTS}),
            ),
            praise="each document is shared by itself, its positions begin with 0, and it sees no other",
        ),
        "uneven": Level(
            points=2,
            again=True,
            cases=(
                Packed(text="lengths that do not divide", ranks=2, documents=2, shows=_SLIPS),
                Packed(text="lengths that do not divide", ranks=4, documents=3, longest=4.0, shows=_SLIPS),
            ),
            praise="also where pieces differ by a token",
        ),
        "edges": Level(
            points=1,
            cases=(
                Packed(text="documents shorter than 2p", ranks=4, documents=3, shortest=0.0, longest=1.0, shows={}),
                Packed(text="one rank", ranks=1, documents=2, shows={}),
            ),
            praise="also for very short documents, and on one rank",
        ),
    },
    hints=(
        "Take one document first. torch.arange(length).tensor_split(2 * p) gives its pieces; which two of them has "
        "rank r? These numbers are its positions, and for the first document also its places in the row.",
        "Go through the documents one after the other and remember where each begins in the row. `held` is that "
        "beginning plus the position.",
        "Write down what a gather brings: held of rank 0, then of rank 1, and so on. Token 0 of the row stands where "
        "this list has a 0. argsort says so for all tokens at once.",
        "A query at position i of its document sees i + 1 keys, whichever ranks have them. So `pairs` follows from "
        "`angles` alone.",
    ),
)
