"""A causal language model of `transformers` as a plain one: tokens in, logits out."""

from __future__ import annotations

from torch import Tensor, nn


class Logits(nn.Module):
    """What `Trainer` trains of a model of theirs; it keeps no cache of keys and values.

    Shapes: (B, S) int64 -> (B, S, V).
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return logits
