"""Data times tensor parallelism by hand, tp = 2. torchrun --nproc-per-node 4 mesh.py FOLDER"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

WIDTH, CLASSES, MICRO_BATCHES, TP = 8, 5, 2, 2


class Enter(torch.autograd.Function):
    """Forward: the same on all ranks of tp. Backward: each of them has a part of the gradient."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Leave(torch.autograd.Function):
    """Forward: each rank of tp has a part of the sum. Backward: they all have the same gradient."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Residual(nn.Module):
    """Of `up` a rank has half of the outputs, of `down` the inputs that belong to them."""

    def __init__(self, tp):
        super().__init__()
        self.tp = tp
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH // TP), nn.Linear(2 * WIDTH // TP, WIDTH)

    def forward(self, x):
        hidden = F.gelu(self.up(Enter.apply(self.norm(x), self.tp)))
        return x + Leave.apply(hidden @ self.down.weight.T, self.tp) + self.down.bias


def cut_dim(name):
    """Along which dimension a weight is cut; None if every rank of tp holds all of it."""
    if ".up." in name:
        return 0
    return 1 if name.endswith("down.weight") else None


def new_model(frozen, tp):
    model = nn.Sequential(
        nn.Linear(6, WIDTH), Residual(tp), Residual(tp), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)
    )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    return model.double()


def make_groups():
    """(dp, tp) of this process: neighbours share a layer, and every second process has the same part of it."""
    ranks = torch.arange(dist.get_world_size()).view(-1, TP)
    tp = [dist.new_group(row.tolist()) for row in ranks]
    dp = [dist.new_group(column.tolist()) for column in ranks.T]
    return dp[dist.get_rank() % TP], tp[dist.get_rank() // TP]


def parts_of(weights, tp):
    """This rank's part of each tensor."""
    rank = dist.get_rank(tp)
    cut = {name: cut_dim(name) for name in weights}
    return {name: w if cut[name] is None else w.chunk(TP, cut[name])[rank].clone() for name, w in weights.items()}


def whole(parts, tp):
    """The tensors from their parts, on every rank."""
    found = {}
    for name, part in parts.items():
        found[name] = part
        if (dim := cut_dim(name)) is not None:
            pieces = [torch.empty_like(part) for _ in range(TP)]
            dist.all_gather(pieces, part.contiguous(), group=tp)
            found[name] = torch.cat(pieces, dim)
    return found


def learn_from(model, x, y, dp):
    """Backward of this replica's share of the batch's mean loss; returns the whole batch's."""
    mine = [part.tensor_split(dist.get_world_size(dp))[dist.get_rank(dp)] for part in (x, y)]
    total = torch.zeros((), dtype=torch.float64)
    for rows, targets in zip(mine[0].tensor_split(MICRO_BATCHES), mine[1].tensor_split(MICRO_BATCHES)):
        loss = F.cross_entropy(model(rows), targets, reduction="sum") / len(x)
        loss.backward()
        total += loss.detach()
    dist.all_reduce(total, group=dp)
    return total


def add_up(model, dp):
    """The gradient of the whole batch: the sum of all replicas' shares, in one message."""
    trained = [p for p in model.parameters() if p.requires_grad]
    flat = torch.cat([p.grad.flatten() for p in trained])
    dist.all_reduce(flat, group=dp)
    for p, gradient in zip(trained, flat.split([p.numel() for p in trained])):
        p.grad.copy_(gradient.view_as(p))


def clip(model, most, tp):
    """Scale by the norm of the whole gradient, in which every number counts once; returns that norm."""
    square = torch.zeros((), dtype=torch.float64)
    for name, p in model.named_parameters():
        if p.requires_grad and cut_dim(name) is not None:
            square += p.grad.square().sum()
    dist.all_reduce(square, group=tp)
    for name, p in model.named_parameters():
        if p.requires_grad and cut_dim(name) is None:
            square += p.grad.square().sum()
    norm = square.sqrt()
    for p in model.parameters():
        if p.requires_grad:
            p.grad.mul_((most / (norm + 1e-6)).clamp(max=1.0))
    return norm


def save(folder, model, optimizer):
    """Each process writes its own part."""
    state = {"weights": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, folder / f"state-{dist.get_rank()}.pt")


def load(folder, model, optimizer):
    """Where a run before this one stopped, this one goes on."""
    path = folder / f"state-{dist.get_rank()}.pt"
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["weights"])
        optimizer.load_state_dict(state["optimizer"])


def main(folder):
    dist.init_process_group("gloo")
    dp, tp = make_groups()
    task = torch.load(folder / "task.pt")
    model = new_model(task["frozen"], tp)
    model.load_state_dict(parts_of(task["weights"], tp))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = getattr(torch.optim, task["optimizer"])(trained, **task["options"])
    load(folder, model, optimizer)

    losses, norms = [], []
    for x, y in task["batches"]:
        optimizer.zero_grad()
        losses.append(learn_from(model, x, y, dp).item())
        add_up(model, dp)
        norms.append(clip(model, task["clip"], tp).item())
        optimizer.step()

    save(folder, model, optimizer)
    weights = whole(model.state_dict(), tp)
    if dist.get_rank() == 0:
        torch.save({"weights": weights, "losses": losses, "norms": norms}, folder / "answer.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
