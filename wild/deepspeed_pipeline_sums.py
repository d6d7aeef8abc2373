"""A pipeline added up the gradients of its micro-batches and never divided by their number.

Every gradient was as many times too long, so another `gradient_accumulation_steps` was another learning rate.
"""

import os

import deepspeed
import torch
import torch.distributed as dist
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
    "cause": "not divided by micro-batches",
}


def layers():
    torch.manual_seed(0)
    return [nn.Embedding(50, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 50)]


class Staged:
    """The engine as its documentation writes it, with four micro-batches."""

    n_shares, n_microbatches = 1, 4

    def __init__(self, config):
        os.environ["LOCAL_RANK"] = str(dist.get_rank())  # the ranks are there already
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled here
        deepspeed.init_distributed("gloo", dist_init_required=False, verbose=False)
        mean = {"loss_fn": lambda output, targets: nn.functional.cross_entropy(output.mT, targets)}
        self.stage = deepspeed.pipe.PipelineModule(layers=layers(), num_stages=dist.get_world_size(), **mean)
        optimizer = make_optimizer(list(self.stage.parameters()), config)
        optimizer.register_step_pre_hook(self.clip)  # the engine's own counts the first stage alone, to this day
        options = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": self.n_microbatches}
        self.engine = deepspeed.initialize(model=self.stage, optimizer=optimizer, config=options)[0]
        self.max_norm = config.max_norm or float("inf")

    def clip(self, *_):
        self.found = {name: parameter.grad.clone() for name, parameter in self.stage.named_parameters()}
        norm = torch.stack([gradient.norm() for gradient in self.gradients().values()]).norm()
        nn.utils.clip_grads_with_norm_(self.stage.parameters(), self.max_norm, norm)
        self.norm = norm.item()

    def step(self, batch):
        return self.engine.train_batch(data_iter=iter(micro_batches(batch, self.n_microbatches))).item()

    def parameters(self):
        return of_all_stages({name: parameter.detach() for name, parameter in self.stage.named_parameters()})

    def gradients(self):
        return of_all_stages(self.found)


def reference(config):
    return Loop(nn.Sequential(*layers()), config)


parallel = Staged


def batches(step):
    return torch.randint(0, 50, (2, 8, 12), generator=torch.Generator().manual_seed(step))
