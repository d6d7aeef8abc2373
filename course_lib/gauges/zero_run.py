"""The same training by `plain_zero` on ranks, at a stage of ZeRO, and on one device that takes the shards in turn."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import reduce
from operator import add
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.config import ModelConfig
from course_lib.gauges.plain_zero import ADAM_EPS, Formats, HeldBytes, ShardedAdamW, flat, taken
from course_lib.models.decoder import Decoder
from course_lib.training.batches import Batches
from course_lib.training.step import compute_gradients
from course_lib.verify.alike import born_with
from course_lib.verify.equality import deviation


@dataclass(frozen=True, kw_only=True)
class ZeroRun:
    """What to train, and how long."""

    model: ModelConfig
    formats: Formats
    batches: Batches
    steps: int = 3
    learning_rate: float = 1e-3


@dataclass(frozen=True, kw_only=True)
class ZeroTrace:
    """What a rank has at the end: the weights that its optimizer updates, in fp32, and the bytes of what lasts."""

    weights: Tensor
    states: HeldBytes
    step_s: float  # median


def train_sharded(run: ZeroRun, stage: int) -> ZeroTrace:
    """On a rank: train on its shard of each batch; every rank is seeded differently."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    trainer = ShardedAdamW(Decoder(run.model), run.formats, stage, run.learning_rate)
    seconds = []
    for step in range(run.steps):
        started = time.perf_counter()
        trainer.step(run.batches.shard(step, rank, world_size))
        seconds.append(time.perf_counter() - started)
    return ZeroTrace(weights=trainer.mine, states=trainer.state_bytes(), step_s=median(seconds))


@born_with(0, torch.float32)  # on one thread: some processors round bf16 by the number of threads
def train_in_turn(run: ZeroRun, world_size: int) -> Tensor:
    """On one device: the fp32 weights after the same steps, in one row.

    It takes the shards of `world_size` ranks one after the other, and adds as they do: bf16 shows every other order.
    """
    model = Decoder(run.model).to(run.formats.weights)
    parameters = list(model.parameters())
    master = nn.Parameter(flat([parameter.detach() for parameter in parameters]).float())
    optimizer = torch.optim.AdamW([master], lr=run.learning_rate, eps=ADAM_EPS)
    for step in range(run.steps):
        gradients = []
        for rank in range(world_size):
            compute_gradients(model, run.batches.shard(step, rank, world_size))
            whole = flat([taken(parameter) for parameter in parameters])
            gradients.append(whole.to(run.formats.gradients))
        master.grad = (summed(gradients) / world_size).float()
        optimizer.step()
        for parameter, new in zip(parameters, master.detach().split([p.numel() for p in parameters]), strict=True):
            parameter.data.copy_(new.view_as(parameter))
    return master.detach()


def summed(gradients: list[Tensor]) -> Tensor:
    """The sum in the order of a ring, which begins chunk r at rank r + 1."""
    p = len(gradients)
    rows = [gradient.tensor_split(p) for gradient in gradients]
    return torch.cat([reduce(add, [rows[(r + step) % p][r] for step in range(1, p + 1)]) for r in range(p)])


def zero_deviation(traces: list[ZeroTrace], alone: Tensor) -> float:
    """How far the ranks' weights are from one device's: the largest difference over the largest weight."""
    parts = [alone] * len(traces)
    if len(traces[0].weights) < len(alone):
        parts = list(alone.tensor_split(len(traces)))
    return max(deviation(trace.weights, part) for trace, part in zip(traces, parts, strict=True))
