"""Fewer activations on ranks (lesson 11): torchrun --nproc-per-node 4 11_checkpoint_and_accumulate.py"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

WIDTH, LAYERS, ROWS, MICRO_BATCHES = 32, 6, 32, 4


class Tower(nn.Module):
    """Layers that keep all that backward needs, or their input alone."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.again = again
        maps = [(nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(LAYERS)]
        self.layers = nn.ModuleList(nn.Sequential(up, nn.GELU(), down) for up, down in maps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + (checkpoint(layer, x, use_reentrant=False) if self.again else layer(x))
        return x


def kept(model: nn.Module, rows: torch.Tensor) -> int:
    """Numbers that wait for backward, beside the weights."""
    found: dict[int, int] = {}
    with saved_tensors_hooks(lambda x: found.update({x.data_ptr(): x.numel()}) or x, lambda x: x):
        model(rows)
    return sum(found.values()) - sum(x.numel() for x in model.parameters() if x.data_ptr() in found)


def main() -> None:
    device = "cuda" if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]) else "cpu"
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    assert ROWS % (ranks * MICRO_BATCHES) == 0, "all micro-batches are equally long"
    torch.manual_seed(0)
    if device == "cuda":
        torch.set_default_device(torch.device(device, int(os.environ["LOCAL_RANK"])))
    whole, thrifty = Tower(False).double(), Tower(True).double()
    thrifty.load_state_dict(whole.state_dict())
    rows = torch.randn(ROWS, WIDTH, dtype=torch.float64)

    # One device keeps everything of all rows, and says what is right.
    whole(rows).square().mean().backward()

    # Each rank goes through its rows in micro-batches, and only the last backward lets the ranks average.
    parts = rows.chunk(ranks)[rank].chunk(MICRO_BATCHES)
    before, after = kept(whole, rows.chunk(ranks)[rank]), kept(thrifty, parts[0])
    model = DistributedDataParallel(thrifty)
    for number, part in enumerate(parts, start=1):
        model.require_backward_grad_sync = number == MICRO_BATCHES
        (model(part).square().mean() / MICRO_BATCHES).backward()
    for one, right in zip(thrifty.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one.grad, right.grad)
    if rank == 0:
        told = f"{after:,} numbers wait for backward instead of {before:,}"
        print(f"{ranks} ranks agree with one device on all gradients; {told}", flush=True)
    dist.barrier()  # who left first would cut the connections of those who still work
    del model  # who holds the group last may wait for a thread of its own that waits for Python (2.13)
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads still live, and must not meet Python's end


if __name__ == "__main__":
    main()
