"""A job that goes on by itself (lesson 12b): torchrun --nproc-per-node 2 12b_goes_on.py FOLDER"""

import signal

# Slurm's warning ends a process that does not listen, and the imports below take seconds.
warned = []
signal.signal(signal.SIGUSR1, lambda number, frame: warned.append(number))
print("listens", flush=True)

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

STEPS, EVERY, STEP_S = 60, 20, 0.1


def main() -> None:
    dist.init_process_group("gloo")
    rank, path = dist.get_rank(), Path(sys.argv[1]) / "state.pt"
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    step = load(path, model, optimizer)
    print(f"rank {rank}, process {os.getpid()}: goes on after step {step}", flush=True)
    dist.barrier()

    stop = False
    while step < STEPS and not stop:
        train(model, optimizer, step)
        step += 1
        # One rank may hear the signal a step before the others, so all ask all.
        heard = torch.tensor(len(warned))
        dist.all_reduce(heard)
        stop = heard.item() > 0
        if rank == 0:
            if stop or step % EVERY == 0:
                save(path, model, optimizer, step)
            print(f"step {step}", flush=True)
    print(f"rank {rank} leaves after step {step}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """One step, with this rank's row of an endless supply of rows."""
    row = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    optimizer.zero_grad()
    model(torch.randn(4, generator=row)).square().sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    time.sleep(STEP_S)


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The step after which the last start ended; 0 if there was none."""
    if not path.exists():
        return 0
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    # A kill in the middle leaves half a file, but never under the name that `load` looks for.
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, unfinished := path.with_name("unfinished.pt"))
    os.replace(unfinished, path)


if __name__ == "__main__":
    main()
