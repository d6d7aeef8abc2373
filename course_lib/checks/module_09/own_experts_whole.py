"""What 09.12 must give: a mixture of experts on one device, and what of it belongs on each rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from course_lib.checks.kit.script import Start

_ROWS, _WIDTH, _K = 13, 6, 2

Parts = dict[str, Tensor]


class Whole(NamedTuple):
    """By rank: what is right, what its own rows alone give, and x's gradient without the experts'; copies of rows."""

    parts: list[Parts]
    alone: list[Parts]
    weights_alone: list[Tensor]
    leaving: list[int]
    coming: list[int]


def make_task(case: Start, seed: int) -> dict[str, Any]:
    """Whole rows and weights; where it is idle, nobody chooses the last expert."""
    experts, _, idle = case.look.partition(" ")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1013 * seed + 61)
        x, gradient = torch.randn(2, _ROWS, _WIDTH).double().unbind()
        router = torch.randn(int(experts), _WIDTH).double()
        weights = torch.randn(int(experts), _WIDTH, _WIDTH).double() / 2
    if idle:
        x[:, 0] = x[:, 0].abs() + 1
        router[-1, 0] -= 30
    return {"x": x, "gradient": gradient, "router": router, "experts": weights, "k": _K}


def mixture(
    x: Tensor,
    router: Tensor,
    experts: Tensor,
    k: int,
    *,
    renormalised: bool = True,
    weighed: bool = True,
    cut_off: bool = False,
) -> Tensor:
    """The layer on one device; `cut_off`: the experts' results have no history."""
    shares, chosen = (x @ router.T).softmax(-1).topk(k)
    if renormalised:
        shares = shares / shares.sum(-1, keepdim=True)
    results = F.silu(torch.einsum("nh,nkhi->nki", x, experts[chosen]))
    if cut_off:
        results = results.detach()
    return (results * shares.unsqueeze(-1)).sum(1) if weighed else results.sum(1)


def _gradients(task: Mapping[str, Any], rows: slice, *, cut_off: bool = False) -> Parts:
    """Output and gradients that some of the rows give."""
    held = {name: task[name].clone().requires_grad_() for name in ("x", "router", "experts")}
    output = mixture(held["x"][rows], held["router"], held["experts"], task["k"], cut_off=cut_off)
    output.backward(task["gradient"][rows])
    found = {name: one.grad if one.grad is not None else torch.zeros_like(one) for name, one in held.items()}
    return found | {"output": output.detach()}


def on_one_device(task: Mapping[str, Any], ranks: int) -> Whole:
    """All that the ranks must have, and some of what they may have instead."""
    rows = [slice(int(one[0]), int(one[-1]) + 1) for one in torch.arange(len(task["x"])).tensor_split(ranks)]
    right = _gradients(task, slice(None))
    mine = [right["experts"].tensor_split(ranks)[rank] for rank in range(ranks)]
    alone = [_gradients(task, one) for one in rows]
    chosen = (task["x"] @ task["router"].T).topk(task["k"]).indices
    owner = torch.cat([part * 0 + r for r, part in enumerate(torch.arange(len(task["router"])).tensor_split(ranks))])
    return Whole(
        parts=[
            {"output": right["output"][one], "x": right["x"][one], "router": right["router"], "experts": mine[rank]}
            for rank, one in enumerate(rows)
        ],
        alone=[own | {"experts": own["experts"].tensor_split(ranks)[rank]} for rank, own in enumerate(alone)],
        weights_alone=[_gradients(task, slice(None), cut_off=True)["x"][one] for one in rows],
        leaving=[chosen[one].numel() for one in rows],
        coming=torch.bincount(owner[chosen].flatten(), minlength=ranks).tolist(),
    )
