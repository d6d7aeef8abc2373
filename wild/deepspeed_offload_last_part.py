"""With its optimizer on the CPU, ZeRO stage 2 kept the gradients of the last of several backwards alone.

Who called `backward` several times before a step, and said by `set_gradient_accumulation_boundary` which was the last,
overwrote the sum with the last part; without the offload it was right.
"""

import torch
import torch.distributed as dist
from torch import nn

from course_lib.training.step import micro_batches
from course_lib.training.trainer import share
from wild import deepspeed_zero2_last_part as zero2

EXHIBIT = {
    "library": "deepspeed",
    "links": ["deepspeedai/DeepSpeed#7981"],
    "old": "deepspeed==0.18.3 hjson==3.1.0 py-cpuinfo==9.0.0 einops==0.8.2 msgpack==1.2.4",
    "mended": "deepspeed==0.19.8 hjson==3.1.0 py-cpuinfo==9.0.0 einops==0.8.2 msgpack==1.2.4",
    "dtype": "float32",  # in which it keeps its weights
    "ranks": 2,
    "rung": "gradients",
    "cause": "micro-batches missing",
}


class Offloaded(zero2.Stage2):
    """Several backwards and one step; gradients are read from a step of SGD."""

    options = {
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
        "zero_force_ds_cpu_optimizer": False,  # it would be compiled here
    }

    def step(self, batch):
        losses, m = torch.zeros(self.n_shares), self.n_microbatches
        for part, (inputs, targets) in enumerate(micro_batches(share(batch, self.rank, self.n_shares), m), 1):
            self.engine.set_gradient_accumulation_boundary(part == m)
            loss = nn.functional.cross_entropy(self.engine(inputs).mT, targets) / m
            self.engine.backward(loss)
            losses[self.rank] += loss.detach()
        self.engine.step()
        dist.all_reduce(losses)
        return losses.mean().item()


reference, parallel, batches = zero2.reference, Offloaded, zero2.batches
