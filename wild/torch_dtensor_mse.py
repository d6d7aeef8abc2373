"""Of a batch that is sharded over ranks the mean squared error is right, and its gradients are as many times too long.

The backward divides by the rows of one rank, not of all; `smooth_l1_loss` and `huber_loss` do the same. No thread tells
of it yet: the ladder found it when it looked for the one in the link, where a weighted mean of classes goes wrong.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_module, distribute_tensor

from course_lib.verify.adapters.loop import Loop, whole

EXHIBIT = {
    "library": "torch",
    "links": ["pytorch/pytorch#185167"],
    "old": "torch==2.13.0",
    "mended": "",  # open
    "ranks": 2,
    "rung": "gradients",
    "cause": "one factor",
}


def regression():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))


class Squares(Loop):
    """A plain loop over tensors, which are cut over the ranks by `places` if that is given."""

    output = property(doc="it would be one rank's")

    def __init__(self, model, config, places=lambda tensor: tensor):
        super().__init__(model, config)
        self.places = places

    def step(self, batch):
        self.optimizer.zero_grad()
        inputs, targets = map(self.places, batch)
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        loss.backward()
        self.norm = whole(nn.utils.clip_grad_norm_(self.trained, self.max_norm)).item()
        self.optimizer.step()
        return whole(loss.detach()).item()


def reference(config):
    return Squares(regression(), config)


def parallel(config):
    """Rows are cut, weights are whole on every rank."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return Squares(
        distribute_module(regression(), mesh), config, lambda tensor: distribute_tensor(tensor, mesh, [Shard(0)])
    )


def batches(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 6, generator=generator), torch.randn(8, 4, generator=generator, dtype=torch.float64)
