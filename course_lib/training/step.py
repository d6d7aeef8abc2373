"""One training step in parts: the loss, micro-batches, gradients, their norm, the update."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.parallel.table.local import own_part
from course_lib.training.batches import IGNORED, Batch


def summed_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy in nats, summed over the batch's targets, so that parts of a batch add up to the whole.

    Shapes: the model gives (..., V) for targets (...); they are (B, S), or (B) where each row has one target.
    """
    inputs, targets = batch
    return loss_of(model(inputs), targets)


def loss_of(output: Tensor, targets: Tensor) -> Tensor:
    """The same of what the model gave."""
    rows = output.flatten(0, -2)  # (..., V) -> (targets, V)
    return F.cross_entropy(rows, targets.flatten(), ignore_index=IGNORED, reduction="sum")


def count_targets(batch: Batch) -> int:
    """How many targets of the batch count."""
    _, targets = batch
    return int((targets != IGNORED).sum())


def micro_batches(batch: Batch, parts: int) -> list[Batch]:
    """Cut a batch's rows as `torch.tensor_split` does; a batch of fewer rows than `parts` gives one for each row."""
    inputs, targets = (tensor.tensor_split(parts) for tensor in batch)
    pairs = zip(inputs, targets, strict=True)
    return [pair for pair in pairs if len(pair[0])]


def next_token_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy of the targets that count, in nats."""
    return summed_loss(model, batch) / count_targets(batch)


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


def state_bytes(parameters: Iterable[nn.Parameter]) -> int:
    """Bytes of the weights and gradients that exist now."""
    tensors = []
    for parameter in parameters:
        tensors.append(parameter.data)
        if parameter.grad is not None:
            tensors.append(parameter.grad)
    return storage_bytes(tensors)


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the memory behind the tensors; what two of them share counts once, a part counts as its whole."""
    storages = [own_part(tensor).untyped_storage() for tensor in tensors]
    by_place = {storage.data_ptr(): storage.nbytes() for storage in storages}
    return sum(by_place.values())
