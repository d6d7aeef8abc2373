"""A checkpoint that is written while training goes on breaks the training, or both wait for ever.

`dcp.async_save` plans in a thread, and its collectives go over the default group, on which FSDP gathers at the same
time: on each rank another call comes first. A group of its own mends it. The thread tells of a barrier in the place of
FSDP.
"""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

SCRIPT = {
    "library": "torch",
    "links": ["KempnerInstitute/KempnerForge#104"],
    "pins": "torch==2.13.0",
    "ranks": 2,
}
SAVES, WIDTH, LAYERS = 4, 512, 6


def main(way, folder):
    """Steps, each of which begins to save what it has made."""
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo")
    own = dist.new_group(backend="gloo") if way == "mended" else None
    model, mesh = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))), init_device_mesh("cpu", (2,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    optimizer, future = torch.optim.AdamW(fully_shard(model, mesh=mesh).parameters()), None
    for step in range(SAVES):
        for _ in range(3):
            model(torch.randn(16, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        weights, states = get_state_dict(model, optimizer)
        if future:
            future.result()  # never two at once
        state = {"model": weights, "optimizer": states}
        future = dcp.async_save(state, checkpoint_id=f"{folder}/step-{step}", process_group=own)
    future.result()
    if dist.get_rank() == 0:
        print(f"fine: {SAVES} checkpoints were written while it trained", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
