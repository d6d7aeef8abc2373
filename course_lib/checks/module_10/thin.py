"""10.8: PowerSGD of one matrix: two thin factors that ranks sum, directions that stay, and what each rank keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import comm
from course_lib.checks.kit.parts import Advice, Asked, Parts, generator, parts_exercise
from course_lib.checks.kit.probe import Slips
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.spec import Level

_NAMES = ("the mean", "what is kept")
_ORDER = (
    "if these are columns of torch.linalg.qr, the order is another one: first the mean of all ranks' P, which can be "
    "sent as it is, and then orthonormal columns, which are not sent"
)


@dataclass(frozen=True, kw_only=True)
class Thin:
    """Matrices of this shape on so many ranks, by so many columns, in so many steps."""

    world_size: int
    shape: tuple[int, int] = (6, 5)
    columns: int = 2
    steps: int = 1
    look: bool = False

    def __str__(self) -> str:
        a, b = self.shape
        steps = f", {plural(self.steps, 'step')}" * (self.steps > 1)
        return f"{plural(self.world_size, 'rank')}, {a} x {b}, {plural(self.columns, 'column')}{steps}"


class _Factors:
    """The right answer, or one with a mistake."""

    def __init__(self, directions: Tensor, mistake: str = "") -> None:
        self.Q, self.kept, self.mistake = directions, torch.zeros(()), mistake

    def mean(self, gradient: Tensor) -> Tensor:
        """Runs on a rank: what all take for the mean of their gradients."""
        due = gradient + self.kept
        left = due @ self.Q
        if self.mistake == "own left":
            left = torch.linalg.qr(left).Q.contiguous()
        left = left if self.mistake == "not summed" else self._mean(left)
        if self.mistake not in ("own left", "not orthonormal"):
            left = torch.linalg.qr(left).Q
        mine = due.T @ left
        right = mine if self.mistake == "right not summed" else self._mean(mine)
        found = left @ right.T
        if self.mistake != "cold":
            self.Q = right
        self.kept = {
            "forgets": torch.zeros_like(gradient),
            "own right": due - left @ mine.T,
            "last only": gradient - found,
            "sign": found - due,
        }.get(self.mistake, due - found)
        if self.mistake == "of the mean":
            self.kept = self._mean(self.kept)
        return found

    def _mean(self, x: Tensor) -> Tensor:
        return comm.all_reduce(x) / (1 if self.mistake == "sum" else dist.get_world_size())


def _drive(answer: Callable[..., Any], directions: Tensor, *gradients: Tensor) -> tuple[Any, Any]:
    """Runs on a rank: means and what is kept, of all steps."""
    box, means, kept = answer(directions), [], []
    for gradient in gradients:
        try:
            means.append(box.mean(gradient))
        except ValueError as error:
            if "strides" in str(error):
                error.args = (f"{error}; {_ORDER}",)
            raise
        kept.append(getattr(box, "kept", None))
    return _stacked(means), _stacked(kept)


def _stacked(found: list[Any]) -> Any:
    """All steps in one tensor; or the first thing of which that cannot be made."""
    odd = [one for one in found if not isinstance(one, Tensor) or one.shape != getattr(found[0], "shape", None)]
    return odd[0] if odd else torch.stack(found)


def _drawn(case: Thin, seed: int) -> Parts:
    a, b = case.shape
    source = generator(seed, case.world_size, a, b, case.columns, case.steps)
    directions = torch.randn(b, case.columns, generator=source)
    gradients = torch.randn(case.steps, case.world_size, a, b, generator=source)
    means, kept = _everyone(directions, gradients)
    return Parts(
        arguments=[(directions, *gradients[:, rank]) for rank in range(case.world_size)],
        wanted=[(means, kept[:, rank]) for rank in range(case.world_size)],
        # Three products, and at most two of each column with all, by which Gram and Schmidt make them orthonormal.
        multiplications=case.steps * (3 * a * b * case.columns + 2 * a * case.columns**2),
        drive=_drive,
    )


def _everyone(directions: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """All steps in one process. Shapes: gradients and what is kept (steps, ranks, a, b), means (steps, a, b)."""
    means: list[Tensor] = []
    kept: list[Tensor] = []
    for of_ranks in gradients:
        due = of_ranks + (kept[-1] if kept else 0)
        left = torch.linalg.qr((due @ directions).mean(0)).Q
        directions = due.mean(0).T @ left
        means.append(left @ directions.T)
        kept.append(due - means[-1])
    return torch.stack(means), torch.stack(kept)


def _asked(case: Thin) -> Sequence[Asked]:
    a, b = case.shape
    return [Asked("all_reduce", a, case.columns), Asked("all_reduce", b, case.columns)] * case.steps


def _traffic(case: Thin, calls: Counter[str]) -> str:
    if calls["all_reduce"] > 2 * case.steps:
        return "two all-reduces in a step are enough: of P, and of Q. What a rank keeps is its own"
    if calls["all_gather"]:
        return "factors add up on the way, since both are linear in the gradient: all-reduce them"
    return "only the two factors have to travel"


def _way(mistake: str) -> Callable[..., Any]:
    return partial(_Factors, mistake=mistake)


_SLIPS: Slips = {
    "each rank has made its own P orthonormal before they were averaged. First the mean, then orthonormal columns": (
        _way("own left")
    ),
    "the columns of P are not orthonormal, so P Q.T is no projection of the gradient": _way("not orthonormal"),
    "each rank has gone on with its own P, and the mean of all is meant": _way("not summed"),
    "each rank has taken its own Q, and the mean of all is meant": _way("right not summed"),
    "factors are added up, and their mean is asked": _way("sum"),
    "each step begins with the first directions. Q of the last step is the better beginning: that is the warm start": (
        _way("cold")
    ),
    "nothing is kept, so what the factors do not hold is lost": _way("forgets"),
    "what is kept is measured at this rank's own Q. Everybody steps by the mean, so what has been taken of the "
    "gradient is that": _way("own right"),
    "what is kept is of the last gradient alone, without what was kept before it": _way("last only"),
    "what is kept has the wrong sign": _way("sign"),
    "all ranks keep the same, a mean. Each keeps what its own gradient has lost": _way("of the mean"),
}

_THIN = parts_exercise(
    key="10.8",
    title="two thin factors for a matrix",
    names=_NAMES,
    draw=_drawn,
    asked=_asked,
    slips=_SLIPS,
    advice=Advice(
        traffic=_traffic,
        work="three products in a step are enough, M Q, M.T P and P Q.T, besides those that make columns orthonormal",
    ),
    levels={
        "one": Level(
            points=1,
            cases=(Thin(world_size=4), Thin(world_size=2, columns=1)),
            praise="the mean of all ranks, as well as two thin factors can say it",
        ),
        "steps": Level(
            points=2,
            again=True,
            cases=(Thin(world_size=4, steps=3), Thin(world_size=2, shape=(4, 7), columns=1, steps=4)),
            praise="directions that get better from step to step, and a memory of what they leave out",
        ),
        "calls": Level(
            points=1,
            cases=(
                Thin(world_size=4, steps=2, look=True),
                Thin(world_size=3, shape=(4, 6), columns=4, steps=2, look=True),
                Thin(world_size=1, steps=2, look=True),
            ),
            praise="(a + b) r numbers in two all-reduces, on any number of ranks; of full rank nothing is lost",
        ),
    },
    hints=(
        "M = gradient + what is kept. comm.all_reduce(M @ self.Q), divided by the number of ranks, is the mean of the "
        "ranks' P.",
        "torch.linalg.qr(P).Q has orthonormal columns that span what those of P span. All ranks have the same P by "
        "then, so they get the same columns.",
        "Q is the mean over the ranks of M.T @ P. Keep it in self.Q for the next step. What everybody takes for the "
        "mean gradient is P @ Q.T.",
        "self.kept = M - P @ Q.T, with this rank's own M. It does not travel.",
    ),
)
