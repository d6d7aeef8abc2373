"""Attention in tiles: the scores, of which there is one for every pair of positions, never exist together.

Some queries meet some keys at a time. What they found is merged into what was found before by the online softmax
(`savers.attention_blocks`), and the tile of scores is gone. Backward keeps queries, keys, values, the output and one
number for each query, `lse`, and with it makes each tile's weights once more. It is what a flash kernel does, tile by
tile in the GPU's fast memory; the bytes are the same here, the speed is not.
Source: Dao et al. 2022, FlashAttention, section 3.1 and appendix B.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from course_lib.errors import four_parts
from course_lib.savers.attention_blocks import block, block_backward, merge_

_TILE = 128  # positions


def tiled_attention(q: Tensor, k: Tensor, v: Tensor, *, tile: int = _TILE) -> Tensor:
    """To each position a weighted mean of the values up to its own; `tile` positions at a time.

    Shapes: q (B, A, S, D), k and v (B, K, S, D) -> (B, A, S, D). The tile need not divide S.
    Cost: B A tile^2 scores at a time, where `attention_with_scores` has B A S^2.
    Raises: ValueError for a tile without positions.
    """
    if tile < 1:
        rule, way_out = "a tile has positions", f"give tile >= 1, as {_TILE}"
        raise ValueError(four_parts("tiled_attention", f"tile={tile}", rule, way_out))
    result: Tensor = _Tiled.apply(q, k, v, tile)
    return result


def attention_with_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same as it stands in the paper: all scores, their softmax, and that times the values.

    Shapes: as `tiled_attention`.
    """
    keys, values = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))  # (B, A, S, D)
    scores = q @ keys.transpose(-1, -2) / q.shape[-1] ** 0.5  # (B, A, S, S)
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, -torch.inf).softmax(-1) @ values


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, tile: int) -> Tensor:
        exact = torch.promote_types(q.dtype, torch.float32)  # what is added up many times must not be rounded as often
        grouped = q.unflatten(1, (k.shape[1], -1))  # (B, K, G, S, D)
        out = torch.empty_like(grouped)
        lse = grouped.new_empty(grouped.shape[:-1], dtype=exact)
        for rows in _tiles(q.shape[-2], tile):
            queries = grouped[..., rows, :].to(exact)
            found, found_lse = torch.zeros_like(queries), torch.full_like(queries[..., 0], -torch.inf)
            for columns in _tiles(rows.stop, tile):  # keys after the queries are seen by none of them
                keys, values = (x[..., columns, :].to(exact) for x in (k, v))
                merge_(found, found_lse, *block(queries, keys, values, diagonal=rows == columns))
            out[..., rows, :], lse[..., rows] = found, found_lse
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.tile = tile
        return out.flatten(1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, out, lse = ctx.saved_tensors
        grouped, g = (x.unflatten(1, (k.shape[1], -1)) for x in (q, gradient))
        of_q, of_k, of_v = (torch.zeros_like(x, dtype=lse.dtype) for x in (grouped, k, v))
        for rows in _tiles(q.shape[-2], ctx.tile):
            queries, theirs, ends = (x[..., rows, :].to(lse.dtype) for x in (grouped, g, out))
            delta = (theirs * ends).sum(-1)  # what softmax's backward takes away from each weight's gradient
            for columns in _tiles(rows.stop, ctx.tile):
                keys, values = (x[..., columns, :].to(lse.dtype) for x in (k, v))
                parts = (queries, keys, values, theirs, lse[..., rows], delta)
                terms = block_backward(*parts, diagonal=rows == columns)
                of_q[..., rows, :] += terms[0]
                of_k[..., columns, :] += terms[1]
                of_v[..., columns, :] += terms[2]
        return of_q.to(q.dtype).flatten(1, 2), of_k.to(k.dtype), of_v.to(v.dtype), None


def _tiles(length: int, tile: int) -> Iterator[slice]:
    """Positions 0 to `length` in tiles; the last may be smaller."""
    for start in range(0, length, tile):
        yield slice(start, min(start + tile, length))
