"""Fabric wrapped a LightningModule in DDP, but its `training_step` was called past the wrapper.

No gradient was ever exchanged, so each rank trained a model of its own on its own rows, without a warning.
"""

import os

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from pytorch_lightning import LightningModule
from torch import nn

from course_lib.training.trainer import share
from course_lib.verify.adapters.loop import Loop

EXHIBIT = {
    "library": "lightning_fabric",
    "links": ["Lightning-AI/pytorch-lightning#16856", "Lightning-AI/pytorch-lightning#17424"],
    "old": "lightning_fabric==2.0.1 pytorch_lightning==2.0.1 "
    "lightning_utilities==0.14.3 torchmetrics==1.7.4 setuptools==75.8.0",
    "mended": "lightning_fabric==2.1.0 pytorch_lightning==2.1.0 "
    "lightning_utilities==0.14.3 torchmetrics==1.7.4 setuptools==75.8.0",
    "ranks": 2,
    "rung": "gradients",
    "cause": "not averaged",
}


class Words(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 50))

    def forward(self, inputs):
        return self.layers(inputs)

    def training_step(self, batch, index=0):
        inputs, targets = batch
        return nn.functional.cross_entropy(self(inputs).mT, targets)


class OnFabric(Loop):
    def __init__(self, config):
        os.environ["LOCAL_RANK"] = str(dist.get_rank())  # the ranks are there already
        super().__init__(Words(), config)
        self.rank, self.n_shares = dist.get_rank(), dist.get_world_size()
        self.fabric = Fabric(accelerator="cpu", devices=self.n_shares, strategy="ddp", precision="64-true")
        self.fabric.launch()
        self.wrapped, self.optimizer = self.fabric.setup(self.model, self.optimizer)

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = self.wrapped.training_step(share(batch, self.rank, self.n_shares))
        self.fabric.backward(loss)
        self.norm = nn.utils.clip_grad_norm_(self.trained, self.max_norm).item()
        self.optimizer.step()
        return self.from_shares(loss.detach().reshape(1)).mean().item()


def reference(config):
    return Loop(Words(), config)


def parallel(config):
    return OnFabric(config)


def batches(step):
    return torch.randint(0, 50, (2, 8, 12), generator=torch.Generator().manual_seed(step))
