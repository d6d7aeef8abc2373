"""Errors of adapters on ranks. What is trained is new and small, and those who share the model may not know of it."""

from __future__ import annotations

import torch
from torch import nn

from course_lib.parallel.tensors.cutting import AXIS
from course_lib.savers.adapted import Adapted
from course_lib.savers.lora import LoRALinear
from course_lib.training.setup import Setup
from course_lib.verify.museum.bug import PULLS, Bug, Issue
from course_lib.verify.museum.data_parallel import nothing
from course_lib.verify.museum.seams import hook


def own_adapters(setup: Setup) -> None:
    """Adapters come when the model has been shared out: each rank draws its own, and nobody averages its gradients.

    The frozen weights, which everybody was told of, have no gradients.
    """
    hook(setup, nothing)
    generator = torch.Generator().manual_seed(setup.local.rank("dp"))
    for module in setup.model.modules():
        if isinstance(module, LoRALinear) and setup.local.rank("dp"):
            nn.init.kaiming_uniform_(module.A, a=5**0.5, generator=generator)


def adapter_not_summed(setup: Setup) -> None:
    """The matrix of an adapter that every rank has whole learns from this rank's positions alone."""
    layout = setup.local.layout
    adapted = [name for name, module in setup.skeleton.named_modules() if isinstance(module, Adapted)]
    for name in layout.trained:
        if name.rpartition(".")[0] in adapted and AXIS not in layout.places[name].shard:
            layout.write(name, partial=frozenset())


_EXHIBITS = (
    Bug(
        name="own_adapters",
        title="Every rank trains its own adapter, and the first one's is saved",
        technique=own_adapters,
        where=Issue(
            title="Add Expert parallel, comment of 15 September 2026",
            link=PULLS.format("huggingface/transformers", 48792),
        ),
        first_rung="gradients",
        looks="B is born 0, so that every output is right; each rank learns from its rows, and the loss falls",
    ),
    Bug(
        name="adapter_not_summed",
        title="Under sequence parallelism the whole matrix of an adapter is not added up over the ranks",
        technique=adapter_not_summed,
        where=Issue(
            title="LoRA + TP>1 + sequence_parallel: sum grads of the replicated LoRA factor over the TP group",
            link=PULLS.format("modelscope/mcore-bridge", 173),
        ),
        first_rung="gradients",
        looks="each rank's copy learns from its positions and drifts apart; rank 0's is the one that is saved",
    ),
)
ADAPTER_BUGS = {bug.name: bug for bug in _EXHIBITS}
