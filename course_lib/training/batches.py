"""Batches that depend on the seed and the step alone, so that every rank can cut its own share of the same one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.errors import four_parts

Batch = tuple[Tensor, Tensor]  # inputs, targets


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Random windows of a text whose tokens are its bytes; the target of each token is the next one."""

    text: bytes
    batch_size: int  # B, over all ranks
    sequence: int  # S
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.sequence < 1:
            values = f"batch_size={self.batch_size}, sequence={self.sequence}"
            raise ValueError(four_parts("Batches", values, "both are positive", "give at least 1 of each"))
        if len(self.text) <= self.sequence:
            values, rule = f"{len(self.text)} bytes, sequence={self.sequence}", "a window takes sequence + 1 bytes"
            raise ValueError(four_parts("Batches", values, rule, "give a longer text or a shorter sequence"))

    def batch(self, step: int) -> Batch:
        """The whole batch of one step.

        Shapes: (B, S) inputs, (B, S) targets, both int64.
        """
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        starts = torch.randint(len(self.text) - self.sequence, (self.batch_size,), generator=generator).tolist()
        windows = [list(self.text[start : start + self.sequence + 1]) for start in starts]
        tokens = torch.tensor(windows)  # (B, S + 1)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def shard(self, step: int, rank: int, world_size: int) -> Batch:
        """One rank's sequences of that batch, as `torch.tensor_split` cuts it.

        Shapes: (B/p, S) inputs, (B/p, S) targets.
        Raises: ValueError if a rank would have none.
        """
        if self.batch_size < world_size:
            values = f"batch_size={self.batch_size}, world_size={world_size}"
            raise ValueError(
                four_parts("Batches", values, "every rank needs a sequence", f"give batch_size >= {world_size}")
            )
        inputs, targets = self.batch(step)
        return inputs.tensor_split(world_size)[rank], targets.tensor_split(world_size)[rank]
