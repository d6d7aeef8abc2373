"""LoRA by hand on several ranks (lesson 11): torchrun --nproc-per-node 4 11_adapters.py"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

WIDTH, LAYERS, RANK, ROWS, STEPS = 32, 3, 4, 16, 5


class Adapted(nn.Module):
    """A frozen map, and beside it two narrow matrices; B is born 0, so nothing changes at first."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.A = nn.Parameter(torch.randn(RANK, WIDTH) / WIDTH)
        self.B = nn.Parameter(torch.zeros(WIDTH, RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.silu(self.base(x) + x @ self.A.T @ self.B.T)


def trained(model: nn.Module, rows: torch.Tensor, goals: torch.Tensor) -> list[torch.Tensor]:
    """The adapters after some steps; only they have states, and only they are worth saving."""
    adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(adapters, lr=1e-2)
    for _ in range(STEPS):
        F.mse_loss(model(rows), goals).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [getattr(one, "full_tensor", lambda one=one: one)().detach() for one in adapters]


def main() -> None:
    device = "cuda" if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]) else "cpu"
    mesh = dist.init_device_mesh(device, (int(os.environ["WORLD_SIZE"]),))
    rank, ranks = mesh.get_rank(), mesh.size()
    assert ROWS % ranks == 0, "all ranks have as many rows"
    torch.manual_seed(0)  # the same model, and the same adapters, on every rank
    models = [nn.Sequential(*(Adapted() for _ in range(LAYERS))).double() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    rows, goals = torch.randn(2, ROWS, WIDTH, dtype=torch.float64).to(device)

    # One device has all rows, and says what is right.
    right = trained(models[0].to(device), rows, goals)

    # The ranks share frozen and trained weights alike, and each reads some of the rows.
    for module in (*models[1].to(device), models[1]):
        fully_shard(module, mesh=mesh)
    found = trained(models[1], rows.chunk(ranks)[rank], goals.chunk(ranks)[rank])
    torch.testing.assert_close(found, right)
    if rank == 0:
        print(f"{ranks} ranks agree with one device: every adapter after {STEPS} steps", flush=True)
    dist.barrier()  # who left first would cut the connections of those who still work
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads still live, and must not meet Python's end


if __name__ == "__main__":
    main()
