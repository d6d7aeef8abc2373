"""PowerSGD's memory went to other parameters after a restart, in silence, if sizes happened to fit.

The state of the hook keeps what was not sent by the number of a bucket, in one row. A fresh DDP fills its buckets in
the order of the parameters, and from its second backward on in the order of gradients. The saved state counts its steps
on, so compression begins at once, and what was kept of one weight is added to another. Two backwards before the memory
is put back mend it. We found no thread that tells of it: two links ask for the state to be saved and say how, and the
third made a bucket's number its key.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.parallel import DistributedDataParallel

from course_lib.verify.adapters.loop import Loop

EXHIBIT = {
    "library": "torch",
    "links": ["pytorch/pytorch#75666", "pytorch/pytorch#102721", "pytorch/pytorch#48867"],
    "old": "torch==2.13.0",
    "mended": "torch==2.13.0",
    "open": True,
    "ranks": 1,
    "rung": "save and load",
    "cause": "save and load",
}
BEFORE = 2  # steps that PyTorch wants to be without compression, since buckets are filled anew then


class Squeezed(Loop):
    """A loop over DDP with the hook. What is loaded has to be there before the hook is registered, as documented."""

    def __init__(self, config):
        torch.manual_seed(0)
        super().__init__(nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16)), config)
        numbers = {"matrix_approximation_rank": 1, "min_compression_rate": 0.1}
        self.hook_state = powersgd.PowerSGDState(None, start_powerSGD_iter=BEFORE, **numbers)
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def step(self, batch):
        if self.wrapped is self.model:
            self.wrap()
        return super().step(batch)

    def wrap(self):
        self.wrapped = DistributedDataParallel(self.model)
        self.wrapped.register_comm_hook(self.hook_state, powersgd.powerSGD_hook)

    def save(self, folder):
        super().save(folder)
        torch.save(self.hook_state, f"{folder}/hook.pt")

    def load(self, folder):
        super().load(folder)
        self.hook_state = torch.load(f"{folder}/hook.pt", weights_only=False)


class Refilled(Squeezed):
    """By hand: buckets are filled anew first."""

    def load(self, folder):
        self.wrap()
        for _ in range(BEFORE):
            self.wrapped(torch.zeros(2, 16, dtype=self.trained[0].dtype)).sum().backward()
        Loop.load(self, folder)
        saved = torch.load(f"{folder}/hook.pt", weights_only=False)
        for name in saved.__slots__:
            setattr(self.hook_state, name, getattr(saved, name))


reference, parallel, workaround = Squeezed, Squeezed, Refilled


def batches(step):
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(step)), torch.arange(8)
