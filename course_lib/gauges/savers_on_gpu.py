"""The bill of one GPU, saver by saver, as a GPU pays it; `tools.gpu_savers` holds it against `costs.sweep.recipes`.

Two micro-batches make one step, so that at the second one's loss everything is there at once: weights, the first one's
gradients, the optimizer's states, and what backward waits for.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib import presets
from course_lib.config import ModelConfig
from course_lib.models.decoder import Decoder
from course_lib.savers.checkpointing import checkpoint_layers
from course_lib.savers.chunked_loss import ChunkedLoss
from course_lib.savers.lora import add_lora
from course_lib.savers.quantised_linear import quantise
from course_lib.savers.rounding import Bf16Weights

STEPS = 2  # that are timed, after one in which the optimizer's states come


@dataclass(frozen=True, kw_only=True)
class Savers:
    """Which bytes are refused; as it stands here, none."""

    rank: int | None = None  # of LoRA's matrices; None: all weights are trained
    codes: bool = False  # whether the frozen maps lie in NF4
    recompute: bool = False  # every layer, from its input
    pieces: int = 1  # of the loss


@dataclass(frozen=True, kw_only=True)
class Bill:
    """Bytes of tensors, and seconds for forward and backward of one micro-batch, the median."""

    loss: int  # when the second micro-batch's loss is there
    peak: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Paid:
    """A bill that `make gpu` wrote down, and what the formula says of that instant."""

    model: str
    sequence: int
    recipe: str
    formula: int
    found: Bill

    @property
    def off(self) -> float:
        """How much more was measured, as a share."""
        return self.found.loss / self.formula - 1


def recorded(name: str | None = None) -> tuple[Paid, ...]:
    """The bills of a result file, by default the newest's, of what fitted."""
    name = name or presets.names("gpu_savers")[-1]
    return tuple(_paid(**row) for row in presets.read("gpu_savers", name)["savers"] if row["loss"])


def _paid(model: str, sequence: int, recipe: str, formula: int, **found: Any) -> Paid:
    return Paid(model=model, sequence=sequence, recipe=recipe, formula=formula, found=Bill(**found))


def pay(config: ModelConfig, savers: Savers, *, sequence: int) -> Bill | None:
    """Train so for some steps on the first GPU; None if its memory does not suffice."""
    before = _without_tensors()
    try:
        found = _measured(_Training(config, savers, sequence))
    except torch.cuda.OutOfMemoryError:
        return None
    return replace(found, loss=found.loss - before, peak=found.peak - before)


def _without_tensors() -> int:
    """Bytes that PyTorch counts before the first tensor: rooms to work in, which cuBLAS takes at its first product."""
    x = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)
    F.linear(x, x, x[0])  # a product with a bias has a room of its own
    del x
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()


def _measured(training: _Training) -> Bill:
    training.forward().backward()
    training.update()
    at_loss, peak, seconds = 0, 0, list[float]()
    for _ in range(STEPS):
        torch.cuda.reset_peak_memory_stats()
        training.forward().backward()
        torch.cuda.synchronize()
        began = time.perf_counter()
        loss = training.forward()
        at_loss = torch.cuda.memory_allocated()
        loss.backward()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        peak = torch.cuda.max_memory_allocated()  # the optimizer's own copies of gradients are no part of the bill
        training.update()
    return Bill(loss=at_loss, peak=peak, seconds=median(seconds))


class _Training:
    """A model in bf16, AdamW, and a micro-batch of one sequence."""

    def __init__(self, config: ModelConfig, savers: Savers, sequence: int) -> None:
        with torch.device("cuda"):
            self.model: nn.Module = Decoder(config).to(torch.bfloat16)
            self.tokens = torch.arange(sequence)[None] % config.vocab_size
        if savers.codes:
            quantise(self.model)
        if savers.rank is not None:
            add_lora(self.model, savers.rank)
        if savers.recompute:
            checkpoint_layers(self.model.layers)
        self.short = savers.rank is not None  # adapters are fp32, and compute in bf16 under autocast
        self.loss: Callable[[Tensor, Tensor], Tensor] = _loss
        if savers.pieces > 1:
            self.loss = ChunkedLoss(self.model.head, savers.pieces, _loss)
        trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.rounded = Bf16Weights(trained, "master" if savers.rank is None else "nearest")
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
