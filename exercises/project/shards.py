"""ZeRO-1 by hand: each process has states for its part. torchrun --nproc-per-node 4 shards.py FOLDER"""

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


def padded_flat(tensors):
    """All numbers in one row, each tensor's in their own order; zeros at its end, so that each process gets as many."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    return F.pad(flat, (0, -len(flat) % dist.get_world_size()))


def own_part(flat):
    return flat.chunk(dist.get_world_size())[dist.get_rank()]


def summed_part(trained):
    """Of the whole batch's gradient, the part that this process steps."""
    part = torch.empty_like(own_part(padded_flat(trained)))
    gradients = padded_flat([p.grad for p in trained])
    dist.reduce_scatter(part, list(gradients.chunk(dist.get_world_size())))
    return part


def clip(part, most):
    """Scale this part by the norm of the whole gradient; returns that norm."""
    square = part.square().sum()
    dist.all_reduce(square)
    norm = square.sqrt()
    part.mul_((most / (norm + 1e-6)).clamp(max=1.0))
    return norm


def share(part, trained):
    """Every process gets everybody's new weights."""
    flat = torch.empty(dist.get_world_size() * len(part), dtype=part.dtype)
    dist.all_gather(list(flat.chunk(dist.get_world_size())), part.detach())  # into pieces of flat
    sizes = [p.numel() for p in trained]
    with torch.no_grad():
        for p, numbers in zip(trained, flat[: sum(sizes)].split(sizes)):
            p.copy_(numbers.view_as(p))


def save(folder, part, optimizer):
    """Each process writes what nobody else has."""
    state = {"part": part.detach(), "optimizer": optimizer.state_dict()}
    torch.save(state, folder / f"state-{dist.get_rank()}.pt")


def load(folder, part, optimizer, trained):
    """Where a run before this one stopped, this one goes on."""
    path = folder / f"state-{dist.get_rank()}.pt"
    if path.exists():
        state = torch.load(path)
        part.data.copy_(state["part"])
        optimizer.load_state_dict(state["optimizer"])
        share(part, trained)


def main(folder):
    dist.init_process_group("gloo")
    task = torch.load(folder / "task.pt")
    model = new_model(task["frozen"])
    model.load_state_dict(task["weights"])
    trained = [p for p in model.parameters() if p.requires_grad]
    part = nn.Parameter(own_part(padded_flat(trained)).detach().clone())
    optimizer = getattr(torch.optim, task["optimizer"])([part], **task["options"])
    load(folder, part, optimizer, trained)

    losses, norms = [], []
    for x, y in task["batches"]:
        model.zero_grad()
        losses.append(learn_from(model, x, y).item())
        part.grad = summed_part(trained)
        norms.append(clip(part.grad, task["clip"]).item())
        optimizer.step()
        share(part, trained)

    save(folder, part, optimizer)
    if dist.get_rank() == 0:
        torch.save({"weights": model.state_dict(), "losses": losses, "norms": norms}, folder / "answer.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
