"""What the project's trainers are started on: weights, batches and an optimizer, drawn from a seed."""

from __future__ import annotations

import random
from typing import Any

import torch

from course_lib.checks.project.one_device import CLASSES, new_model

ROWS = (16, 13, 13, 3)  # the first divides; of the last, one of four processes gets no row
_FROZEN = ("0.bias", "1.up.bias", "2.norm.bias")
_SGD = {"optimizer": "SGD", "options": {"lr": 0.5}, "clip": 1e9}  # plain: a wrong factor shows in the first step
_ADAMW = {"optimizer": "AdamW", "options": {"lr": 0.02, "weight_decay": 0.3}, "clip": 0.2}  # with all that one uses

Task = dict[str, Any]


def task_of(seed: int, kind: str, batches: slice = slice(None)) -> Task:
    """Of `sgd` or `adamw`, some of the batches: the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7919 * seed + 11)
        weights = new_model([]).state_dict()
        pairs = [(torch.randn(rows, 6).double(), torch.randint(CLASSES, (rows,))) for rows in ROWS]
    frozen = random.Random(seed).sample(_FROZEN, 2)
    return {**(_SGD if kind == "sgd" else _ADAMW), "weights": weights, "batches": pairs[batches], "frozen": frozen}


def trained_numbers(task: Task) -> int:
    """How many numbers an optimizer steps."""
    return sum(tensor.numel() for name, tensor in task["weights"].items() if name not in task["frozen"])
