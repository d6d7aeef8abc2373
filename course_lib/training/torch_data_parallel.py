"""The same training with PyTorch's own DistributedDataParallel, to use and to compare with."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import DebugLevel, get_debug_level, set_debug_level
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from course_lib.training.data_parallel import DataParallelTrainer


class TorchDataParallelTrainer(DataParallelTrainer):
    """`options` are those of PyTorch's wrapper."""

    model: DistributedDataParallel  # type: ignore[assignment]

    def wrap(self, model: nn.Module) -> DistributedDataParallel:  # type: ignore[override]
        """Let PyTorch average the gradients, in a group of its own."""
        return DistributedDataParallel(model, process_group=plain_twin(self.group), **self.options)


def plain_twin(group: ProcessGroup) -> ProcessGroup:
    """A new group of the same ranks that PyTorch does not watch: on a watched one its wrapper crashes (torch 2.13)."""
    level = get_debug_level()
    set_debug_level(DebugLevel.OFF)
    try:
        twin: ProcessGroup = dist.new_group(dist.get_process_group_ranks(group), use_local_synchronization=True)
    finally:
        set_debug_level(level)
    return twin
