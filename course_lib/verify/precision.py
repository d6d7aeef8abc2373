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
    agreement: dict[int, float]  # k -> share of the reference's k likeliest tokens that are among the other's k
    errors: dict[int, float]  # k -> mean absolute error of the logits of these tokens

    def __str__(self) -> str:
        shares = ", ".join(f"top-{k} {share:.1%}" for k, share in self.agreement.items())
        return f"logits: mean absolute error {self.mean_absolute_error:.2g}, at most {self.largest_error:.2g}; {shares}"


def compare_logits(found: Tensor, reference: Tensor, *, top_k: Sequence[int] = (1, 5)) -> PrecisionReport:
    """Compare logits of a low precision with those of a high one, or of ranks with those of one device.

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
    ours, theirs = (logits.topk(max(top_k)).indices for logits in (found, reference))  # (..., k), the likeliest first
    of_theirs = error.gather(-1, theirs)
    return PrecisionReport(
        mean_absolute_error=error.mean().item(),
        largest_error=error.max().item(),
        agreement={k: _shared(ours[..., :k], theirs[..., :k]) for k in top_k},
        errors={k: of_theirs[..., :k].mean().item() for k in top_k},
    )


def _shared(ours: Tensor, theirs: Tensor) -> float:
    """Of `theirs` the share that is among `ours` at the same position. Shapes: (..., k) each."""
    return (theirs.unsqueeze(-1) == ours.unsqueeze(-2)).any(-1).double().mean().item()
