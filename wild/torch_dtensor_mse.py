"""The mean squared error of a batch that is cut over ranks is right, but its gradients are as many times too large.

Backward divides by the numbers of one rank, not of all; `smooth_l1_loss` and `huber_loss` do the same. We found no
thread that tells of it: the ladder met it beside the one of the link, where a weighted mean of classes goes wrong.
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
    "mended": "torch==2.13.0",
    "open": True,
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

    def __init__(self, model, config, places=lambda tensor: tensor, distance=nn.functional.mse_loss):
        super().__init__(model, config)
        self.places, self.distance = places, distance

    def step(self, batch):
        self.optimizer.zero_grad()
        inputs, targets = map(self.places, batch)
        loss = self.distance(self.model(inputs), targets)
        loss.backward()
        self.norm = whole(nn.utils.clip_grad_norm_(self.trained, self.max_norm)).item()
        self.optimizer.step()
        return whole(loss.detach()).item()


def reference(config):
    return Squares(regression(), config)


def parallel(config, **options):
    """Rows are cut, weights are whole on every rank."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = distribute_module(regression(), mesh)
    return Squares(model, config, lambda tensor: distribute_tensor(tensor, mesh, [Shard(0)]), **options)


def workaround(config):
    """The same by hand."""
    return parallel(config, distance=lambda output, target: (output - target).square().mean())


def batches(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 6, generator=generator), torch.randn(8, 4, generator=generator, dtype=torch.float64)
