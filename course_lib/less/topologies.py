"""Who talks to whom in gossip, as mixing matrices: row i holds the weights with which rank i takes the ranks' models.

All are doubly stochastic. Rows that sum to one make each new model an average; columns that sum to one keep the mean
of all models where it is. How fast the models come together is the **spectral gap**.
Source: Xiao, Boyd and Kim 2007 (Metropolis weights); Ying et al. 2021, Exponential Graph is Provably Efficient for
Decentralized Deep Training (static and one-peer exponential graph).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isqrt

import torch
from torch import Tensor

from course_lib.errors import four_parts

_Edge = tuple[int, int]


def mixing(topology: str, n: int) -> list[Tensor]:
    """The mixing matrices of n ranks, which are used in turn: one, or for the one-peer exponential graph a cycle.

    Shapes: -> float64 (n, n), each.
    Raises: ValueError for an unknown name, or an n that the topology cannot have.
    """
    if topology not in _MAKERS:
        way_out = f"choose one of {', '.join(TOPOLOGIES)}"
        raise ValueError(four_parts("mixing", f"topology={topology!r}", "not a known topology", way_out))
    if n < 1:
        raise ValueError(four_parts("mixing", f"n={n}", "somebody talks", "give n >= 1 ranks"))
    return _MAKERS[topology](n)


def spectral_gap(*matrices: Tensor) -> float:
    """1 - rho: of the distance from the mean, at most rho is left after a step; of a cycle, rho is per step on average.

    1 is all at once, 0 never. Take a cycle whole: `spectral_gap(*mixing("one_peer_exponential", 8))`.
    """
    n = len(matrices[0])
    product = torch.eye(n, dtype=torch.float64)
    for matrix in matrices:
        product = matrix @ product
    left = torch.linalg.matrix_norm(product - 1 / n, 2).item()
    return 1 - left ** (1 / len(matrices))


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """What one rank does in one step of gossip: own * mine + the sum of weight * theirs."""

    send_to: tuple[int, ...]
    receive_from: dict[int, float]  # the weight of each that is received
    own: float  # weight


def neighbours(matrix: Tensor, rank: int) -> Neighbours:
    """To whom this rank sends its model, from whom it receives one, and with which weights it averages."""
    others = [other for other in range(len(matrix)) if other != rank]
    return Neighbours(
        send_to=tuple(other for other in others if matrix[other, rank] != 0),
        receive_from={other: matrix[rank, other].item() for other in others if matrix[rank, other] != 0},
        own=matrix[rank, rank].item(),
    )


def _metropolis(n: int, edges: Iterable[_Edge]) -> list[Tensor]:
    """Over an edge goes one divided by one more than the larger degree of its ends; the rest of a row stays at home.

    Ends take each other with the same weight, so columns sum to one because rows do, whatever the degrees.
    """
    linked = torch.zeros(n, n, dtype=torch.float64)
    for one, other in edges:
        if one != other:
            linked[one, other] = linked[other, one] = 1
    degree = linked.sum(1)
    weights = linked / (1 + torch.maximum(degree[:, None], degree))
    return [weights + torch.diag(1 - weights.sum(1))]


def _ring(n: int) -> list[Tensor]:
    return _metropolis(n, ((rank, (rank + 1) % n) for rank in range(n)))


def _grid(n: int) -> list[Tensor]:
    rows, columns = _sides("grid", n)
    cells = [(row, column) for row in range(rows) for column in range(columns)]
    down = [(row * columns + column, (row + 1) * columns + column) for row, column in cells if row + 1 < rows]
    right = [(row * columns + column, row * columns + column + 1) for row, column in cells if column + 1 < columns]
    return _metropolis(n, down + right)


def _torus(n: int) -> list[Tensor]:
    rows, columns = _sides("torus", n)
    cells = [(row, column) for row in range(rows) for column in range(columns)]
    down = [(row * columns + column, (row + 1) % rows * columns + column) for row, column in cells]
    right = [(row * columns + column, row * columns + (column + 1) % columns) for row, column in cells]
    return _metropolis(n, down + right)


def _static_exponential(n: int) -> list[Tensor]:
    """Each rank takes those 1, 2, 4, ... further on, at once."""
    distances = _distances("static_exponential", n)
    return [sum((_shift(n, d) for d in distances), _shift(n, 0)) / (1 + len(distances))]


def _one_peer_exponential(n: int) -> list[Tensor]:
    """Each rank takes the one 1 further on, in the next step the one 2 further on, then 4, and begins again."""
    distances = _distances("one_peer_exponential", n)
    return [(_shift(n, 0) + _shift(n, d)) / 2 for d in distances] or [_shift(n, 0)]


def _complete(n: int) -> list[Tensor]:
    return [torch.full((n, n), 1 / n, dtype=torch.float64)]


_MAKERS: dict[str, Callable[[int], list[Tensor]]] = {
    "ring": _ring,
    "grid": _grid,
    "torus": _torus,
    "static_exponential": _static_exponential,
    "one_peer_exponential": _one_peer_exponential,
    "complete": _complete,
}
TOPOLOGIES = tuple(_MAKERS)


def _shift(n: int, distance: int) -> Tensor:
    """Rank i takes all from rank i + distance."""
    return torch.eye(n, dtype=torch.float64).roll(distance, 1)


def _sides(topology: str, n: int) -> tuple[int, int]:
    """The squarest rows x columns."""
    rows = next(side for side in range(isqrt(n), 0, -1) if n % side == 0)
    if rows == 1 < n:
        rule = f"a {topology} has at least two rows and two columns"
        raise ValueError(
            four_parts("mixing", f"topology={topology!r}, n={n}", rule, "choose n = rows x columns, or ring")
        )
    return rows, n // rows


def _distances(topology: str, n: int) -> list[int]:
    """1, 2, 4, ... up to n/2."""
    if n & (n - 1):
        powers = [1 << k for k in ((n.bit_length() - 1), n.bit_length())]
        rule, way_out = (
            "distances double until they have gone round",
            f"choose a power of two, such as {powers[0]} or {powers[1]}",
        )
        raise ValueError(four_parts("mixing", f"topology={topology!r}, n={n}", rule, way_out))
    return [1 << k for k in range(n.bit_length() - 1)]
