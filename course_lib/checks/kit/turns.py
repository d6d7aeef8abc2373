"""Whether ranks talk in each step of a training, or for several steps at once, which no training could do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch

from course_lib.comm import ledger

_GRADIENTS, _WEIGHTS = "reduce_scatter", "all_gather"


class Turns:
    """Counts on a rank what had been called whenever its optimizers took a step; `optimizer` is watched from now on."""

    def __init__(self) -> None:
        self._before: list[Counter[str]] = []

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Look when it begins a step."""
        optimizer.register_step_pre_hook(lambda *_: self._before.append(_calls()))

    def notes(self) -> Mapping[str, int]:
        """How many calls there were, and by how many steps gradients were early and weights late, at the most."""
        total, steps = _calls(), [*enumerate(self._before)]
        return {
            "gradients": total[_GRADIENTS],
            "weights": total[_WEIGHTS],
            "early": max((before[_GRADIENTS] - number - 1 for number, before in steps), default=0),
            "late": max((number - before[_WEIGHTS] for number, before in steps), default=0),
        }


def _calls() -> Counter[str]:
    return Counter(name for name, _ in {(event.operation, event.call) for event in ledger.current()})


def not_in_each_step(notes: Mapping[str, int], steps: int) -> str:
    """What is said of calls for several steps at once; calls too many are for who counts bytes."""
    scatters, gathers = notes["gradients"], notes["weights"]
    if 0 < scatters < steps or (scatters == steps and notes["early"] > 0):
        return (
            "but the gradients of several steps were reduced before the first of these steps was taken. In a training "
            "they come one step after the other, each from the weights of the step before: reduce in each step"
        )
    if 0 < gathers < steps or (gathers == steps and notes["late"] > 0):
        return (
            "but a step was taken before the new weights of the step before had been gathered. In a training its "
            "forward needs all of them: gather in each step"
        )
    return ""
