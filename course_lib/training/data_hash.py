"""A short name for the sequences that a run was given, so that two runs can be compared."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


class DataHash:
    """A running hash of batches, sequence by sequence in their order.

    The ranks' shards of a batch, added in the order of the ranks, give the hash of the whole batch.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, inputs: Tensor, targets: Tensor) -> None:
        """Take in one batch.

        Shapes: (B, S) each.
        """
        self._hash.update(torch.cat([inputs, targets], dim=1).cpu().numpy().tobytes())

    @property
    def text(self) -> str:
        """What was added so far, in 16 hexadecimal digits."""
        return self._hash.hexdigest()[:16]
