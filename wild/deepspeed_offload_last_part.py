"""With its optimizer on the CPU, ZeRO stage 2 kept the gradients of the last of several backwards alone.

Who called `backward` several times before a step, and said by `set_gradient_accumulation_boundary` which was the last,
overwrote the sum with the last part; without the offload it was right.
"""

import os

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

from course_lib.training.step import micro_batches
from course_lib.training.trainer import make_optimizer, share
from course_lib.verify.adapters.loop import Loop

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
PARTS = 2


def words():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 50))


class Offloaded:
    """Two backwards and one step; gradients are read from a step of SGD."""

    n_microbatches = PARTS

    def __init__(self, config):
        os.environ["LOCAL_RANK"] = str(dist.get_rank())  # the ranks are there already
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled here
        self.model, self.rank, self.n_shares = words(), dist.get_rank(), dist.get_world_size()
        options = {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_clipping": config.max_norm or 0.0,
            "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
            "zero_force_ds_cpu_optimizer": False,  # it would be compiled too
            "zero_allow_untested_optimizer": True,
        }
        optimizer = make_optimizer(list(self.model.parameters()), config)
        self.engine, *_ = deepspeed.initialize(
            model=self.model, optimizer=optimizer, config=options, dist_init_required=False
        )

    def parameters(self):
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    def step(self, batch):
        losses = torch.zeros(self.n_shares)
        for part, (inputs, targets) in enumerate(micro_batches(share(batch, self.rank, self.n_shares), PARTS), 1):
            self.engine.set_gradient_accumulation_boundary(part == PARTS)
            loss = nn.functional.cross_entropy(self.engine(inputs).mT, targets) / PARTS
            self.engine.backward(loss)
            losses[self.rank] += loss.detach()
        self.engine.step()
        dist.all_reduce(losses)
        return losses.mean().item()


def reference(config):
    return Loop(words(), config)


parallel = Offloaded


def batches(step):
    return torch.randint(0, 50, (2, 8, 12), generator=torch.Generator().manual_seed(step))
