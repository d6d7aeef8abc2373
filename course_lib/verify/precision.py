"""How far a run in bf16 is from the same model in fp32: not equal, but near, and mostly of one mind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from course_lib.errors import four_parts


@dataclass(frozen=True, kw_only=True)
class PrecisionReport:
    """Two sets of logits for the same tokens."""

    mean_absolute_error: float
    largest_error: float
    agreement: dict[int, float]  # k -> share of positions at which the k likeliest tokens are the same set

    def __str__(self) -> str:
        shares = ", ".join(f"top-{k} {share:.1%}" for k, share in self.agreement.items())
        return f"logits: mean absolute error {self.mean_absolute_error:.2g}, at most {self.largest_error:.2g}; {shares}"


def compare_logits(found: Tensor, reference: Tensor, *, top_k: Sequence[int] = (1, 5)) -> PrecisionReport:
    """Compare logits of a low precision with those of a high one.

    Shapes: (..., V) each.
    Raises: ValueError for other shapes, or a k that the vocabulary does not have.
    """
    if found.shape != reference.shape:
        values, rule = (
            f"shapes {tuple(found.shape)} and {tuple(reference.shape)}",
            "both hold logits of the same tokens",
        )
        raise ValueError(four_parts("compare_logits", values, rule, "pass the same tokens to both models"))
    vocabulary = reference.shape[-1]
    wrong = [k for k in top_k if not 1 <= k <= vocabulary]
    if wrong or not top_k:
        values, rule = f"top_k={tuple(top_k)}", f"there are {vocabulary} tokens"
        raise ValueError(four_parts("compare_logits", values, rule, f"give k in 1..{vocabulary}"))
    error = (found.double() - reference.double()).abs()
    return PrecisionReport(
        mean_absolute_error=error.mean().item(),
        largest_error=error.max().item(),
        agreement={k: _agreement(found, reference, k) for k in top_k},
    )


def _agreement(found: Tensor, reference: Tensor, k: int) -> float:
    """The share of positions at which the k likeliest tokens are the same, in whatever order.

    Shapes: (..., V) each.
    """
    ours, theirs = (logits.topk(k).indices.sort().values for logits in (found, reference))  # (..., k)
    return (ours == theirs).all(-1).double().mean().item()
