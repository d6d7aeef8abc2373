"""Which samples each rank reads in an epoch: shuffled by seed and epoch, then dealt out like cards."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from course_lib.errors import four_parts


class DistributedSampler:
    """The numbers of this rank's samples; forgetting `set_epoch` serves every epoch in the same order.

    What does not divide by the ranks is padded with the first samples again, or dropped. Index for index what
    `torch.utils.data.DistributedSampler` gives, so both may be used in turn.

    Raises: ValueError for a rank that does not exist, or if a rank would have no sample.
    """

    def __init__(self, n_samples: int, *, rank: int, world_size: int, seed: int = 0, drop_last: bool = False) -> None:
        if not 0 <= rank < world_size:
            _refuse(f"rank={rank}, world_size={world_size}", "ranks are 0 to world_size - 1", "give one of them")
        self.n_samples, self.rank, self.world_size, self.seed = n_samples, rank, world_size, seed
        self.epoch = 0
        self._length = n_samples // world_size if drop_last else -(-n_samples // world_size)
        if self._length == 0:
            values = f"n_samples={n_samples}, world_size={world_size}, drop_last={drop_last}"
            _refuse(values, "every rank needs a sample", "give more samples or fewer ranks, or drop_last=False")

    def set_epoch(self, epoch: int) -> None:
        """Choose the order; call it before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        order = shuffled(self.n_samples, self.seed, self.epoch)
        places = torch.arange(self.rank, self._length * self.world_size, self.world_size, device="cpu")
        return iter(order[places % self.n_samples].tolist())


@lru_cache(maxsize=4)
def shuffled(n_samples: int, seed: int, epoch: int) -> Tensor:
    """The numbers 0 to n_samples - 1 in an order that seed + epoch decides, as in PyTorch's sampler; read only.

    Shapes: -> (n_samples,).
    """
    return torch.randperm(n_samples, generator=torch.Generator().manual_seed(seed + epoch), device="cpu")


def _refuse(values: str, rule: str, way_out: str) -> None:
    raise ValueError(four_parts("DistributedSampler", values, rule, way_out))
