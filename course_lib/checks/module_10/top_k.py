"""Top-k with a memory, as the checks know it: right, or with one mistake in it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Message = tuple[Tensor, Tensor]  # values, and their places


def largest_first(x: Tensor, k: int) -> Tensor:
    """Places of the k largest numbers of a flat tensor, signs aside; of equal ones those that stand first."""
    return x.abs().sort(descending=True, stable=True).indices[:k]


class TopK:
    """Send one number in `one_in`, rounded up, and keep the others for later, by name."""

    def __init__(self, one_in: int, mistake: str = "") -> None:
        self.one_in, self.mistake = one_in, mistake
        self.kept: dict[str, Tensor] = {}

    def send(self, name: str, gradient: Tensor) -> Message:
        """Values and places of what is sent; the rest is kept."""
        key = str(tuple(gradient.shape)) if self.mistake == "by shape" else name
        before = self.kept.get(key, torch.zeros_like(gradient))
        due = gradient + before
        places = self._places(gradient, due)
        sent = torch.zeros_like(due).view(-1)
        sent[places] = due.flatten()[places]
        if self.mistake in ("added after", "gradient alone", "twice", "in a row"):
            sent = self._chosen_apart(gradient.flatten(), before.flatten())
            places = sent.nonzero().flatten()
        self.kept[key] = self._left(gradient, due, sent.view(due.shape))
        if self.mistake == "by shape":
            self.kept[name] = self.kept[key]
        return sent[places], places.to(torch.int32)

    def _chosen_apart(self, gradient: Tensor, before: Tensor) -> Tensor:
        """What is sent if the gradient's largest numbers are chosen without what was kept before."""
        chosen = self._largest(gradient)
        if self.mistake == "gradient alone":
            return chosen
        if self.mistake == "in a row":
            return self._largest(chosen + before)
        return chosen + (self._largest(before) if self.mistake == "twice" else before)

    def _largest(self, x: Tensor) -> Tensor:
        """A flat tensor, with 0 in the place of all but its largest numbers."""
        places = largest_first(x, -(-len(x) // self.one_in))
        return torch.zeros_like(x).index_copy(0, places, x[places])

    def _places(self, gradient: Tensor, due: Tensor) -> Tensor:
        x = (gradient if self.mistake == "by gradient" else due).flatten()
        k = -(-len(x) // self.one_in)
        if self.mistake == "down":
            k = max(1, len(x) // self.one_in)
        if self.mistake == "nearest":
            k = max(1, round(len(x) / self.one_in))
        if self.mistake == "signed":
            return x.sort(descending=True, stable=True).indices[:k]
        if self.mistake == "smallest":
            return x.abs().sort(stable=True).indices[:k]
        if self.mistake == "last":
            return len(x) - 1 - largest_first(x.flip(0), k)
        return largest_first(x, k)

    def _left(self, gradient: Tensor, due: Tensor, sent: Tensor) -> Tensor:
        return {
            "forgets": torch.zeros_like(due),
            "last only": torch.where(sent != 0, 0.0, gradient),
            "all": due,
            "sign": sent - due,
        }.get(self.mistake, due - sent)

    def mean(self, messages: Sequence[Message], shape: Sequence[int]) -> Tensor:
        """What all ranks' messages come to: a mean over the ranks, where not everybody has sent everything."""
        values, places = (torch.cat(part) for part in zip(*messages, strict=True))
        places = places.long()
        total = values.new_zeros(torch.Size(shape).numel())
        if self.mistake == "written":
            for some, theirs in messages:
                total[theirs.long()] = some
        else:
            total.index_add_(0, places, values)
        if self.mistake == "by senders":
            total /= torch.bincount(places, minlength=len(total)).clamp(min=1)
        elif self.mistake != "sum":
            total /= len(messages)
        return total.view(torch.Size(shape))
