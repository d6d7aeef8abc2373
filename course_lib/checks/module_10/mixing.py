"""10.2: Metropolis' mixing matrix of a graph, by which no sum is lost, and how fast ranks come to agree by it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from course_lib.checks.kit.asked import asked_exercise
from course_lib.checks.kit.form import wrong_form
from course_lib.checks.kit.parts import generator
from course_lib.checks.kit.probe import Slips
from course_lib.checks.kit.said import plural, wrong_kind
from course_lib.checks.kit.spec import Level
from course_lib.verify.equality import close
from course_lib.verify.numbers import number_of

_DECIMALS, _OF_FLOAT32 = 9, 1e-6  # of a gap
Graph = Literal["ring", "star", "drawn", "two sides", "two rings"]


@dataclass(frozen=True, kw_only=True)
class Linked:
    """A graph of so many ranks."""

    graph: Graph
    ranks: int
    gap: bool = False  # whether the gap counts as well
    world_size: int = 1

    def __str__(self) -> str:
        what = {
            "ring": f"a ring of {self.ranks}",
            "star": f"a star of {self.ranks}",
            "drawn": f"a drawn graph of {plural(self.ranks, 'rank')}",
            "two sides": f"{plural(self.ranks, 'rank')}, each linked to all on the other side",
            "two rings": f"two rings of {self.ranks // 2} that are not linked",
        }[self.graph]
        return f"{what}{', the gap' * self.gap}"


class _Neighbours(NamedTuple):
    """Of each rank a list of its neighbours."""

    neighbours: tuple[tuple[int, ...], ...]
    gap: bool

    def __str__(self) -> str:
        return ""


def _records(case: Linked, seed: int) -> Sequence[_Neighbours]:
    """Ranks have other numbers for each seed."""
    source = generator(seed, case.ranks, len(case.graph))
    names = torch.randperm(case.ranks, generator=source).tolist()
    edges = {(names[one], names[other]) for one, other in _edges(case, source)}
    linked = edges | {(other, one) for one, other in edges}
    neighbours = (tuple(sorted(other for one, other in linked if one == rank)) for rank in range(case.ranks))
    return [_Neighbours(tuple(neighbours), case.gap)]


def _edges(case: Linked, source: torch.Generator) -> list[tuple[int, int]]:
    ranks, half = case.ranks, case.ranks // 2
    if case.graph == "ring":
        return [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    if case.graph == "star":
        return [(0, rank) for rank in range(1, ranks)]
    if case.graph == "two sides":
        return [(one, other) for one in range(half) for other in range(half, ranks)]
    if case.graph == "two rings":
        return [(start + one, start + (one + 1) % half) for start in (0, half) for one in range(half)]
    # A rank with three neighbours and one with one, so that degrees differ, and a few more links.
    tree = [(0, 1), (0, 2), (0, 3)] + [(int(torch.randint(3, (1,), generator=source)), n) for n in range(4, ranks)]
    return [*tree, (1, 2)]


def _use(answer: Callable[..., Any], asked: _Neighbours) -> dict[str, Tensor] | str:
    """Runs on a rank: the matrix, and the gap if it counts; a text is a verdict."""
    found = answer([list(one) for one in asked.neighbours])
    if not isinstance(found, tuple | list) or len(found) != 2:
        return wrong_kind(type(found).__name__, "two things: the matrix and the gap")
    matrix, gap = found[0], number_of(found[1])
    if not isinstance(matrix, Tensor):
        return f"the matrix is {type(matrix).__name__}, not a tensor"
    if gap is None:
        return f"the gap is {type(found[1]).__name__}, not a number"
    # Rounded, since 0 comes out as 1e-16 or so.
    rounded = torch.tensor(round(float(gap), _DECIMALS), dtype=torch.float64)
    return {"matrix": matrix.detach().clone()} | ({"gap": rounded} if asked.gap else {})


def _judge(asked: _Neighbours, found: Mapping[str, Tensor] | str) -> str | None:
    if isinstance(found, str):
        return found
    want, gap = _mixing(asked.neighbours)
    if reason := _wrong_matrix(asked, found["matrix"], want):
        return reason
    if asked.gap and not math.isclose(given := found["gap"].item(), gap, abs_tol=10**-_DECIMALS):
        right = round(gap, _DECIMALS)  # 0 comes out as 1e-16 or so
        if math.isclose(given, gap, abs_tol=_OF_FLOAT32):
            return f"the matrix is right, and its gap is {right:.9f}, not {given:.9f}: is it computed in float64?"
        return f"the matrix is right, and its gap is {right:.6g}, not {given:.6g}"
    return None


def _wrong_matrix(asked: _Neighbours, got: Tensor, want: Tensor) -> str | None:
    if form := wrong_form(got, want, 1, ""):
        return f"the matrix{form}".replace(" as in what you were given", "")
    if close(got, want):
        return None
    for dim, what, why in (
        (1, "row", "what a rank takes is to be a mean"),
        (0, "column", "what a rank has is to be heard once in all, or the sum over the ranks does not stay"),
    ):
        totals = got.sum(dim).tolist()
        if off := [place for place, total in enumerate(totals) if abs(total - 1) > 1e-9]:
            return f"{what} {off[0]} sums to {totals[off[0]]:.4g}, not 1: {why}"
    if apart := ((got != 0) & (want == 0)).nonzero().tolist():
        return f"[{apart[0][0]}, {apart[0][1]}] is not 0, and these two are no neighbours"
    one, other = ((got - want).abs() > 1e-9).nonzero()[0].tolist()
    degrees = [len(asked.neighbours[rank]) for rank in (one, other)]
    return (
        f"rows and columns sum to 1, but [{one}, {other}] is {got[one, other].item():.4g}, and "
        f"{want[one, other].item():.4g} is right: these two have {degrees[0]} and {plural(degrees[1], 'neighbour')}"
    )


def _mixing(neighbours: Sequence[Sequence[int]], *, mistake: str = "") -> tuple[Tensor, float]:
    """The right answer, or one with a mistake."""
    degrees = [len(one) for one in neighbours]
    matrix = torch.zeros(len(neighbours), len(neighbours), dtype=torch.float64)
    for rank, linked in enumerate(neighbours):
        for other in linked:
            matrix[rank, other] = {
                "equal": 1 / (1 + degrees[rank]),
                "without own": 1 / max(degrees[rank], degrees[other]),
                "smaller": 1 / (1 + min(degrees[rank], degrees[other])),
                "largest": 1 / (1 + max(degrees)),
                "both": 1 / (1 + degrees[rank] + degrees[other]),
            }.get(mistake, 1 / (1 + max(degrees[rank], degrees[other])))
    own = 1 / (1 + torch.tensor(degrees, dtype=torch.float64)) if mistake == "own equal" else 1 - matrix.sum(1)
    if mistake != "no own":
        matrix += own.diag()
    return matrix, _gap(matrix, mistake)


def _gap(matrix: Tensor, mistake: str) -> float:
    values = torch.linalg.eigvals(matrix).real.sort().values
    others = values[:-1]
    return {
        "signed": 1 - others.max().item(),
        "itself": others.abs().max().item(),
        "all": 1 - values.abs().max().item(),
        "smallest": 1 - others.abs().min().item(),
        "squared": 1 - others.abs().max().item() ** 2,
    }.get(mistake, 1 - others.abs().max().item())


def _way(mistake: str) -> Callable[..., Any]:
    return partial(_mixing, mistake=mistake)


_SLIPS: Slips = {
    "each rank takes the plain mean of itself and its neighbours. Its row sums to 1, but a rank with many neighbours "
    "is heard more than others: look at the columns": _way("equal"),
    "a neighbour's weight counts both ranks' links, and a rank itself: 1 / (1 + the larger degree)": _way(
        "without own"
    ),
    "the smaller degree of two is taken. Then a rank with many neighbours gives away more than it has": _way("smaller"),
    "all links have the weight of the largest degree in the graph. Only the two ranks of a link count": _way("largest"),
    "the two degrees of a link are added. The larger one counts": _way("both"),
    "the diagonal is missing: what a row lacks of 1 belongs to the rank itself": _way("no own"),
    "the diagonal is 1 / (1 + degree). What a row lacks of 1 belongs there": _way("own equal"),
    "the matrix is right. For the gap an eigenvalue near -1 is as bad as one near 1: take its size": _way("signed"),
    "the matrix is right. That is the eigenvalue itself, and the gap is what it lacks of 1": _way("itself"),
    "the matrix is right. The eigenvalue 1 of the mean itself is left out of the gap, once": _way("all"),
    "the matrix is right. That is the smallest of the other eigenvalues, and the slowest part is the largest": _way(
        "smallest"
    ),
    "the matrix is right. The gap is 1 minus the eigenvalue's size, not minus its square": _way("squared"),
}

_MIXING = asked_exercise(
    key="10.2",
    title="a mixing matrix, and how fast it mixes",
    records=_records,
    use=_use,
    judge=_judge,
    slips=_SLIPS,
    levels={
        "matrix": Level(
            points=2,
            cases=(
                Linked(graph="star", ranks=5),
                Linked(graph="drawn", ranks=7),
                Linked(graph="ring", ranks=4),
            ),
            praise="rows and columns sum to 1, so each rank takes a mean and no sum is lost",
        ),
        "gap": Level(
            points=2,
            again=True,
            cases=(
                Linked(graph="ring", ranks=16, gap=True),
                Linked(graph="two sides", ranks=6, gap=True),
                Linked(graph="two rings", ranks=6, gap=True),
                Linked(graph="drawn", ranks=9, gap=True),
            ),
            praise="the gap is what a step takes of the slowest disagreement, and 0 where two parts never meet",
        ),
    },
    hints=(
        "degrees = [len(one) for one in neighbours]. Two neighbours i and j have 1 / (1 + max(degrees[i], degrees[j])) "
        "in both of their rows.",
        "The diagonal comes last: W[i, i] is 1 minus the sum of the row so far.",
        "W is symmetric, so torch.linalg.eigvalsh(W) has its eigenvalues in rising order. The last one is 1, that of "
        "the mean, which no step changes.",
        "Of all the others take the largest size, an eigenvalue's sign aside. The gap is what that lacks of 1.",
    ),
)
