"""Workers that lie, and rules that take something else than the mean: what each rule costs when nobody does.

A mean goes wherever one worker pulls it. A rule that distrusts what lies apart withstands that. But a worker whose data
are others' lies apart as well, and a liar who knows the rule stays just within what is believed.
Source: Blanchard et al. 2017, Machine Learning with Adversaries (Krum); Yin et al. 2018 (median, trimmed mean);
Baruch, Baruch and Goldberg 2019, A Little Is Enough.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from course_lib.errors import four_parts
from course_lib.less.run import LabRun, Watch
from course_lib.less.workers import Problem

_Rule = Callable[[Tensor, int], Tensor]
_Attack = Callable[[Tensor, int, torch.Generator], Tensor]
_MOMENTUM = 0.9


def aggregate(rule: str, gradients: Tensor, liars: int) -> Tensor:
    """What the rule takes for the workers' gradient if so many may lie. Shapes: (..., workers, size) -> (..., size).

    Raises: ValueError for an unknown rule, or fewer honest workers than it needs.
    """
    workers = gradients.shape[-2]
    if rule not in RULES:
        way_out = f"choose one of {', '.join(RULES)}"
        raise ValueError(four_parts("aggregate", f"rule={rule!r}", "not a known rule", way_out))
    if not 0 <= 2 * liars < workers - 2:
        values, needs = f"{workers} workers, liars={liars}", "honest workers outnumber liars by three"
        way_out = f"give liars >= 0 and at least {2 * max(0, liars) + 3} workers"
        raise ValueError(four_parts("aggregate", values, needs, way_out))
    return RULES[rule](gradients, liars)


def _median(gradients: Tensor, liars: int) -> Tensor:
    # of a copy: the median along a dim that was expanded reads foreign memory in torch 2.13
    return gradients.contiguous().median(-2).values


def _trimmed_mean(gradients: Tensor, liars: int) -> Tensor:
    """Of each number without the smallest and the largest few."""
    workers = gradients.shape[-2]
    return gradients.sort(-2).values[..., liars : workers - liars, :].mean(-2)


def _krum(gradients: Tensor, liars: int) -> Tensor:
    """The one gradient whose nearest workers - liars - 2 are nearest."""
    workers = gradients.shape[-2]
    apart = torch.cdist(gradients, gradients) ** 2
    nearest = apart.sort(-1).values[..., 1 : workers - liars - 1]  # the first is its own
    chosen = nearest.sum(-1).argmin(-1)
    return gradients.take_along_dim(chosen[..., None, None], -2).squeeze(-2)


RULES: dict[str, _Rule] = {
    "mean": lambda gradients, liars: gradients.mean(-2),
    "median": _median,
    "trimmed mean": _trimmed_mean,
    "krum": _krum,
}


def _flipped(honest: Tensor, liars: int, draws: torch.Generator) -> Tensor:
    return -3 * honest.mean(1, keepdim=True).expand(-1, liars, -1)


def _noise(honest: Tensor, liars: int, draws: torch.Generator) -> Tensor:
    shape = (len(honest), liars, honest.shape[-1])
    return 10 * honest.abs().mean() * torch.randn(shape, generator=draws)


def _little(honest: Tensor, liars: int, draws: torch.Generator) -> Tensor:
    """One and a half standard deviations from the mean, all alike: no more apart than an honest worker now and then."""
    lie = honest.mean(1, keepdim=True) - 1.5 * honest.std(1, keepdim=True)
    return lie.expand(-1, liars, -1)


ATTACKS: dict[str, _Attack] = {"sign flip": _flipped, "noise": _noise, "a little is enough": _little}


def attacked(
    problem: Problem, rule: str, attack: str = "", *, liars: int = 2, steps: int = 300, rate: float = 1.0
) -> LabRun:
    """Descent along what the rule takes for the gradient, while the first `liars` workers send an attack; "" is none.

    The rule expects as many liars, whether they lie or not.
    Raises: ValueError for an unknown attack, or as `aggregate`.
    """
    if attack and attack not in ATTACKS:
        way_out = f"choose one of {', '.join(ATTACKS)}, or none"
        raise ValueError(four_parts("attacked", f"attack={attack!r}", "not a known attack", way_out))
    model, watch, draws = problem.start, Watch(problem, steps), torch.Generator().manual_seed(1)
    average = torch.zeros_like(model)
    for step in range(steps):
        watch.look(step, model)
        gradients = problem.gradients(model)
        if attack:
            honest = gradients[:, liars:]
            gradients = torch.cat([ATTACKS[attack](honest, liars, draws), honest], 1)
        average = _MOMENTUM * average + (1 - _MOMENTUM) * aggregate(rule, gradients, liars)
        model = model - rate * (1 - step / steps) * average
    nbytes = (problem.workers - 1) * model.shape[-1] * model.element_size()
    return watch.ended(f"{rule}, {attack or 'no attack'}", steps, model, nbytes)
