"""ZeRO-1 and ZeRO-2: rows that stay whole, of whose numbers each rank changes its piece.

The rank's optimizer has that piece of the weights alone, and so that piece of the states. What it changed is gathered
after its step. `course_lib.training.sharding.zero` trains so.
Source: Rajbhandari et al. 2020, ZeRO, section 5.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from course_lib.parallel.sharding.flat_row import FlatRow, Sharing


class ResidentRow(FlatRow):
    """A row that is never freed. Its pieces are parameters of their own: the model's stay views of the whole row."""

    def __init__(self, named: Mapping[str, nn.Parameter], sharing: Sharing) -> None:
        super().__init__(named, sharing)
        pieces = [nn.Parameter(piece, self.trained) for piece in self._pieces_of(self.shard)]
        self.pieces = dict(zip(self.names, pieces, strict=True))
        self.show_whole()

    def _is_shard_in_row(self, dtype: torch.dtype) -> bool:
        return True  # so that what the optimizer changes is in its place already when the others' pieces are gathered

    def free(self, *, keep: bool = False) -> None:
        """Free nothing."""
        self.wait()
