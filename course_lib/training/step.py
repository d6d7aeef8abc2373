"""One training step: forward, backward, update."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.training.batches import Batch

Hook = Callable[[nn.Module], None]


def next_token_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy of the next token, in nats."""
    inputs, targets = batch  # (B, S) each
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def compute_gradients(model: nn.Module, batch: Batch) -> float:
    """Fill `.grad` with this batch's gradients and return its loss."""
    model.zero_grad()
    loss = next_token_loss(model, batch)
    loss.backward()
    return loss.item()


def sgd_update(model: nn.Module, learning_rate: float) -> None:
    """w <- w - learning_rate * gradient. Plain SGD keeps no state, and shows every error of scale, which Adam hides."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=learning_rate)


def state_bytes(model: nn.Module) -> int:
    """Bytes of the weights and gradients that exist now; memory that two tensors share counts once."""
    tensors = [x for parameter in model.parameters() for x in (parameter.data, parameter.grad) if x is not None]
    storages = {storage.data_ptr(): storage.nbytes() for storage in (x.untyped_storage() for x in tensors)}
    return sum(storages.values())
