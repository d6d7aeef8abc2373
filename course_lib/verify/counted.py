"""How often a gradient counts each row of a batch: a sum of the rows' gradients, taken apart again.

One device counts each row once. A share that was left out, a mean of means or a rank that kept its own gradient each
leave a pattern of their own, which says more than any ratio.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_NEAR = 1e-3  # two counts this near are one
_EQUATIONS = 2  # numbers of a gradient for each row, or anything would fit
_LEFT = {torch.float64: 1e-6, torch.float32: 1e-3}  # of a gradient may remain unexplained


def counts(got: Mapping[str, Tensor], rows: Mapping[str, Tensor], targets: int) -> Tensor | None:
    """For each row the number c so that the gradient is the sum of c x its own; None if there are no such numbers.

    Shapes: rows by name (B, ...) -> (B,).
    """
    names = [name for name in rows if name in got and got[name].shape == rows[name].shape[1:]]
    if not names:
        return None
    each = torch.cat([rows[name].flatten(1) for name in names], 1) / targets  # (B, N)
    whole = torch.cat([got[name].flatten() for name in names])  # (N,)
    here = each.double().norm(dim=1) > 0  # a row without targets counts nothing
    if not here.any() or not whole.isfinite().all() or len(whole) < _EQUATIONS * len(each):
        return None
    found = torch.linalg.lstsq(each[here].double().T, whole.double().unsqueeze(1), driver="gelsd").solution.flatten()
    left = (found @ each[here].double() - whole.double()).norm()
    if left > _LEFT.get(whole.dtype, 1e-2) * max(whole.double().norm(), each.double().norm()):
        return None
    return torch.full((len(each),), float("nan"), dtype=torch.float64).masked_scatter(here, found)


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How ranks share a batch out: rows of each share, and of each micro-batch of each share; NaN rows are no rows."""

    targets: Tensor  # of each row
    shares: int
    parts: int  # micro-batches of a share

    def rows(self) -> list[list[int]]:
        """The rows with targets of each share."""
        return [self._counting(share) for share in torch.arange(len(self.targets)).tensor_split(self.shares)]

    def micro_batches(self) -> list[list[list[int]]]:
        """The same of each micro-batch, by share."""
        every = torch.arange(len(self.targets)).tensor_split(self.shares)
        return [[self._counting(part) for part in share.tensor_split(self.parts)] for share in every]

    def _counting(self, rows: Tensor) -> list[int]:
        return [row for row in rows.tolist() if self.targets[row]]

    def of(self, rows: Sequence[int]) -> int:
        """How many targets these rows have."""
        return int(self.targets[list(rows)].sum())


def only(count: Tensor, rows: Sequence[int]) -> bool:
    """Whether these rows count, and no others."""
    there = {row for row, c in enumerate(count.tolist()) if abs(c) > _NEAR}  # NaN is not above
    return bool(there) and there == set(rows)


def some(count: Tensor, rows: Sequence[int]) -> bool:
    """Whether one of these rows counts."""
    return any(abs(count[row].item()) > _NEAR for row in rows)


def level(count: Tensor, rows: Sequence[int]) -> float | None:
    """What all of these rows count; None if they do not count alike, or there is none."""
    values = [count[row].item() for row in rows]
    if not values or max(values) - min(values) > _NEAR * max(1.0, abs(values[0])):
        return None
    return sum(values) / len(values)


def by_targets(count: Tensor, groups: Sequence[Sequence[int]], cut: Cut, sizes: Sequence[int] = ()) -> bool:
    """Whether each group weighs the same in all, however many targets it has: a mean of the groups' means.

    With `sizes` a group weighs as much as its own.
    """
    filled = [(rows, size) for rows, size in zip(groups, sizes or [1] * len(groups), strict=True) if rows]
    levels = [level(count, rows) for rows, _ in filled]
    apart = {cut.of(rows) / size for rows, size in filled}
    if len(filled) < 2 or len(apart) < 2 or any(one is None or one < _NEAR for one in levels):
        return False
    of = [(one or 0.0) * cut.of(rows) / size for one, (rows, size) in zip(levels, filled, strict=True)]
    weights = torch.tensor(of)
    return bool((weights - weights[0]).abs().max() < _NEAR * weights[0].abs())


def is_mean_of_means(count: Tensor, cut: Cut) -> bool:
    """Whether each micro-batch weighs the same, however many targets it has, within its share or within the batch."""
    parts = cut.micro_batches()
    whole = by_targets(count, [rows for share in parts for rows in share], cut)
    return whole or all(by_targets(count, share, cut) for share in parts)


def odd_rows(count: Tensor) -> tuple[list[int], list[int]]:
    """The rows that do not count though most do, and those that count more than most."""
    values = count[~count.isnan()]
    usual = values.median().item()
    if abs(usual) < _NEAR:
        return [], []
    relative = (count / usual).tolist()
    missing = [row for row, c in enumerate(relative) if abs(c) < _NEAR]
    repeated = [row for row, c in enumerate(relative) if c > 1.5]
    rest = [c for c in relative if abs(c) >= _NEAR and c <= 1.5]  # NaN is neither
    return (missing, repeated) if all(abs(c - 1) < 10 * _NEAR for c in rest) else ([], [])
