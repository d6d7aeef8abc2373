"""PyTorch's own DistributedDataParallel."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib.config import TrainConfig
from course_lib.verify.adapters.loop import Loop


class DDP(Loop):
    """A loop over a model that DDP wraps, with its `options`; each rank takes its share of the batch."""

    def __init__(self, model: nn.Module, config: TrainConfig, **options: Any) -> None:
        super().__init__(model, config)
        self.rank, self.n_shares = dist.get_rank(), dist.get_world_size()
        self.wrapped = DistributedDataParallel(model, **options)
