"""Which kernel PyTorch's attention takes for which arguments, and what it keeps: it says neither.

The same call that never makes the scores makes them all for one more argument. So ask the profiler which operator ran,
and count what autograd kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.gauges.allocated import saved_bytes

_PREFIX = "aten::_scaled_dot_product_"


@dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """One way to call attention, and what came of it."""

    arguments: str
    kernel: str
    kept_bytes: int  # for backward, queries, keys and values included


def attention_calls(*, heads: int, sequence: int, head_size: int) -> Iterator[AttentionCall]:
    """The usual arguments, one after the other, on the device that is the default; one sequence in fp32.

    Cost: scores of all pairs, for calls that make them: heads x sequence^2 numbers, several times.
    """
    S = sequence
    causal = torch.ones(S, S).tril().bool()
    ways: dict[str, dict[str, Any]] = {
        "is_causal=True": {"is_causal": True},
        "attn_mask of bool": {"attn_mask": causal},
        "attn_mask of float": {"attn_mask": torch.zeros(S, S).masked_fill(~causal, -torch.inf)},
        "attn_mask that needs a gradient": {"attn_mask": torch.zeros(S, S, requires_grad=True)},
        "is_causal=True, dropout_p=0.1": {"is_causal": True, "dropout_p": 0.1},
    }
    for arguments, given in ways.items():
        q, k, v = (torch.randn(1, heads, S, head_size, requires_grad=True) for _ in range(3))
        kernel = _operator(q, k, v, given)
        kept = saved_bytes(nn.Module(), partial(F.scaled_dot_product_attention, q, k, v, **given))
        yield AttentionCall(arguments=arguments, kernel=kernel, kept_bytes=kept)


def _operator(q: Tensor, k: Tensor, v: Tensor, given: dict[str, Any]) -> str:
    """The name of the kernel that ran, without what all have in common."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        F.scaled_dot_product_attention(q, k, v, **given)
    found = [event.key for event in profiler.key_averages() if event.key.startswith(_PREFIX)]
    return found[0].removeprefix(_PREFIX)
