"""Recompute by PyTorch's own API, to use and to compare with `savers.checkpointing`."""

from __future__ import annotations

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from course_lib.parallel.sharding.wrapping import blocks_of


def torch_recompute_layers(model: nn.Module) -> None:
    """Let every layer keep its input alone: a function is wrapped, so that all parameters keep their names.

    The model is a decoder, or one of `transformers`.
    """
    for layer in map(model.get_submodule, blocks_of(model)):
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
