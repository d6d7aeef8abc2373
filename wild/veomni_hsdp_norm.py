"""Under HSDP the squares of the gradients were summed over the replicas too, so the norm came out too long.

With two replicas it was √2 times the true one; clipping then shortened every gradient that it touched, and often one
that needed no clipping.
"""

import logging

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from veomni.distributed.fsdp2.clip_grad_norm import clip_grad_norm
from veomni.distributed.parallel_state import get_parallel_state, init_parallel_state

from course_lib.training.step import count_targets
from course_lib.training.trainer import share
from course_lib.verify.adapters.loop import Loop
from course_lib.verify.adapters.sharded import Sharded

EXHIBIT = {
    "library": "veomni",
    "links": ["ByteDance-Seed/VeOmni#184", "ByteDance-Seed/VeOmni#185"],
    "old": "veomni==0.1.0",
    "mended": "veomni==0.1.4",
    "ranks": 4,
    "rung": "gradient norm",
    "cause": "norm",
}
logging.getLogger("veomni").setLevel(logging.ERROR)


def words():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 50))


class Hybrid(Sharded):
    """Two replicas of two shards each; the library clips."""

    def __init__(self, config):
        init_parallel_state(dp_size=4, dp_replicate_size=2, dp_shard_size=2, dp_mode="fsdp2", device_type="cpu")
        state = get_parallel_state()
        super().__init__(fully_shard(words(), mesh=state.fsdp_mesh), config, shares=state.dp_mesh)

    def step(self, batch):
        self.optimizer.zero_grad()
        inputs, targets = share(batch, self.rank, self.n_shares)
        loss = self.loss(self.model(inputs), targets) * self.n_shares / count_targets(batch)
        loss.backward()
        self.norm = clip_grad_norm(self.model, self.max_norm).item()
        self.optimizer.step()
        return self.from_shares(loss.detach().reshape(1)).mean().item()


def reference(config):
    return Loop(words(), config)


def parallel(config):
    return Hybrid(config)


def batches(step):
    return torch.randint(0, 50, (2, 8, 12), generator=torch.Generator().manual_seed(step))
