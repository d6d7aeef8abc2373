"""Attention in tiles equals all scores at once, at any length, and keeps as much as a flash kernel."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib.gauges.allocated import peak_bytes, saved_bytes
from course_lib.gauges.attention_kernels import attention_calls
from course_lib.models.decoder import causal
from course_lib.savers.tiled_attention import attention_with_scores, tiled_attention


def inputs(*, heads=4, kv_heads=4, sequence=50, head_size=8, dtype=torch.float64):
    """q, k, v and a gradient of the output."""
    torch.manual_seed(0)
    shapes = [(2, heads, sequence, head_size), *[(2, kv_heads, sequence, head_size)] * 2]
    q, k, v = (torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes)
    return q, k, v, torch.randn(shapes[0], dtype=dtype)


def all_of(attention, q, k, v, gradient):
    """The output, and the gradients of what it was made of."""
    out = attention(q, k, v)
    return out, *torch.autograd.grad(out, (q, k, v), gradient)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("tile", [1, 16, 33, 50, 300])
def test_it_equals_the_formula(kv_heads, tile):
    q, k, v, gradient = inputs(kv_heads=kv_heads)
    wanted = all_of(attention_with_scores, q, k, v, gradient)
    found = all_of(partial(tiled_attention, tile=tile), q, k, v, gradient)
    assert max((a - b).abs().max().item() for a, b in zip(found, wanted, strict=True)) < 1e-13
    assert (
        max((a - b).abs().max().item() for a, b in zip(all_of(causal, q, k, v, gradient), wanted, strict=True)) < 1e-13
    )


def test_in_bf16_sums_are_exact():
    q, k, v, gradient = inputs(sequence=400, dtype=torch.bfloat16)
    wanted = all_of(
        attention_with_scores, *(x.detach().double().requires_grad_() for x in (q, k, v)), gradient.double()
    )
    found = all_of(partial(tiled_attention, tile=8), q, k, v, gradient)
    assert all(x.dtype == torch.bfloat16 for x in found)
    assert max(((a - b).norm() / b.norm()).item() for a, b in zip(found, wanted, strict=True)) < 1 / 128


def test_what_is_kept_and_what_is_alive():
    """Queries, keys, values and output are four tensors, `lse` a number for each row."""
    q, k, v, gradient = inputs(sequence=2048, head_size=32, dtype=torch.float32)
    four, rows, scores = 4 * q.nbytes, q.nbytes // 32, 2 * 4 * 2048**2 * 4
    for attention in (tiled_attention, partial(F.scaled_dot_product_attention, is_causal=True)):
        assert saved_bytes(nn.Module(), partial(attention, q, k, v)) == four + rows
    tiled, naive = (
        peak_bytes(lambda way=way: list(all_of(way, q, k, v, gradient)))
        for way in (tiled_attention, attention_with_scores)
    )
    assert naive > 3 * scores and tiled < four + rows + scores / 16


def test_a_tile_has_positions():
    with pytest.raises(ValueError, match=r"tiled_attention: tile=0; a tile has positions; give tile >= 1, as 128"):
        tiled_attention(*inputs()[:3], tile=0)


def test_arguments_that_leave_the_flash_kernel():
    calls = list(attention_calls(heads=4, sequence=256, head_size=32))
    numbers, rows, mask = 4 * 256 * 32 * 4, 4 * 256 * 4, 256 * 256 * 4
    flash = {one.arguments: one.kept_bytes for one in calls if one.kernel == "flash_attention_for_cpu"}
    kept = 4 * numbers + rows
    assert flash == {
        "is_causal=True": kept,
        "attn_mask of bool": kept + mask,
        "attn_mask of float": kept + mask,
    }
    others = {one.arguments: one.kept_bytes for one in calls if one.arguments not in flash}
    assert {one.kernel for one in calls} == {"flash_attention_for_cpu", "attention_math"}
    assert len(others) == 2 and min(others.values()) > kept + 3 * mask
