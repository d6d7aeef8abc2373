"""Attention of some queries to some keys, and how two such results become one: the online softmax.

A softmax needs the sum over *all* keys. So each block says, beside its output, the logarithm of the sum that it
divided by (`lse`); with both, two blocks are one weighted mean. Backward starts from the whole's `lse`, so that each
block's weights come out right at once. Source: Milakov & Gimelshein 2018 (online softmax); Dao et al. 2022,
FlashAttention, section 3.1 and appendix B.

Letters: q (B, K, G, S, D), G the queries' heads that share one head of keys; k and v (B, K, T, D).
"""

from __future__ import annotations

import torch
from torch import Tensor


def _scores_of(q: Tensor, k: Tensor, *, diagonal: bool, same: Tensor | None) -> Tensor:
    """Scaled products (B, K, G, S, T); on the diagonal, where both sides have the same positions, the past alone.

    `same` (B, S, T) says which pairs are of one document, where a sequence has several.
    """
    scores = torch.einsum("bkgsd,bktd->bkgst", q, k) / q.shape[-1] ** 0.5
    if diagonal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    return scores if same is None else scores.masked_fill(~same[:, None, None], -torch.inf)


def block(q: Tensor, k: Tensor, v: Tensor, *, diagonal: bool, same: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The output (B, K, G, S, D) if there were no other keys, and `lse` (B, K, G, S): -inf for who sees none here."""
    scores = _scores_of(q, k, diagonal=diagonal, same=same)
    lse = scores.logsumexp(-1)
    weights = (scores - _finite(lse)[..., None]).exp()
    return torch.einsum("bkgst,bktd->bkgsd", weights, v), lse


def merge_(out: Tensor, lse: Tensor, one: Tensor, lse_of_one: Tensor) -> None:
    """Add a block to what has been found so far, in place; before the first one `lse` is -inf."""
    both = torch.logaddexp(lse, lse_of_one)
    out.mul_((lse - _finite(both)).exp()[..., None])
    out.add_(one * (lse_of_one - _finite(both)).exp()[..., None])
    lse.copy_(both)


def _finite(lse: Tensor) -> Tensor:
    """0 for who has seen no key so far: -inf less -inf would be no number, and -inf less 0 is a weight of 0."""
    return lse.masked_fill(lse == -torch.inf, 0.0)


def block_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gradient: Tensor,
    lse: Tensor,
    delta: Tensor,
    *,
    diagonal: bool,
    same: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The block's terms of the gradients of q, k, v; `lse` is that of all keys, `delta` the sum of gradient x out."""
    weights = (
        _scores_of(q, k, diagonal=diagonal, same=same) - lse[..., None]
    ).exp()  # as they are in the whole softmax
    of_v = torch.einsum("bkgst,bkgsd->bktd", weights, gradient)
    of_weights = torch.einsum("bkgsd,bktd->bkgst", gradient, v)
    of_scores = weights * (of_weights - delta[..., None]) / q.shape[-1] ** 0.5
    of_q = torch.einsum("bkgst,bktd->bkgsd", of_scores, k)
    of_k = torch.einsum("bkgst,bkgsd->bktd", of_scores, q)
    return of_q, of_k, of_v
