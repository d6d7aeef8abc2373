"""10.11: the run that is asked for, on one device with a memory for each rank; and what mistakes make of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.checks.module_10.top_k import TopK

_SIZES = (6, 16, 16, 4)  # inputs, inside, classes
_FIRST_BUCKET = 4  # so many parameters it has, counted from the last one, once DDP has filled its buckets anew
Weights = dict[str, Tensor]


def make_model() -> nn.Module:
    """The model of the learner's file."""
    layers = [nn.Linear(*pair) for pair in zip(_SIZES, _SIZES[1:], strict=False)]
    return nn.Sequential(layers[0], nn.GELU(), layers[1], nn.GELU(), layers[2]).double()


def make_task(steps: int, stop: int, one_in: int, source: int) -> dict[str, Any]:
    """Weights, a batch of eight rows for each step, and what is trained how."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(source)
        weights = make_model().state_dict()
        batches = [(torch.randn(8, _SIZES[0]).double(), torch.randint(_SIZES[-1], (8,))) for _ in range(steps)]
    return {"weights": weights, "batches": batches, "stop": stop, "one_in": one_in, "rate": 0.1, "momentum": 0.9}


@dataclass(kw_only=True)
class _State:
    """What a run has besides its weights: momentum, and of each rank what it keeps."""

    boxes: list[TopK]
    momentum: Weights = field(default_factory=dict)

    def restarted(self, mistake: str) -> _State:
        """As it comes back after a stop."""
        if mistake == "lost":
            for box in self.boxes:
                box.kept = {}
        if mistake == "rank 0":
            for box in self.boxes[1:]:
                box.kept = {name: one.clone() for name, one in self.boxes[0].kept.items()}
        if mistake == "momentum":
            self.momentum = {}
        return self

    def filled_anew(self, mistake: str) -> None:
        """What becomes of memories by bucket once DDP has filled its buckets anew, after the first step."""
        for box in self.boxes:
            if mistake == "by size":
                box.kept = {}
            if mistake in ("by place", "cut"):
                box.kept = _moved(box.kept, first_bucket_only=mistake == "cut")


def _moved(kept: Weights, *, first_bucket_only: bool) -> Weights:
    """What was kept number by number in the first order, read in the order from then on: from the last parameter."""
    order = [name for name, _ in make_model().named_parameters()]
    flat = torch.cat([kept[name].flatten() for name in order])
    parts = flat.split([kept[name].numel() for name in reversed(order)])
    moved = {name: part.view(kept[name].shape) for name, part in zip(reversed(order), parts, strict=True)}
    lost = order[:-_FIRST_BUCKET] if first_bucket_only else []
    return moved | {name: torch.zeros_like(moved[name]) for name in lost}


def run(task: Mapping[str, Any], ranks: int, *, mistake: str = "") -> Weights:
    """The weights at the end, of ranks that stop once, or do not: that makes no difference if nothing is wrong."""
    model = make_model()
    model.load_state_dict(task["weights"])
    state = _State(boxes=[TopK(task["one_in"], mistake) for _ in range(ranks)])
    for step, batch in enumerate(task["batches"]):
        if step == task["stop"]:
            state = state.restarted(mistake)
        if step == 1:
            state.filled_anew(mistake)
        gradients = _exchanged(model, batch, state, mistake)
        with torch.no_grad():
            for name, one in model.named_parameters():
                before = state.momentum.get(name)
                state.momentum[name] = gradients[name] + (0 if before is None else task["momentum"] * before)
                one.sub_(task["rate"] * state.momentum[name])
    return {name: one.detach() for name, one in model.named_parameters()}


def _exchanged(model: nn.Module, batch: tuple[Tensor, Tensor], state: _State, mistake: str) -> Weights:
    """The mean of all ranks' messages, by name."""
    ranks, found = len(state.boxes), {}
    parts = zip(*(one.tensor_split(ranks) for one in batch), strict=True)
    of_ranks = [_gradients(model, x, y) for x, y in parts]
    for name in of_ranks[0]:
        theirs = [one[name] for one in of_ranks]
        if mistake == "everything":
            found[name] = torch.stack(theirs).mean(0)
            continue
        messages = [box.send(name, gradient) for box, gradient in zip(state.boxes, theirs, strict=True)]
        found[name] = state.boxes[0].mean(messages, theirs[0].shape)
    return found


def _gradients(model: nn.Module, x: Tensor, y: Tensor) -> Weights:
    names = [name for name, _ in model.named_parameters()]
    loss = F.cross_entropy(model(x), y)
    return dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))


def sent_bytes(task: Mapping[str, Any], *, value: int, place: int) -> int:
    """What a rank sends in a step: of each parameter so many values, with their places."""
    numbers = sum(-(-one.numel() // task["one_in"]) for one in task["weights"].values())
    return numbers * (value + place)
