"""A validation in the middle of an accumulation threw away the gradients that had been accumulated so far.

The optimizer then stepped on the rest alone, divided as if all parts were there, whenever `val_check_interval` did not
fall on the end of an accumulation.
"""

import logging

import torch
from pytorch_lightning import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from course_lib.training.trainer import make_optimizer
from course_lib.verify.adapters.loop import Loop

EXHIBIT = {
    "library": "pytorch_lightning",
    "links": ["Lightning-AI/pytorch-lightning#18710"],
    "old": "pytorch_lightning==2.0.2 lightning_fabric==2.0.2 "
    "lightning_utilities==0.14.3 torchmetrics==1.7.4 setuptools==75.8.0",
    "mended": "pytorch_lightning==2.1.0 lightning_fabric==2.1.0 "
    "lightning_utilities==0.14.3 torchmetrics==1.7.4 setuptools==75.8.0",
    "ranks": 1,
    "rung": "gradients",
    "cause": "micro-batches missing",
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

    def validation_step(self, batch, index):
        return None

    def configure_optimizers(self):
        return self.optimizer


class Fitted:
    """Four parts of a batch, and a validation after the second; gradients are read from a step of SGD."""

    n_microbatches = 4

    def __init__(self, config):
        self.model, self.max_norm = Words(config), config.max_norm
        self.options = {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "num_sanity_val_steps": 0, **QUIET}

    def parameters(self):
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    def step(self, batch):
        parts = DataLoader(TensorDataset(*batch), batch_size=len(batch[0]) // 4)
        options = {"precision": "64-true", "gradient_clip_val": self.max_norm, **self.options}
        Trainer(accumulate_grad_batches=4, val_check_interval=2, **options).fit(self.model, parts, parts)


def reference(config):
    return Loop(Words(config), config)


def parallel(config):
    return Fitted(config)


def batches(step):
    return torch.randint(0, 50, (2, 8, 12), generator=torch.Generator().manual_seed(step))
