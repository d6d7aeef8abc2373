"""What autograd keeps for backward in a process, counted by default hooks of saved tensors: its most at one time.

Each storage is counted once, however many operations have saved a view of it. Weights are among them; of a stage they
are counted once, however many micro-batches are under way. What a script keeps on its own, autograd does not know.
`torch.utils.checkpoint` has its own hooks, which take the place of these: what they throw away is not counted.

With hooks, PyTorch does not notice that a saved tensor is changed in place. So they are set only where they are needed.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


class Saved:
    """The bytes that are kept now, and the most that were."""

    def __init__(self) -> None:
        self.most = 0
        self._now = 0
        self._uses: Counter[int] = Counter()  # by storage

    def hooks(self) -> saved_tensors_hooks:
        """A context in which it counts."""
        return saved_tensors_hooks(lambda tensor: _Kept(tensor, self), _Kept.give)

    def add(self, storage: torch.UntypedStorage, number: int) -> None:
        """One use more or less of a storage."""
        key = storage.data_ptr()
        before = self._uses[key]
        self._uses[key] += number
        self._now += storage.nbytes() * ((before + number > 0) - (before > 0))
        self.most = max(self.most, self._now)


class _Kept:
    """A saved tensor, which tells when it is gone."""

    def __init__(self, tensor: Tensor, book: Saved) -> None:
        self._tensor, self._book = tensor.detach(), book  # itself, it might know the graph that keeps it
        book.add(tensor.untyped_storage(), 1)

    def give(self) -> Tensor:
        return self._tensor

    def __del__(self) -> None:
        self._book.add(self._tensor.untyped_storage(), -1)
