"""A loop as the documentation of `accelerate` writes it."""

from __future__ import annotations

import os

import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch import nn

from course_lib.config import TrainConfig
from course_lib.training.batches import Batch
from course_lib.training.step import count_targets, micro_batches
from course_lib.training.trainer import share
from course_lib.verify.adapters.loop import Loop


class Accelerated(Loop):
    """Micro-batches under `accumulate`, `backward` and clipping by the accelerator, which wraps the model."""

    def __init__(self, model: nn.Module, config: TrainConfig, accelerator: Accelerator) -> None:
        super().__init__(model, config)
        self.accelerator, self.n_microbatches = accelerator, accelerator.gradient_accumulation_steps
        self.rank, self.n_shares = accelerator.process_index, accelerator.num_processes
        self.wrapped, self.optimizer = accelerator.prepare(model, self.optimizer)

    def step(self, batch: Batch) -> float | None:
        self.model.zero_grad()
        weight = self.n_shares * self.n_microbatches / count_targets(batch)  # backward divides by the micro-batches
        whole = 0.0
        for inputs, targets in micro_batches(share(batch, self.rank, self.n_shares), self.n_microbatches):
            with self.accelerator.accumulate(self.wrapped):
                loss = self.loss(self.wrapped(inputs), targets) * weight
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.norm = self.accelerator.clip_grad_norm_(self.trained, self.max_norm).item()
                self.optimizer.step()
                whole += loss.item() / self.n_microbatches
        return self.from_shares(loss.new_tensor([whole])).sum().item() / self.n_shares


def as_torchrun() -> None:
    """Tell `accelerate` by the environment which rank this is, and let it forget what the trainer before told it."""
    if dist.is_initialized():
        rank, world_size = str(dist.get_rank()), str(dist.get_world_size())
        os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=world_size, LOCAL_WORLD_SIZE=world_size)
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # else it warns, and sets it itself
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
