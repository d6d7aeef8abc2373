"""Whether a model computes in a lower precision inside than its own dtype, as norms of `transformers` do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_CASTS = (torch.ops.aten._to_copy.default,)


class Narrowing(TorchDispatchMode):
    """Within the block: the lowest dtype into which a float tensor was cast from a higher one; None if none was."""

    def __init__(self) -> None:
        super().__init__()
        self.dtype: torch.dtype | None = None

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _CASTS:
            (wide, *_), (narrow, *_) = tree_leaves(args), tree_leaves(result)
            if _is_narrower(narrow, wide) and (self.dtype is None or narrow.dtype.itemsize < self.dtype.itemsize):
                self.dtype = narrow.dtype
        return result


def narrowest(found: Iterable[torch.dtype | None], dtype: torch.dtype) -> torch.dtype | None:
    """The lowest of these that is lower than the run's own; None if none is."""
    lower = [one for one in found if one is not None and one.is_floating_point and one.itemsize < dtype.itemsize]
    return min(lower, key=lambda one: one.itemsize, default=None)


def _is_narrower(narrow: Tensor, wide: Tensor) -> bool:
    both = narrow.is_floating_point() and wide.is_floating_point()
    return both and narrow.dtype.itemsize < wide.dtype.itemsize
