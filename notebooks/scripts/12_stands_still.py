"""A job that stands still (lesson 12): torchrun --nproc-per-node 4 12_stands_still.py FOLDER [PORT]"""

import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
from torch.distributed.debug import start_debug_server

BATCHES, QUIET_S = 23, 3


def main() -> None:
    # A process that gets SIGUSR2 writes to its stderr where each of its threads is.
    faulthandler.register(signal.SIGUSR2)
    dist.init_process_group("gloo", timeout=timedelta(minutes=2))
    rank, ranks, made = dist.get_rank(), dist.get_world_size(), []
    print(f"rank {rank} is process {os.getpid()} on {socket.gethostname()}", flush=True)
    threading.Thread(target=watch, args=(Path(sys.argv[1]), rank, made), daemon=True).start()
    if sys.argv[2:]:
        start_debug_server(port=int(sys.argv[2]))

    for batch in range(BATCHES)[rank::ranks]:
        total = loss_of(batch)
        dist.all_reduce(total)
        made.append(batch)
        if rank == 0:
            print(f"step {len(made)}: loss {total.item() / ranks:.4f}", flush=True)
    evaluate()
    save()
    dist.destroy_process_group()


def loss_of(batch: int) -> torch.Tensor:
    """A stand-in for forward and backward; the loss falls from batch to batch."""
    return torch.tensor(5 * 0.97**batch)


def evaluate() -> None:
    score = torch.tensor(0.5)
    dist.all_reduce(score)


def save() -> None:
    dist.barrier()


def watch(folder: Path, rank: int, made: list[int]) -> None:
    """Write what the flight recorder has, once no step was made for some seconds."""
    seen, since = 0, time.monotonic()
    while time.monotonic() - since < QUIET_S:
        time.sleep(0.1)
        if seen != len(made):
            seen, since = len(made), time.monotonic()
    # Only a whole file has this name, so whoever waits for it can read it.
    unfinished = folder / f"unfinished_{rank}"
    unfinished.write_bytes(_dump_fr_trace())
    unfinished.rename(folder / f"trace_{rank}")


if __name__ == "__main__":
    main()
