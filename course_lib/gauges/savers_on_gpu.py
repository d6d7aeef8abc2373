"""The bill of one GPU, recipe by recipe, as a GPU pays it: held against `costs.sweep.recipes`.

Two micro-batches make one step, so that at the second one's loss everything is there at once: weights, the first one's
gradients, the optimizer's states, and what backward waits for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.config import ModelConfig
from course_lib.costs.sweep.recipes import Recipe, recipe_memory
from course_lib.gauges.on_gpu import in_new_process, without_gaps
from course_lib.models.decoder import Decoder
from course_lib.savers.checkpointing import checkpoint_layers
from course_lib.savers.chunked_loss import ChunkedLoss
from course_lib.savers.lora import add_lora
from course_lib.savers.quantised_linear import quantise
from course_lib.savers.rounding import Bf16Weights

STEPS = 3  # that are timed, after one in which the optimizer's states come


@dataclass(frozen=True, kw_only=True)
class Bill:
    """Bytes that torch had allocated, and seconds for forward and backward of one micro-batch, the median."""

    loss: int  # when the second micro-batch's loss is there
    peak: int
    seconds: float


def bytes_at_loss(config: ModelConfig, recipe: Recipe, *, sequence: int) -> int:
    """The formula's bytes when forward has ended: backward has not begun, so no layer is there a second time."""
    found = recipe_memory(config, recipe, sequence=sequence).total
    if recipe.recompute:
        found -= (
            recipe_memory(config, replace(recipe, recompute=False), sequence=sequence).activations // config.n_layers
        )
    return found


def pay(config: ModelConfig, recipe: Recipe, *, sequence: int) -> Bill | None:
    """Train so for some steps in a new process on the first GPU; None if its memory does not suffice."""
    return in_new_process(_pay, config, recipe, sequence)


def _pay(config: ModelConfig, recipe: Recipe, sequence: int) -> Bill | None:
    with without_gaps():
        try:
            return _measured(_Training(config, recipe, sequence))
        except torch.cuda.OutOfMemoryError:
            return None


def _measured(training: _Training) -> Bill:
    training.forward().backward()
    training.update()
    at_loss, seconds = 0, list[float]()
    for _ in range(STEPS):
        torch.cuda.reset_peak_memory_stats()
        training.forward().backward()
        with _timed(seconds):
            loss = training.forward()
            at_loss = torch.cuda.memory_allocated()
            loss.backward()
        peak = torch.cuda.max_memory_allocated()  # the optimizer's own copies of gradients are no part of the bill
        training.update()
    return Bill(loss=at_loss, peak=peak, seconds=median(seconds))


@contextmanager
def _timed(into: list[float]) -> Iterator[None]:
    torch.cuda.synchronize()
    began = time.perf_counter()
    yield
    torch.cuda.synchronize()
    into.append(time.perf_counter() - began)


class _Training:
    """A model in bf16 under a recipe, AdamW, and a micro-batch of one sequence."""

    def __init__(self, config: ModelConfig, recipe: Recipe, sequence: int) -> None:
        with torch.device("cuda"):
            self.model: nn.Module = Decoder(config).to(torch.bfloat16)
            self.tokens = torch.arange(sequence)[None] % config.vocab_size
        if recipe.nf4:
            quantise(self.model)
        if recipe.adapters is not None and recipe.adapters.rank is not None:
            add_lora(self.model, recipe.adapters.rank)
        if recipe.recompute:
            checkpoint_layers(self.model.layers)
        self.short = recipe.adapters is not None  # adapters are fp32, and compute in bf16 under autocast
        self.loss: Callable[[Tensor, Tensor], Tensor] = _loss
        if recipe.pieces > 1:
            self.loss = ChunkedLoss(self.model.head, recipe.pieces, _loss)
        trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.rounded = Bf16Weights(trained, "master" if recipe.adapters is None else "nearest")
        self.optimizer = torch.optim.AdamW(self.rounded.trained, fused=True)

    def forward(self) -> Tensor:
        """The mean over the tokens."""
        with torch.autocast(self.tokens.device.type, torch.bfloat16, enabled=self.short):
            found = self.model(self.tokens)
            return self.loss(found, self.tokens) / self.tokens.numel()

    def update(self) -> None:
        """By the gradients of all micro-batches so far."""
        self.rounded.before()
        self.optimizer.step()
        self.rounded.after()
        self.model.zero_grad()


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), reduction="sum")
