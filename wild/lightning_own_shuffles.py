"""Under DDP each process shuffled by itself and then took its share, so some rows came twice and others never.

It needed `shuffle=True`, processes of their own and no global seed: what a first script has.
"""

import logging
import os

import torch
import torch.distributed as dist
from pytorch_lightning import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from course_lib.training.trainer import make_optimizer
from course_lib.verify.adapters.loop import Loop

EXHIBIT = {
    "library": "pytorch_lightning",
    "links": ["Lightning-AI/pytorch-lightning#17713"],
    "old": "pytorch_lightning==2.0.2 lightning_fabric==2.0.2 "
    "lightning_utilities==0.14.3 torchmetrics==1.7.4 setuptools==75.8.0",
    "mended": "pytorch_lightning==2.1.0 lightning_fabric==2.1.0 "
    "lightning_utilities==0.14.3 torchmetrics==1.7.4 setuptools==75.8.0",
    "ranks": 2,
    "rung": "gradients",
    "cause": "rows missing",
}
QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


class Words(LightningModule):
    def __init__(self, config):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 50))
        self.optimizer = make_optimizer(list(self.parameters()), config)

    def forward(self, inputs):
        return self.layers(inputs)

    def training_step(self, batch, index):
        inputs, targets = batch
        return nn.functional.cross_entropy(self(inputs).mT, targets)

    def configure_optimizers(self):
        return self.optimizer


class Fitted:
    """One step of the library's own loop for each batch; gradients are read from a step of SGD."""

    def __init__(self, config):
        os.environ["LOCAL_RANK"] = str(dist.get_rank())  # the ranks are there already
        self.model, self.max_norm = Words(config), config.max_norm
        torch.manual_seed(dist.get_rank())  # as if nobody had seeded

    def parameters(self):
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    def step(self, batch):
        rows = DataLoader(TensorDataset(*batch), batch_size=len(batch[0]) // 2, shuffle=True)
        self.fit(rows, devices=2, strategy="ddp")

    def fit(self, *loaders, **options):
        options = {"accelerator": "cpu", "precision": "64-true", **options, **QUIET}
        Trainer(max_epochs=1, gradient_clip_val=self.max_norm, **options).fit(self.model, *loaders)


def reference(config):
    return Loop(Words(config), config)


def parallel(config):
    return Fitted(config)


def batches(step):
    return torch.randint(0, 50, (2, 8, 12), generator=torch.Generator().manual_seed(step))
