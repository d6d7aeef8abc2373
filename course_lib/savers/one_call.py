"""One call of a layer that will be made a second time: its inputs, and all else that its results depend on.

Random numbers are the trap: a second forward that draws fresh ones drops other numbers than the loss has seen, and the
gradients belong to no forward pass at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

from course_lib.savers.kept_results import KeptResults


class LayerCall:
    """`others` are what the layer takes beside its input; of the results of `operators` backward computes none."""

    def __init__(
        self, layer: nn.Module, others: Sequence[Tensor | None], named: dict[str, Any], operators: Set[Any]
    ) -> None:
        self.layer, self.named = layer, named
        self.others = Kept(others)
        self.results = KeptResults(operators)
        self.random: list[Tensor] = []  # states, if numbers are drawn
        self.modes = _get_current_function_mode_stack()  # as the one that defers gradients in a pipeline

    @contextmanager
    def first_time(self, device: torch.device) -> Iterator[None]:
        """Note what the second call needs beside the inputs."""
        self.generators = _generators(device)
        self.autocast = device.type, torch.get_autocast_dtype(device.type), torch.is_autocast_enabled(device.type)
        before = _states(self.generators)
        with self.results if self.results.operators else nullcontext():
            yield
        if any(not torch.equal(*pair) for pair in zip(before, _states(self.generators), strict=True)):
            self.random = before
        self.results.keep()

    def second_time(self, x: Tensor) -> Tensor:
        """The layer's result, once more."""
        kind, dtype, enabled = self.autocast
        with ExitStack() as stack:
            for mode in self.modes:
                stack.enter_context(mode)
            stack.enter_context(torch.autocast(kind, dtype, enabled))
            stack.enter_context(self._same_numbers())
            if self.results.operators:
                stack.enter_context(self.results)
            # With the layer's hooks, which gather weights that were freed.
            result: Tensor = self.layer(x, *anew(self.others.saved_tensors), **self.named)
            return result

    @contextmanager
    def _same_numbers(self) -> Iterator[None]:
        """Draw what was drawn the first time, then go on as if nothing had been drawn."""
        now = _states(self.generators) if self.random else []
        for generator, state in zip(self.generators, self.random, strict=False):
            generator.set_state(state)
        yield
        for generator, state in zip(self.generators, now, strict=False):
            generator.set_state(state)


class _Keeper(torch.autograd.Function):
    """A node of autograd's graph that no gradient ever comes to."""

    @staticmethod
    def forward(ctx: Any, _: Tensor, *tensors: Tensor | None) -> Tensor:
        ctx.save_for_backward(*tensors)
        return torch.empty(0)


class Kept:
    """Tensors, kept as autograd keeps those that backward reads: where it may spread them out, or put them elsewhere.

    The node lives as long as its result does, which is why that is held. (PyTorch before 2.13 frees what it has saved.)
    """

    def __init__(self, tensors: Sequence[Tensor | None]) -> None:
        self.result = _Keeper.apply(torch.empty(0, requires_grad=True), *tensors)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """In their order; None stays None."""
        found: tuple[Any, ...] = self.result.grad_fn.saved_tensors
        return found


def anew(tensors: Sequence[Any]) -> list[Any]:
    """The same numbers, from which a second graph begins."""
    return [x if x is None else x.detach().requires_grad_(x.requires_grad) for x in tensors]


def _generators(device: torch.device) -> list[torch.Generator]:
    """Of random numbers: the CPU's, and on a GPU that one's own."""
    return [torch.default_generator, *([torch.cuda.default_generators[device.index]] if device.type == "cuda" else [])]


def _states(generators: Sequence[torch.Generator]) -> list[Tensor]:
    return [generator.get_state() for generator in generators]
