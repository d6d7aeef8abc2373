"""Which device a rank computes on, and which back end carries its messages: the one place that chooses."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A rank's device and back end, and what the learner should know about them."""

    device: torch.device
    backend: str
    notice: str = ""


def choose(place: int, ranks_here: int, wanted: str | None = None) -> Choice:
    """NCCL with one GPU for each of this machine's ranks; where GPUs are fewer, the CPU over gloo.

    `place` is the rank's number on this machine. `wanted` "cpu" leaves GPUs alone; "cuda" lets ranks share one, over
    gloo through the host's memory.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus >= ranks_here and wanted != "cpu":
        return Choice(device=torch.device("cuda", place), backend="nccl")
    if gpus and wanted == "cuda":
        return Choice(device=torch.device("cuda", place % gpus), backend="gloo")
    notice = ""
    if gpus and wanted is None:
        notice = f"{ranks_here} ranks on {gpus} GPU(s): running on CPU over gloo (--device cuda shares)\n"
    return Choice(device=torch.device("cpu"), backend="gloo", notice=notice)


def take(choice: Choice) -> None:
    """Make the chosen GPU this process's own."""
    if choice.device.type == "cuda":
        torch.cuda.set_device(choice.device)


def join_torchrun() -> Choice:
    """Join the group that torchrun's variables describe."""
    choice = choose(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
    take(choice)
    dist.init_process_group(choice.backend)
    return choice
