"""The loss in pieces: of the logits, of which there is one for every token and word, only a piece exists at a time.

A model whose layers are recomputed keeps nothing as large as its logits and their gradients. But the loss is a sum over
tokens, so it may be made of some tokens at a time: their logits, their loss, and the logits are gone. Backward makes
each piece's logits once more, as for any recomputed layer.
Source: Wijmans et al. 2024, Cut Your Losses in Large-Vocabulary Language Models, section 3 (which goes further).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from course_lib.errors import four_parts
from course_lib.savers.checkpointing import checkpoint_layers

Loss = Callable[[Tensor, Tensor], Tensor]  # of logits and targets, summed over the targets
Way = Callable[[Tensor], Tensor]


class ChunkedLoss(nn.Module):
    """Takes a model's `head` over: while gradients are wanted the model gives what the head reads, and this the loss.

    `loss` is that of one piece. Where ranks share the head, what it does first, for all tokens together, is `enter`,
    and the rest, for some, `logits`. Without gradients the model gives its logits as before.

    Cost: in bytes `costs.model.checkpointing`; in time the head's product a second time.
    Shapes: (B, S, H), targets (B, S) int64 -> ().
    Raises: ValueError for less than one piece.
    """

    def __init__(
        self, head: nn.Module, pieces: int, loss: Loss, *, enter: Way | None = None, logits: Way | None = None
    ) -> None:
        super().__init__()
        if pieces < 1:
            rule, way_out = "a loss is made of pieces", "give pieces >= 1"
            raise ValueError(four_parts("ChunkedLoss", f"pieces={pieces}", rule, way_out))
        self.pieces, self.enter = pieces, enter
        self.piece = _Piece(head, loss, logits or head.forward)
        checkpoint_layers([self.piece])

    def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The sum over all targets. Pieces are of equally many tokens, so that the largest is as small as can be."""
        if self.enter is not None:
            hidden = self.enter(hidden)
        rows = hidden.flatten(0, -2)  # (T, H), T = B S
        parts = zip(rows.chunk(self.pieces), targets.flatten().chunk(self.pieces), strict=True)
        return torch.stack([self.piece(some, their) for some, their in parts]).sum()


class _Piece(nn.Module):
    """Head and loss of some tokens."""

    def __init__(self, head: nn.Module, loss: Loss, logits: Way) -> None:
        super().__init__()
        self.head, self.loss, self.logits, self.plain = head, loss, logits, head.forward
        self.is_here = False  # whether it is the piece that calls the head, and not the model
        head.forward = self._called

    def _called(self, hidden: Tensor) -> Tensor:
        if self.is_here:
            return self.logits(hidden)
        return hidden if torch.is_grad_enabled() else self.plain(hidden)

    def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
        self.is_here = True
        try:
            logits = self.head(hidden)  # with its hooks, which may gather its weights
        finally:
            self.is_here = False
        return self.loss(logits, targets)
