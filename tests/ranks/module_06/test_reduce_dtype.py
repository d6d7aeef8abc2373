"""Why 07_fsdp_tp.py insists on accumulation: an open bug of PyTorch's, shown by numbers that bfloat16 holds exactly.

FSDP2 applies `reduce_dtype` to its own reduce-scatter alone. The sum along tp of a gradient that every rank there has
a term of is made in the gradient's own dtype, unless it was accumulated (pytorch/pytorch#190626).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from course_lib.ranks import run_ranks


class Scale(nn.Module):
    """A norm's weight without the norm: the gradient of w is the sum of all positions' x."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x * self.w


def gradient(backwards):
    """Of two positions, 256 and 1, each on a rank of its own along tp; so many backwards before the last."""
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    model = Scale()
    model.w = nn.Parameter(distribute_tensor(model.w.detach(), mesh["tp"], [Replicate()]))
    fully_shard(model, mesh=mesh["dp"], mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    x = distribute_tensor(torch.tensor([[256.0], [1.0]]).bfloat16(), mesh["tp"], [Shard(0)])
    for number in range(backwards + 1):
        model.set_requires_gradient_sync(number == backwards)
        (model(x).float().sum() / (backwards + 1)).backward()
    return model.w.grad.full_tensor().item(), str(model.w.grad.dtype)


def test_along_tp_a_gradient_is_summed_in_bfloat16_unless_it_was_accumulated():
    assert run_ranks(gradient, 2, 0) == 2 * [(256.0, "torch.float32")]  # 257 is what reduce_dtype promises
    assert run_ranks(gradient, 2, 1) == 2 * [(257.0, "torch.float32")]
