"""Bugs of ranks that share sequences: one that has some of the positions computes as if it had all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn

from course_lib.models.decoder import Attention, rotary_angles
from course_lib.parallel.sequence import ring_attention
from course_lib.training.context_technique import AXIS
from course_lib.training.setup import Setup
from course_lib.verify.museum.bug import ISSUES, Bug, Issue
from course_lib.verify.museum.seams import after_backward

_backward = ring_attention.Ring.backward


class _Staying(ring_attention.Travelling):
    """It is sent on and never received: what was here at first is used in every step."""

    def arrive(self) -> None:
        for work in self._under_way:
            work.wait()
        self._coming, self._under_way = None, []


def _backward_with_own_keys(ctx: Any, gradient: Tensor) -> Any:
    """Backward takes the keys that forward has kept, in every step of the ring; their gradients do travel."""
    # First of keys and values, then of their gradients.
    ways: list[Callable[..., Any]] = [_Staying, ring_attention.Travelling]

    def next_way(*arguments: Any) -> Any:
        return ways.pop(0)(*arguments)

    with patch.object(ring_attention, "Travelling", next_way):
        return _backward(ctx, gradient)


def _angles_from_zero(setup: Setup) -> None:
    """Each rank turns its queries and keys by the angles of positions 0, 1, 2, as if a sequence began with its own."""

    def from_zero(attention: nn.Module, args: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None]:
        x, angles = args
        assert isinstance(attention, Attention)
        return x, None if angles is None else rotary_angles(x.shape[1], attention.head_size, x.device)

    for module in setup.model.modules():
        if isinstance(module, Attention):
            module.register_forward_pre_hook(from_zero)


def _averaged_over_sequence(setup: Setup) -> None:
    """Gradients are averaged over the ranks that share a sequence, each of which has a term of them."""

    def work() -> None:
        for gradient in setup.local.gradients().values():
            gradient.div_(setup.local.size(AXIS))

    after_backward(setup, work)


_EXHIBITS = (
    Bug(
        name="own_keys_in_backward",
        title="The ring's backward uses the rank's own keys and values in every step",
        patch=partial(patch.object, ring_attention.Ring, "backward", staticmethod(_backward_with_own_keys)),
        where=Issue(
            title="Ring attention backward uses stale iteration-0 KV from ctx.saved_tensors",
            link=ISSUES.format("huggingface/diffusers", 14265),
        ),
        first_rung="gradients",
        looks="outputs are right and only attention learns from wrong gradients; the loss falls",
    ),
    Bug(
        name="angles_from_zero",
        title="Each rank counts the positions of its part of a sequence from 0",
        technique=_angles_from_zero,
        where=Issue(
            title="Issue regarding correctness of RoPE in context parallel",
            link=ISSUES.format("NVIDIA/Megatron-LM", 560),
        ),
        first_rung="output",
        looks="a model can learn with such angles, so the loss falls; another program reads its weights otherwise",
    ),
    Bug(
        name="averaged_over_sequence",
        title="Gradients are averaged over the ranks that share a sequence, and they are terms of a sum",
        technique=_averaged_over_sequence,
        where=Issue(
            title="Incorrect loss scaling in context parallel code logic",
            link=ISSUES.format("NVIDIA/Megatron-LM", 673),
        ),
        first_rung="gradients",
        looks="every gradient is cp times too small, which AdamW divides away; clipping bites less often",
    ),
)
CONTEXT_BUGS = {bug.name: bug for bug in _EXHIBITS}
