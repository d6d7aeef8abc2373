"""Decoys, which look like bugs and are none: the ladder finds them equal, and whoever mends them makes a bug."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from course_lib.models.moe import mixtures_of
from course_lib.training.setup import Setup, Technique
from course_lib.verify.museum.bug import ISSUES, Issue


@dataclass(frozen=True, kw_only=True)
class Decoy:
    """A technique that a trainer applies last and that trains nothing else, however it looks."""

    name: str
    title: str
    technique: Technique
    where: Issue
    looks: str  # what makes one suspect it


def balance_shown(setup: Setup) -> None:
    """Adds up the layers' balance losses, a token's mean, to show the sum beside the loss: the model's `shown`."""
    model: Any = setup.model
    model.shown = 0.0

    def add(mixture: Any, given: tuple[Tensor], _: Tensor) -> None:
        model.shown += mixture.balance.item() / given[0][..., 0].numel()

    for mixture in mixtures_of(setup.model):
        mixture.register_forward_hook(add)


_EXHIBITS = (
    Decoy(
        name="balance_shown",
        title="The balance loss doubles as soon as layers are recomputed",
        technique=balance_shown,
        where=Issue(
            title="MoE load balancing loss is accumulated twice when using activation checkpointing",
            link=ISSUES.format("NVIDIA/Megatron-LM", 1330),
        ),
        looks="what is shown is twice as large with recomputation, as if the loss counted it twice",
    ),
)
DECOYS = {decoy.name: decoy for decoy in _EXHIBITS}
