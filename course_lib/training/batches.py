"""Batches that depend on the seed and the step alone, so that every rank can cut its own share of the same one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from course_lib.errors import four_parts
from course_lib.training.data_hash import DataHash
from course_lib.training.sampler import shuffled

Batch = tuple[Tensor, Tensor]  # inputs, targets
IGNORED = -100  # a target that cross-entropy leaves out


@dataclass(frozen=True, kw_only=True, eq=False)
class Batches:
    """Windows of a text, each once in an epoch; the target of each token is the next one.

    Windows follow each other in the text, and the batches of an epoch take them in an order of seed and epoch. What
    is left over at the end of an epoch is not served. The order is that of `DistributedSampler` with the same seed:
    at each step the samples of its ranks together are this batch.

    With `ragged` the sequences have different numbers of real tokens: 1 to S, by the seed. The targets after them
    are -100, which cross-entropy leaves out, so ranks with equally many sequences average over unequal numbers of
    tokens, and the mean of their means is not the mean over all tokens.
    """

    text: bytes | NDArray[np.integer]  # its bytes are the tokens; or the ids that a tokenizer made
    batch_size: int  # B, over all ranks
    sequence: int  # S
    seed: int = 0
    ragged: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.sequence < 1:
            values = f"batch_size={self.batch_size}, sequence={self.sequence}"
            raise ValueError(four_parts("Batches", values, "both are positive", "give at least 1 of each"))
        if self.n_windows < 1:
            values, rule = f"{len(self.text)} tokens, sequence={self.sequence}", "a window takes sequence + 1 tokens"
            raise ValueError(four_parts("Batches", values, rule, "give a longer text or a shorter sequence"))
        if self.steps_per_epoch < 1:
            values, rule = f"batch_size={self.batch_size}, {self.n_windows} windows", "an epoch has each window once"
            way_out = f"give batch_size <= {self.n_windows}, a longer text or a shorter sequence"
            raise ValueError(four_parts("Batches", values, rule, way_out))

    @property
    def n_windows(self) -> int:
        """How many windows the text has."""
        return (len(self.text) - 1) // self.sequence

    @property
    def steps_per_epoch(self) -> int:
        """How many whole batches an epoch has."""
        return self.n_windows // self.batch_size

    def batch(self, step: int) -> Batch:
        """The whole batch of one step.

        Shapes: (B, S) inputs, (B, S) targets, both int64.
        """
        epoch, place = divmod(step, self.steps_per_epoch)
        start = place * self.batch_size
        return self.windows(shuffled(self.n_windows, self.seed, epoch)[start : start + self.batch_size])

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

    def windows(self, numbers: Sequence[int] | Tensor) -> Batch:
        """The windows with these numbers, each 0 to n_windows - 1, as a sampler gives them; on torch's default device.

        Shapes: (n,) -> (n, S) inputs, (n, S) targets.
        """
        home = torch.get_default_device()
        with torch.device("cpu"):  # the text lies in main memory
            chosen = torch.as_tensor(numbers).cpu()
            places = chosen[:, None] * self.sequence + torch.arange(self.sequence + 1)
            text = np.frombuffer(self.text, np.uint8) if isinstance(self.text, bytes) else self.text
            tokens = torch.from_numpy(text[places.numpy()].astype(np.int64))  # (n, S + 1)
            inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
            if self.ragged:
                targets[torch.arange(self.sequence) >= self._lengths()[chosen, None]] = IGNORED
        return inputs.to(home), targets.to(home)

    def fingerprint(self, steps: int) -> str:
        """The hash of what the first `steps` steps serve: equal for equal text, tokens, sizes, seed and order."""
        served = DataHash()
        for step in range(steps):
            served.add(*self.batch(step))
        return served.text

    def _lengths(self) -> Tensor:
        """How many targets of each window count, whichever batch it is in."""
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randint(1, self.sequence + 1, (self.n_windows,), generator=generator)
