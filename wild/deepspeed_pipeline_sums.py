"""A pipeline added up the gradients of its micro-batches and never divided by their number.

Every gradient was as many times too long as there were micro-batches, so another `gradient_accumulation_steps` for the
same rows was another learning rate.
"""

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import PipelineModule
from torch import nn

from course_lib.training.step import micro_batches
from course_lib.training.trainer import make_optimizer
from course_lib.verify.adapters.loop import Loop
from course_lib.verify.adapters.pipelining import of_all_stages

EXHIBIT = {
    "library": "deepspeed",
    "links": ["deepspeedai/DeepSpeed#7773", "deepspeedai/DeepSpeed#7665"],
    "old": "deepspeed==0.18.2 hjson==3.1.0 py-cpuinfo==9.0.0 einops==0.8.2 msgpack==1.2.4",
    "mended": "deepspeed==0.19.8 hjson==3.1.0 py-cpuinfo==9.0.0 einops==0.8.2 msgpack==1.2.4",
    "dtype": "float32",  # in which it keeps its weights
    "ranks": 2,
    "rung": "gradients",
    "cause": "4",
}


def layers():
    torch.manual_seed(0)
    return [nn.Embedding(50, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 50)]


def mean_loss(output, targets):
    return nn.functional.cross_entropy(output.mT, targets)


class Staged:
    """The engine as its documentation writes it, four micro-batches; gradients are read from a step of SGD."""

    n_shares, n_microbatches = 1, 4

    def __init__(self, config):
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled here
        deepspeed.init_distributed("gloo", dist_init_required=False, verbose=False)
        options = {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": self.n_microbatches,
            "gradient_clipping": config.max_norm or 0.0,
        }
        stages = PipelineModule(layers=layers(), num_stages=dist.get_world_size(), loss_fn=mean_loss)
        optimizer = make_optimizer(list(stages.parameters()), config)
        self.engine, *_ = deepspeed.initialize(
            model=stages, optimizer=optimizer, config=options, dist_init_required=False
        )

    def parameters(self):
        return of_all_stages({name: p.detach().clone() for name, p in self.engine.module.named_parameters()})

    def step(self, batch):
        return self.engine.train_batch(data_iter=iter(micro_batches(batch, self.n_microbatches))).item()


def reference(config):
    return Loop(nn.Sequential(*layers()), config)


def parallel(config):
    return Staged(config)


def batches(step):
    return torch.randint(0, 50, (2, 8, 12), generator=torch.Generator().manual_seed(step))
