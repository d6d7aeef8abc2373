"""ZeRO stage 2 kept the gradients of the last accumulated part and threw those of the parts before it away.

It still divided by the number of parts, so a run with `gradient_accumulation_steps` learned from a share of its rows,
weakly, in every release from 0.17.6 to 0.18.2.
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
    "links": ["deepspeedai/DeepSpeed#7718", "deepspeedai/DeepSpeed#7665"],
    "old": "deepspeed==0.18.2 hjson==3.1.0 py-cpuinfo==9.0.0 einops==0.8.2 msgpack==1.2.4",
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


class Stage2:
    """The engine as its documentation writes it; gradients are read from a step of SGD."""

    n_microbatches = PARTS
    options = {"gradient_accumulation_steps": PARTS, "zero_optimization": {"stage": 2}}

    def __init__(self, config):
        os.environ["LOCAL_RANK"] = str(dist.get_rank())  # the ranks are there already
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled here
        self.model, self.rank, self.n_shares = words(), dist.get_rank(), dist.get_world_size()
        options = {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_clipping": config.max_norm or 0.0,
            "zero_allow_untested_optimizer": True,
            **self.options,
        }
        optimizer = make_optimizer(list(self.model.parameters()), config)
        self.engine, *_ = deepspeed.initialize(
            model=self.model, optimizer=optimizer, config=options, dist_init_required=False
        )

    def parameters(self):
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    def step(self, batch):
        losses = torch.zeros(self.n_shares)
        for inputs, targets in micro_batches(share(batch, self.rank, self.n_shares), PARTS):
            loss = nn.functional.cross_entropy(self.engine(inputs).mT, targets)
            self.engine.backward(loss)
            self.engine.step()
            losses[self.rank] += loss.detach() / PARTS
        dist.all_reduce(losses)
        return losses.mean().item()


def reference(config):
    return Loop(words(), config)


def parallel(config):
    return Stage2(config)


def batches(step):
    return torch.randint(0, 50, (2, 8, 12), generator=torch.Generator().manual_seed(step))
