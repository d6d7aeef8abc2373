"""Sharded data parallelism of lesson 06 in PyTorch alone: torchrun --nproc-per-node 4 06_zero_and_fsdp.py"""

import copy
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def main() -> None:
    # Each process takes a GPU of its own if the machine has enough of them, and computes on the CPU if not.
    device = "cuda" if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]) else "cpu"
    mesh = dist.init_device_mesh(device, (int(os.environ["WORLD_SIZE"]),), mesh_dim_names=("dp",))

    # All ranks draw the same weights; each keeps a whole model too, and optimizers of both, so that it can compare.
    torch.manual_seed(0)
    blocks = [nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True) for _ in range(3)]
    whole = nn.Sequential(nn.Embedding(64, 32), *blocks, nn.Linear(32, 64, bias=False)).to(device)
    model, alone = copy.deepcopy(whole), torch.optim.AdamW(whole.parameters(), lr=0.003)

    # Each block is a unit, the root has the rest; they compute in bfloat16, and keep and add up numbers in float32.
    for module in (*model[1:4], model):
        fully_shard(module, mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    adamw = torch.optim.AdamW(model.parameters(), lr=0.003)  # made after sharding, of the pieces

    # Gradients of four micro-batches add up, and only the last lets ranks average them; then all are clipped as one.
    def step(network: nn.Module, optimizer: torch.optim.Optimizer, batches: torch.Tensor) -> torch.Tensor:
        for number, (x, y) in enumerate(batches):
            model.set_requires_gradient_sync(number == 3)
            nn.functional.cross_entropy(network(x).float().flatten(0, 1), y.flatten()).div(4).backward()
        norm = nn.utils.clip_grad_norm_(network.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        return norm.full_tensor() if network is model else norm

    # In every step the gradients are as long as one device's of all rows, as nearly as bfloat16 can say.
    batches = torch.randint(64, (4, 2, 4 * mesh.size(), 8)).to(device)
    mine = batches.chunk(mesh.size(), dim=2)[mesh.get_rank()]
    for _ in range(3):
        torch.testing.assert_close(norm := step(model, adamw, mine), step(whole, alone, batches), rtol=0.02, atol=0)

    # Every rank writes its own pieces, which any number of ranks can read; after loading, training goes on the same.
    everything, folder = {"model": model, "optimizer": adamw}, f"checkpoint-{os.environ['TORCHELASTIC_RUN_ID']}"
    dcp.save(everything, checkpoint_id=folder)
    first = [step(model, adamw, mine) for _ in range(2)]
    dcp.load(everything, checkpoint_id=folder)
    assert first == [step(model, adamw, mine) for _ in range(2)]
    if mesh.get_rank() == 0:
        print(f"{mesh.size()} ranks agree: gradients of length {norm:.4f}, as on one device; see {folder}", flush=True)
    dist.barrier()  # who leaves first would cut the connections of those who still work
    dist.destroy_process_group()
    os._exit(0)  # DTensor keeps gloo's threads alive, and one that frees a tensor while Python ends would abort it


if __name__ == "__main__":
    main()
