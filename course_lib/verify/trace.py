"""What a climb leaves behind: the tensors of each rung, and what helps to find a cause."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.comm.ledger import Event


@dataclass(frozen=True, kw_only=True)
class SgdTrace:
    """What plain SGD left behind; gradients and their norm are those of the first step.

    What was left after the first step and what gradients the second one had only helps to find a cause.
    """

    parameter_names: tuple[str, ...]
    frozen: tuple[str, ...]
    tied: tuple[str, ...]  # what the model uses in several places
    places: dict[str, str]  # where each tensor lies, in words
    n_shares: int  # into how many the ranks cut a batch
    n_microbatches: int | None
    narrow: torch.dtype | None  # a lower precision in which the model computes inside, on one device
    has_buffers: bool  # whether the trainer shows them
    start: dict[str, Tensor]  # parameters and buffers
    second_start: dict[str, Tensor]  # where gradients are read from a step: the parameters of a second trainer
    output: Tensor | None
    gradients: dict[str, Tensor]
    halved: dict[str, Tensor]  # where gradients are read from a step: the same, read from one of half the learning rate
    norm: float  # NaN if the trainer does not give it
    after_first: dict[str, Tensor]
    second_gradients: dict[str, Tensor]
    end: dict[str, Tensor]
    n_steps: int
    losses: tuple[float, ...]  # empty if the trainer does not give them
    changed_batch: bool  # the first step has left other numbers in its batch
    peak_state_bytes: int
    step_s: float  # median
    events: tuple[Event, ...]  # of wrapping and the steps

    @property
    def is_read(self) -> bool:
        """Whether gradients were read from what a step did to the weights."""
        return bool(self.halved)


@dataclass(frozen=True, kw_only=True)
class AdamWTrace:
    """What AdamW left behind after k steps and after k more; on ranks these are taken by a trainer that loaded."""

    start: dict[str, Tensor]  # parameters alone
    half: dict[str, Tensor]
    loaded: dict[str, Tensor]  # what the k more began with
    end: dict[str, Tensor]
    losses: tuple[float, ...]
    saves: bool = True  # whether there is a checkpoint to look at


Trace = tuple[SgdTrace, AdamWTrace | None]
