"""Recompute by PyTorch's own API, to use and to compare with `verify.memory.recompute_layers`."""

from __future__ import annotations

from functools import partial

from torch.utils.checkpoint import checkpoint

from course_lib.models.decoder import Decoder


def torch_recompute_layers(model: Decoder) -> None:
    """Let every layer keep its input alone: a function is wrapped, so that all parameters keep their names."""
    for layer in model.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
