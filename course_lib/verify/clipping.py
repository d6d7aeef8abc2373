"""A limit of the gradient's norm for the ladder's AdamW: one that clips some steps, and not others."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.verify.alike import ADAMW, SGD, Plan, born_with, plan_batch
from course_lib.verify.climb import take_step
from course_lib.verify.look import copied, hides_gradients, norm_of, read_gradients
from course_lib.verify.trainable import Make

_SAME = 1e-3  # norms this near are one
_CLIPPED = 0.5  # of the norms is what clipping leaves where all steps have the same


def norms_without_clipping(make: Make, plan: Plan) -> list[float]:
    """The gradient's norm in each of AdamW's first k steps on one device; of SGD's, if only these show gradients."""
    found = []
    with born_with(0, plan.dtype):
        trainer = make(ADAMW)
        reads = hides_gradients(trainer) and not hasattr(trainer, "norm")
        if reads:
            trainer = make(SGD)
        for number in range(plan.steps):
            before = copied(trainer.parameters()) if reads else {}
            norm = take_step(trainer, plan_batch(plan, number), look=_nothing).norm
            if reads:
                norm = norm_of(read_gradients(before, trainer.parameters(), SGD.learning_rate).values())
            if norm is None:
                norm = norm_of(trainer.gradients().values())  # type: ignore[attr-defined]
            found.append(norm)
    return found


def norm_that_clips(norms: Sequence[float]) -> float | None:
    """A limit that clips some steps and not others; else one that clips all; None if there is no gradient.

    >>> norm_that_clips([4.0, 1.0, 2.0]), norm_that_clips([3.0, 3.0]), norm_that_clips([0.0])
    (2.0, 1.5, None)
    """
    low, high = min(norms), max(norms)
    if high - low <= _SAME * high:
        return _CLIPPED * high or None
    return (low * high) ** 0.5 or _CLIPPED * high


def _nothing() -> None:
    """What is looked at where nothing is to be seen."""
