"""A job that torchrun starts again over gloo dies once more: its ranks look for the addresses of dead ones.

The agent keeps one store for all attempts, and the addresses of the first attempt are still in it, until a rank has
written its new one. Whoever looks before that may call a dead rank: of two ranks some restarts go well, of four hardly
one. A prefix of the store for each attempt, five lines, mends it. The threads are of NCCL, where the same store was the
cause once.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

SCRIPT = {
    "library": "torch",
    "links": ["pytorch/pytorch#135712", "pytorch/pytorch#167288"],
    "pins": "torch==2.13.0",
    "ranks": 4,
    "torchrun": "--max-restarts=1",
}
STEPS, SAVED, DIES = 12, 5, 8


def meet(attempt):
    """The group of all ranks, whose addresses are kept under the attempt's name."""
    agent = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    ranks = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    dist.init_process_group("gloo", store=dist.PrefixStore(f"attempt-{attempt}", agent), **ranks)


def main(way, folder):
    """Count to twelve; save at each fifth step; rank 1 is killed at the eighth of the first attempt."""
    attempt, kept = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), Path(folder) / "step"
    if way == "mended":
        meet(attempt)
    else:
        dist.init_process_group("gloo")
    first = step = int(kept.read_text()) if kept.exists() else 0
    while step < STEPS:
        dist.all_reduce(torch.ones(1))
        time.sleep(0.05)
        step += 1
        if dist.get_rank() == 0 and step % SAVED == 0:
            kept.write_text(str(step))
        dist.barrier()
        if attempt == 0 and dist.get_rank() == 1 and step == DIES:
            os.kill(os.getpid(), signal.SIGKILL)
    if dist.get_rank() == 0:
        print(f"fine: attempt {attempt} went on at step {first} and came to {step}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
