"""PowerSGD over gloo hangs in its first compressed step if DDP has two buckets; with one bucket it trains.

The hook waits for an all-reduce inside the callback of another one. Gloo has two threads for callbacks, and two buckets
keep both of them waiting for messages that nobody is left to handle. In the thread of the link waits for what was done
already were taken out, and these stayed. We found no thread that tells of it. A bucket for all gradients goes round it.
"""

import os
import sys
import threading

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.parallel import DistributedDataParallel

SCRIPT = {
    "library": "torch",
    "links": ["pytorch/pytorch#49709"],
    "pins": "torch==2.13.0",
    "ranks": 2,
}
STEPS, BEFORE, PATIENCE_S = 6, 3, 10
SMALL, LARGE = 0.01, 25.0  # MB of a bucket: one layer, or all of them


class Watch:
    """Ends the process if a step takes longer than anybody would wait."""

    def __init__(self):
        self.timer = threading.Timer(0, print)

    def step(self, number):
        self.timer.cancel()
        self.timer = threading.Timer(PATIENCE_S, self.end, [number])
        self.timer.daemon = True
        self.timer.start()

    def end(self, number):
        if dist.get_rank() == 0:
            print(f"it hangs in step {number}, the first that is compressed" * (number == BEFORE), flush=True)
        os._exit(1)


def main(way, folder):
    """Train two layers on two ranks."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    model = DistributedDataParallel(layers, bucket_cap_mb=LARGE if way == "mended" else SMALL)
    numbers = {"matrix_approximation_rank": 1, "min_compression_rate": 0.1}
    state = powersgd.PowerSGDState(None, start_powerSGD_iter=BEFORE, **numbers)
    model.register_comm_hook(state, powersgd.powerSGD_hook)
    watch = Watch()
    for number in range(STEPS):
        watch.step(number)
        model(torch.randn(4, 64)).sum().backward()
    if dist.get_rank() == 0:
        print(f"fine: {STEPS - BEFORE} compressed steps with one bucket", flush=True)
    watch.timer.cancel()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
