"""Data parallelism by hand: every process holds the whole model. torchrun --nproc-per-node 4 replicas.py FOLDER"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

WIDTH, CLASSES, MICRO_BATCHES = 8, 5, 2


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def new_model(frozen):
    model = nn.Sequential(nn.Linear(6, WIDTH), Residual(), Residual(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    return model.double()


def take_over(model):
    """Rank 0's weights for everybody, frozen ones too."""
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)


def rows_of(x):
    """The rows of a batch that are this process's own; there may be none."""
    return x.tensor_split(dist.get_world_size())[dist.get_rank()]


def learn_from(model, x, y):
    """Backward of this process's share of the batch's mean loss; returns the whole batch's."""
    total = torch.zeros((), dtype=torch.float64)
    for rows, targets in zip(rows_of(x).tensor_split(MICRO_BATCHES), rows_of(y).tensor_split(MICRO_BATCHES)):
        loss = F.cross_entropy(model(rows), targets, reduction="sum") / len(x)
        loss.backward()
        total += loss.detach()
    dist.all_reduce(total)
    return total


def add_up(trained):
    """The gradient of the whole batch: the sum of all processes' shares, in one message."""
    flat = torch.cat([p.grad.flatten() for p in trained])
    dist.all_reduce(flat)
    for p, gradient in zip(trained, flat.split([p.numel() for p in trained])):
        p.grad.copy_(gradient.view_as(p))


def save(folder, model, optimizer):
    """Replicas are alike, so one of them writes for all."""
    if dist.get_rank() == 0:
        torch.save({"weights": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.pt")


def load(folder, model, optimizer):
    """Where a run before this one stopped, this one goes on."""
    if (folder / "state.pt").exists():
        state = torch.load(folder / "state.pt")
        model.load_state_dict(state["weights"])
        optimizer.load_state_dict(state["optimizer"])


def main(folder):
    dist.init_process_group("gloo")
    task = torch.load(folder / "task.pt")
    torch.manual_seed(dist.get_rank())
    model = new_model(task["frozen"])
    if dist.get_rank() == 0:
        model.load_state_dict(task["weights"])
    take_over(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = getattr(torch.optim, task["optimizer"])(trained, **task["options"])
    load(folder, model, optimizer)

    losses, norms = [], []
    for x, y in task["batches"]:
        optimizer.zero_grad()
        losses.append(learn_from(model, x, y).item())
        add_up(trained)
        norms.append(nn.utils.clip_grad_norm_(trained, task["clip"]).item())
        optimizer.step()

    dist.barrier()  # nobody reads the old state any more
    save(folder, model, optimizer)
    if dist.get_rank() == 0:
        torch.save({"weights": model.state_dict(), "losses": losses, "norms": norms}, folder / "answer.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
