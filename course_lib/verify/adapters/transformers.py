"""The Trainer of `transformers`, whose own `train` makes every step."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import SequentialSampler
from transformers import PrinterCallback, Trainer, TrainingArguments, default_data_collator

from course_lib.config import TrainConfig
from course_lib.errors import four_parts
from course_lib.training.batches import Batch
from course_lib.verify.adapters.accelerate import as_torchrun


class HFTrainer:
    """`trainer` with a batch of its own for each step; it shows no gradients, so they are read from a step of SGD."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.model = trainer, trainer.model
        self.n_shares, self.n_microbatches = trainer.args.world_size, trainer.args.gradient_accumulation_steps
        trainer.data_collator = default_data_collator
        trainer.remove_callback(PrinterCallback)
        trainer._get_train_sampler = lambda *_: SequentialSampler(trainer.train_dataset)

    def parameters(self) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    def step(self, batch: Batch) -> float | None:
        rows, m = rows_of(batch), self.n_microbatches
        size, left = divmod(len(rows), m * self.n_shares)
        if left:
            values = f"{len(rows)} rows for {self.n_shares} ranks of {m} micro-batches"
            raise ValueError(four_parts("HFTrainer", values, "its micro-batches have one size", "give a multiple"))
        order = torch.arange(len(rows)).view(self.n_shares, m, size).transpose(0, 1).flatten()  # ranks take turns
        self.trainer.train_dataset = [rows[row] for row in order]
        self.trainer._train_batch_size = self.trainer.args.per_device_train_batch_size = size
        return float(self.trainer.train().training_loss)

    @torch.no_grad()
    def output(self, inputs: Tensor) -> Tensor:
        self.model.eval()
        return self.model(input_ids=inputs).logits


def rows_of(batch: Batch) -> list[dict[str, Tensor]]:
    """Tokens and labels of each row; labels are shifted by the model, so the last target is a token more."""
    inputs, targets = batch
    tokens = torch.cat([inputs, targets[:, -1:].clamp(min=0)], 1)  # (B, S + 1)
    labels = torch.cat([torch.full_like(targets[:, :1], -100), targets], 1)
    return [{"input_ids": one, "labels": two} for one, two in zip(tokens, labels, strict=True)]


def arguments(config: TrainConfig, **more: Any) -> TrainingArguments:
    """The ladder's configuration as `TrainingArguments`, which learn here which rank this is."""
    as_torchrun()
    adamw = {"optim": "adamw_torch", "adam_epsilon": config.adam_eps, "weight_decay": config.weight_decay}
    return TrainingArguments(
        output_dir=tempfile.gettempdir(),  # nothing is written
        max_steps=1,
        learning_rate=config.learning_rate,
        lr_scheduler_type="constant",
        max_grad_norm=config.max_norm or 0.0,
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        **(adamw if config.optimizer == "adamw" else {"optim": "sgd"}),
        **more,
    )
