"""Answers that write into what they were given; ranks import this file by its name, so it is small."""

from __future__ import annotations

from functools import wraps

import torch
from torch import Tensor


def spoil(x):
    """Write into a tensor or a list, or into one that a tuple or a dict holds; whether there was any."""
    if isinstance(x, Tensor) and x.numel():
        with torch.no_grad():
            x.detach().bitwise_not_() if x.dtype == torch.bool else x.detach().add_(1)
        return True
    if isinstance(x, list):
        x.append(x[0] if x else 0)
        return True
    if isinstance(x, dict):
        return any(spoil(one) for one in x.values())
    return isinstance(x, tuple) and any(spoil(one) for one in x)


def spoiling(answer):
    """The answer, which then writes into the first thing that it was given and that can be written into."""

    @wraps(answer)
    def call(*given):
        result = answer(*given)
        any(spoil(x) for x in given)
        return result

    return call
