"""A script whose model under DDP is still there when it leaves its group may hang at its very end, over gloo.

The model's reducer holds the group. If it is the last to do so, it dies with Python's lock in its hands and waits for
gloo's threads to end. One of them may just be throwing away the last barrier, for which it needs that lock. No step
and no loss is lost, but the job never ends, and its GPUs stay taken. It meets one script in about a thousand; here a
process makes and leaves some groups, and one of the first dozen holds it. To delete the model first mends it, and so
does a function around all that ends before. In the threads the lock is let go where Python itself holds the group
last.
"""

import os
import sys
import threading

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

SCRIPT = {
    "library": "torch",
    "links": ["pytorch/pytorch#56297", "pytorch/pytorch#154976"],
    "pins": "torch==2.13.0",
    "ranks": 2,
}
JOBS, PATIENCE_S = 200, 10


def give_up(number):
    """End the process: the other rank, which holds Python's lock and waits, can say nothing."""
    print(f"the other rank hangs as it leaves group {number}", flush=True)
    os._exit(1)


def job(way, meet):
    """What a script does: make a group, train a step, leave the group."""
    ranks = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    dist.init_process_group("gloo", init_method=meet, **ranks)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    model(torch.randn(2, 8)).sum().backward()
    dist.barrier()
    if way == "mended":
        del model
    dist.destroy_process_group()  # what the function still has goes right after this line


def main(way, folder):
    """Many jobs, one after the other."""
    for number in range(JOBS):
        waits = threading.Timer(PATIENCE_S, give_up, [number])
        waits.daemon = True
        waits.start()
        job(way, f"file://{folder}/{number}")
        waits.cancel()
    if os.environ["RANK"] == "0":
        print(f"fine: {JOBS} groups were made and left", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
