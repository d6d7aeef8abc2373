"""The trainer that is right: one process, nothing distributed. python one_device.py FOLDER"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, CLASSES, MICRO_BATCHES = 8, 5, 2


class Residual(nn.Module):
    """What a transformer's block is without its attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(F.gelu(self.up(self.norm(x))))
        return y


def new_model(frozen: list[str]) -> nn.Module:
    """Two blocks; what is frozen keeps its weights."""
    model = nn.Sequential(nn.Linear(6, WIDTH), Residual(), Residual(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    return model.double()


def learn_from(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Backward of the mean loss over all rows of the batch, in micro-batches; returns that loss."""
    total = torch.zeros((), dtype=torch.float64)
    for rows, targets in zip(x.tensor_split(MICRO_BATCHES), y.tensor_split(MICRO_BATCHES), strict=True):
        loss = F.cross_entropy(model(rows), targets, reduction="sum") / len(x)
        loss.backward()
        total += loss.detach()
    return total


def main(folder: Path) -> None:
    """Train on the folder's task; its result and the state to go on from are saved there."""
    task = torch.load(folder / "task.pt")
    model = new_model(task["frozen"])
    model.load_state_dict(task["weights"])
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = getattr(torch.optim, task["optimizer"])(trained, **task["options"])

    # Where a run before this one stopped, this one goes on.
    if (folder / "state.pt").exists():
        state = torch.load(folder / "state.pt")
        model.load_state_dict(state["weights"])
        optimizer.load_state_dict(state["optimizer"])

    losses, norms = [], []
    for x, y in task["batches"]:
        optimizer.zero_grad()
        losses.append(learn_from(model, x, y).item())
        norms.append(nn.utils.clip_grad_norm_(trained, task["clip"]).item())
        optimizer.step()

    torch.save({"weights": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.pt")
    torch.save({"weights": model.state_dict(), "losses": losses, "norms": norms}, folder / "answer.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
