"""Each rank shuffled the rows for itself, so some rows were seen by both and others by none.

A loader that was prepared by `accelerate` cut one order into shares, but without a seed of the sampler's own every
process drew another order; the documentation promised that they agree.
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from course_lib.verify.adapters.accelerate import as_torchrun
from course_lib.verify.adapters.loop import Loop

EXHIBIT = {
    "library": "accelerate",
    "links": ["huggingface/accelerate#2268", "huggingface/accelerate#2694"],
    "old": "accelerate==0.29.3",
    "mended": "accelerate==0.30.0",
    "ranks": 2,
    "rung": "gradients",
    "cause": "rows missing",
}


def words():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 50))


class Shuffled(Loop):
    """The rows of a batch are a data set that is shuffled and shared out by the library."""

    def __init__(self, config):
        as_torchrun()
        super().__init__(words(), config)
        self.accelerator = Accelerator(cpu=True)
        self.rank, self.n_shares = self.accelerator.process_index, self.accelerator.num_processes
        self.wrapped, self.optimizer = self.accelerator.prepare(self.model, self.optimizer)
        torch.manual_seed(self.rank)  # as if nobody had seeded

    def step(self, batch):
        rows = DataLoader(TensorDataset(*batch), batch_size=len(batch[0]) // self.n_shares, shuffle=True)
        for inputs, targets in self.accelerator.prepare(rows):
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.wrapped(inputs).mT, targets)
            self.accelerator.backward(loss)
            self.norm = self.accelerator.clip_grad_norm_(self.trained, self.max_norm).item()
            self.optimizer.step()
        return self.from_shares(loss.detach().reshape(1)).mean().item()


def reference(config):
    return Loop(words(), config)


def parallel(config):
    return Shuffled(config)


def batches(step):
    return torch.randint(0, 50, (2, 8, 12), generator=torch.Generator().manual_seed(step))
