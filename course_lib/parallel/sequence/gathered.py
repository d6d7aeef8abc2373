"""Attention over a shared sequence, first way: every rank gathers all keys and values.

Its queries stay, so that each rank computes the rows of attention that belong to its positions. Source: Llama Team
2024, section 3.3.2, which gathers because keys and values are small beside queries where several heads share them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.parallel.sequence.shared import SharedSequence
from course_lib.parallel.tensors.conjugate import Operators

SEQUENCE = 3  # of keys and values side by side, (2, B, K, S, D)


def gathered_attention(q: Tensor, k: Tensor, v: Tensor, shared: SharedSequence) -> Tensor:
    """Causal attention of this rank's queries to all keys.

    Shapes: q (B, A, S/p, D), k and v (B, K, S/p, D) -> (B, A, S/p, D).
    Cost: `costs.comm.context`: an all-gather of keys and values forward, a reduce-scatter of their gradients backward;
    between the two each rank has K and V of the whole sequence.
    """
    operators, cut = Operators(group=shared.group), shared.cut
    # What all ranks read gets a term of its gradient on each: the conjugate of this gather is a reduce-scatter.
    both = operators.gather_sequence(torch.stack([k, v]), SEQUENCE, length=cut.length)
    mine = shared.positions(q.device)
    theirs = torch.tensor(cut.all_positions(), device=q.device)  # keys lie as they came, the mask knows where they are
    shared.spend(cut.work(shared.rank), "attention")
    seen = mine[:, None] >= theirs
    if shared.documents is not None:
        seen = (seen & shared.documents.same(mine, theirs))[:, None]
    return F.scaled_dot_product_attention(q, both[0], both[1], attn_mask=seen, enable_gqa=True)
