"""Which device a rank computes on, and which back ends carry its messages: the one place that chooses.

A group carries both kinds of tensors wherever there are GPUs: what lies on a CPU goes over gloo, what lies on a GPU
over NCCL. So a cell that makes CPU tensors runs on any machine, and the cell decides, not the machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist

from course_lib.errors import four_parts
from course_lib.ranks import meeting, switch
from course_lib.ranks.home import Home


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A rank's device, its group's back ends, and what the learner should know about them."""

    device: torch.device
    backend: str
    notice: str = ""


def gpus_here() -> int:
    """How many GPUs torch sees on this machine."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def in_words() -> str:
    """What ranks on this machine would compute on, and why."""
    asked, gpus = switch.asked(), gpus_here()
    said = f"{switch.VARIABLE}={asked}" if asked else f"{switch.VARIABLE} is not set"
    kind = "cannot start" if asked == "cuda" and not gpus else f"compute on {asked or 'cpu'}"
    training = " (train under torchrun takes one for each rank unasked)" if gpus and not asked else ""
    return f"ranks on this machine {kind}: {said}, torch sees {_gpus(gpus)}{training}"


def choose(local_rank: int, local_size: int, kind: str) -> Choice:
    """Rank `local_rank` of the `local_size` on this machine computes on the CPU, or on GPU `local_rank % GPUs`.

    With a GPU for each rank, tensors on GPUs go over NCCL; ranks that share one send them through main memory by gloo,
    since NCCL refuses two ranks on one GPU.
    Raises: ValueError if `kind` is "cuda" and torch sees no GPU.
    """
    gpus = gpus_here()
    if kind == "cuda" and not gpus:
        values, rule = "device=cuda on a machine where torch sees no GPU", "a rank that computes on a GPU needs one"
        raise ValueError(four_parts("ranks", values, rule, "take cpu, or a machine and a torch with CUDA"))
    own = gpus >= local_size
    backend = "gloo" if not gpus else "cpu:gloo,cuda:nccl" if own else "cpu:gloo,cuda:gloo"
    if kind == "cpu":
        return Choice(device=torch.device("cpu"), backend=backend)
    notice = "" if own else f"{local_size} ranks on {_gpus(gpus)}: {_SHARED}\n"
    return Choice(device=torch.device("cuda", local_rank % gpus), backend=backend, notice=notice)


_SHARED = "rank r computes on GPU r modulo their number, and messages go through main memory (gloo)"


def _gpus(count: int) -> str:
    return f"{count or 'no'} GPU{'s' * (count > 1)}"


def choose_for_training(local_rank: int, local_size: int) -> Choice:
    """What was asked for this process, or else a GPU for each rank, or else the CPU: a training run wants speed."""
    return choose(local_rank, local_size, switch.asked() or ("cuda" if gpus_here() >= local_size else "cpu"))


def take(choice: Choice) -> None:
    """Make the chosen GPU this process's own, and the place where its new tensors and models lie."""
    if choice.device.type == "cuda":
        torch.cuda.set_device(choice.device)
        Home(choice.device).__enter__()  # for as long as this process lives


def join_torchrun(choice: Choice) -> None:
    """Join the group that torchrun's variables describe, on the device that was chosen.

    Raises: TimeoutError if not all ranks come.
    """
    take(choice)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = meeting.store_of_attempt(rank, world_size)
    if store is None:
        dist.init_process_group(choice.backend)
    else:
        dist.init_process_group(choice.backend, store=store, rank=rank, world_size=world_size)


def local_place() -> tuple[int, int]:
    """This rank's number on its machine, and how many there are, as torchrun and the pool say it."""
    return int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
