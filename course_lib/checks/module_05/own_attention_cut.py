"""What 05.12 must give: the block cut over ranks, in one process; and what each rank's share alone gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from course_lib.checks.kit.script import Start

_HEADS, _DIM, WIDTH = 8, 3, 10  # the heads' numbers side by side are no square of the width
_BATCH, _LENGTH = 2, 5

Parts = dict[str, Tensor]


def make_task(case: Start, seed: int) -> dict[str, Any]:
    """Whole weights, an input and the gradient of the output."""
    kv_heads = int(case.look)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1009 * seed + 47)
        shapes = {"q": (_HEADS * _DIM, WIDTH), "k": (kv_heads * _DIM, WIDTH), "v": (kv_heads * _DIM, WIDTH)}
        shapes |= {"o": (WIDTH, _HEADS * _DIM)}
        weights = {"norm": 1 + torch.randn(WIDTH).double() / 4}
        weights |= {name: torch.randn(shape).double() / 2 for name, shape in shapes.items()}
        x, gradient = torch.randn(2, _BATCH, _LENGTH, WIDTH).double().unbind()
    return {"weights": weights, "x": x, "gradient": gradient, "heads": _HEADS, "kv_heads": kv_heads, "dim": _DIM}


def cut(weights: Parts, rank: int, ranks: int, kv_heads: int) -> Parts:
    """What a rank holds: its heads' rows and columns, and the rows of the heads of keys and values that they read."""
    own, group = _HEADS // ranks, _HEADS // kv_heads
    heads = slice(rank * own * _DIM, (rank + 1) * own * _DIM)
    first, last = rank * own // group, ((rank + 1) * own - 1) // group
    shared = slice(first * _DIM, (last + 1) * _DIM)
    rows = {"norm": slice(None), "q": heads, "k": shared, "v": shared}
    return {name: weights[name][part] for name, part in rows.items()} | {"o": weights["o"][:, heads]}


def share(x: Tensor, parts: Parts, *, causal: bool = True, scale: float | None = None, cyclic: bool = False) -> Tensor:
    """A rank's share of the sum that attention adds to its input."""
    read = F.rms_norm(x, (WIDTH,), parts["norm"])
    q, k, v = ((read @ parts[name].T).unflatten(-1, (-1, _DIM)).transpose(1, 2) for name in "qkv")
    times = q.shape[1] // k.shape[1]
    k, v = (one.repeat(1, times, 1, 1) if cyclic else one.repeat_interleave(times, 1) for one in (k, v))
    seen = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
    return seen.transpose(1, 2).flatten(2) @ parts["o"].T


def on_ranks(task: dict[str, Any], ranks: int) -> tuple[Tensor, list[Parts], list[Parts]]:
    """The output; each rank's gradients as they must be; and those that its own share alone gives."""
    x, weights, kv_heads = task["x"], task["weights"], task["kv_heads"]
    own = [cut(weights, rank, ranks, kv_heads) | {"x": x} for rank in range(ranks)]
    held = [{name: one.clone().requires_grad_() for name, one in parts.items()} for parts in own]
    output = x + sum(share(parts["x"], parts) for parts in held)
    output.backward(task["gradient"])
    alone = [{name: one.grad for name, one in parts.items() if one.grad is not None} for parts in held]
    whole = [dict(gradients) for gradients in alone]
    for rank, gradients in enumerate(whole):
        gradients["x"] = task["gradient"] + sum(other["x"] for other in alone)
        gradients["norm"] = sum((other["norm"] for other in alone), torch.zeros(WIDTH))
        sharing = max(ranks // kv_heads, 1)
        first = rank // sharing * sharing
        for name in "kv":
            gradients[name] = sum((alone[other][name] for other in range(first, first + sharing)), torch.zeros(()))
    return output.detach(), whole, alone
