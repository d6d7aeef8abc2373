"""07.4: would it say the same words? Tokens that two models agree on, and how far off their logits are."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.checks.kit.formula import Call, Formula, formula_exercise
from course_lib.checks.kit.spec import Level

_NOISE = 0.5  # of logits of about 1


class Logits(NamedTuple):
    """What two models say of the same tokens, and how many of the likeliest count."""

    found: Tensor
    reference: Tensor
    k: int

    @property
    def theirs(self) -> Tensor:
        """The reference's likeliest tokens, the likeliest first; shape (..., k)."""
        return self.reference.topk(self.k).indices

    @property
    def ours(self) -> Tensor:
        """The other model's."""
        return self.found.topk(self.k).indices

    @property
    def shared(self) -> Tensor:
        """Which of the reference's are among the other's at the same position; shape (..., k)."""
        return (self.theirs.unsqueeze(-1) == self.ours.unsqueeze(-2)).any(-1)

    @property
    def off(self) -> Tensor:
        """By how much each logit is off, in float64."""
        return self.found.double() - self.reference.double()


def _asked(k: int, *shape: int, dtype: torch.dtype = torch.float64, noise: float = _NOISE) -> Callable[[int], Logits]:
    """Logits that differ by noise, a little to one side; no two of the reference's are alike, in no format."""

    def draw(seed: int) -> Logits:
        generator = torch.Generator().manual_seed(1009 * seed + k + len(shape))
        reference = torch.rand(shape, generator=generator).argsort(-1).double() / 4
        found = reference + noise * torch.randn(shape, generator=generator, dtype=torch.float64) - noise / 8
        return Logits(found.to(dtype), reference.to(dtype), k)

    return draw


def _mean(x: Tensor) -> float:
    return x.double().mean().item()


def _all_tokens(asked: Logits) -> float:
    ours, theirs = ({*x.flatten().tolist()} for x in (asked.ours, asked.theirs))
    return len(ours & theirs) / len(theirs)


def _of_union(asked: Logits) -> float:
    both = asked.shared.sum(-1)
    return _mean(both / (2 * asked.k - both))


_AGREEMENT = Formula(
    name="agreement",
    answer=lambda asked: _mean(asked.shared),
    show=lambda asked: f"logits of {tuple(asked.found.shape)}, k = {asked.k}",
    slips={
        "tokens had to be at the same place among the k. Only whether they are there matters here, not their order": (
            lambda asked: _mean(asked.theirs == asked.ours)
        ),
        "a position counted only if all k tokens agree. Here each of the k counts": (
            lambda asked: _mean(asked.shared.all(-1))
        ),
        "a position counted as soon as one of the k tokens agrees. Here each of the k counts": (
            lambda asked: _mean(asked.shared.any(-1))
        ),
        "tokens of all positions were put together. A token has to be among the k of the same position": _all_tokens,
        "divided by the tokens that either of the two has. It is a share of the reference's k": _of_union,
        "that is how many of the k agree, on average. The share of them is asked": (
            lambda asked: _mean(asked.shared) * asked.k
        ),
        "those are the k smallest logits": (
            lambda asked: _mean(Logits(-asked.found, -asked.reference, asked.k).shared)
        ),
        "only the likeliest token was compared": (lambda asked: _mean(Logits(asked.found, asked.reference, 1).shared)),
        "averaged in float32? Turn what agrees into float64 before its mean is taken": (
            lambda asked: asked.shared.float().mean().item()
        ),
        "divided by all tokens of the vocabulary. It is a share of k": (
            lambda asked: _mean(asked.shared) * asked.k / asked.found.shape[-1]
        ),
    },
    tolerance=1e-9,
)

_ERROR = Formula(
    name="error",
    answer=lambda asked: _mean(asked.off.abs().gather(-1, asked.theirs)),
    show=_AGREEMENT.show,
    slips={
        "that is over all logits. Only those of the reference's k likeliest tokens are asked": (
            lambda asked: _mean(asked.off.abs())
        ),
        "the differences were added up with their signs, so they cancel": (
            lambda asked: _mean(asked.off.gather(-1, asked.theirs))
        ),
        "with their signs, so they cancel, and the absolute value came too late": (
            lambda asked: abs(_mean(asked.off.gather(-1, asked.theirs)))
        ),
        "squares were averaged": lambda asked: _mean(asked.off.square().gather(-1, asked.theirs)),
        "that is the root of the mean square": (
            lambda asked: _mean(asked.off.square().gather(-1, asked.theirs)) ** 0.5
        ),
        "those are the logits of the *other* model's k likeliest tokens. Where the two disagree, the reference says "
        "which tokens count": lambda asked: _mean(asked.off.abs().gather(-1, asked.ours)),
        "the k largest logits of one were subtracted from those of the other, each sorted by itself. Subtract logits "
        "of the same token": lambda asked: _mean(
            (asked.found.double().topk(asked.k).values - asked.reference.double().topk(asked.k).values).abs()
        ),
        "that is the largest one; the mean is asked": (
            lambda asked: asked.off.abs().gather(-1, asked.theirs).max().item()
        ),
        "the logits were subtracted in bfloat16, which rounds the difference once more. Turn both into float64 first": (
            lambda asked: (
                _mean((asked.found - asked.reference).abs().gather(-1, asked.theirs))
                if asked.found.dtype == torch.bfloat16
                else _mean(asked.off.abs().gather(-1, asked.theirs))
            )
        ),
    },
    tolerance=1e-6,
)

_CASES = {
    "two sequences": (3, 2, 5, 12),
    "one sequence": (5, 7, 40),
}

_SAME_WORDS = formula_exercise(
    key="07.4",
    title="would it say the same words?",
    formulas=(_AGREEMENT, _ERROR),
    together="two numbers: the agreement and the error",
    levels={
        "agreement": Level(
            points=2,
            cases=tuple(Call(text=text, arguments=_asked(*sizes)) for text, sizes in _CASES.items()),
            praise="of one model's likeliest tokens, the share that the other one names as well",
        ),
        "error": Level(
            points=2,
            cases=tuple(Call(text=text, arguments=_asked(*sizes), part=1) for text, sizes in _CASES.items()),
            praise="how far off the logits of the words are that would be said",
        ),
        "edges": Level(
            points=1,
            cases=(
                Call(text="the likeliest alone", arguments=_asked(1, 9, 12)),
                Call(text="the whole vocabulary", arguments=_asked(12, 4, 12)),
                Call(text="one position", arguments=_asked(4, 30), part=1),
                Call(text="bfloat16", arguments=_asked(4, 6, 30, dtype=torch.bfloat16, noise=6.0), part=1),
            ),
            praise="for every k, for one position, and for logits of 16 bits",
        ),
    },
    hints=(
        "reference.topk(k).indices are the reference's k likeliest tokens at each position, of shape (..., k).",
        "To compare each of them with each of the other model's, let the two stand at right angles: "
        "theirs.unsqueeze(-1) == ours.unsqueeze(-2) has shape (..., k, k). In each row at most one is true.",
        ".any(-1) says which of the reference's k are there, and their mean is the agreement.",
        "For the error subtract in float64, take absolute values, and pick: difference.gather(-1, theirs).",
    ),
)
