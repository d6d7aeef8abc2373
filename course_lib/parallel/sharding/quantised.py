"""Numbers in one byte each: a row is cut in blocks, and each block has a scale of its own.

A block's largest number becomes 127 or -127, and the others whole steps of its scale, so that each is off by half a
step at most. A number far above the rest makes long steps, but in its own block alone. A scale travels with its block,
so that ranks send whole blocks; the last one of a rank may have empty places.

`QuantisedRow` gathers so: all ranks compute with rounded weights, of their own pieces too. Forward and backward have
the same ones, whose gradients are taken for those of the weights themselves: straight through the rounding. The
optimizer changes pieces that are not rounded. What neighbours keep from forward to backward (hpZ) is in the dtype of
computing, so that it is not rounded twice.
Source: Wang et al. 2023, ZeRO++, section 3.1 (qwZ).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib import comm
from course_lib.parallel.sharding.flat_row import FlatRow, piece_of
from course_lib.split import split_sizes

BLOCK = 256  # numbers
_SCALE = torch.float32
_MOST = 127  # steps; -128 is not used, so that both signs have as many
_LEAST_SCALE = torch.finfo(_SCALE).tiny  # of a block of zeros


class QuantisedRow(FlatRow):
    """A row that travels in blocks of one-byte numbers, and is computed with as they say."""

    blocks: Tensor | None = None  # from `gather` until they are there

    def _is_shard_in_row(self, dtype: torch.dtype) -> bool:
        return False  # the optimizer's numbers are not rounded, the row's are

    def gather(self, *, async_op: bool = False) -> None:
        """Begin to bring the blocks of the row together.

        Cost: an all-gather of BLOCK + 4 bytes for every BLOCK numbers.
        """
        if self._gathering is not None or self.blocks is not None:
            return
        shards, device = self.sharing.shards, self.whole.device
        self.blocks = empty_blocks(split_sizes(len(self.whole), shards.size()), device)
        quantise_(piece_of(self.blocks, shards), self.shard.to(device))
        if shards.size() > 1:
            self._gathering = comm.all_gather_(
                self.blocks, algorithm=self.sharing.algorithm, group=shards, async_op=async_op
            )

    def wait(self) -> None:
        """Return when the blocks are there, and the row is filled with what they say."""
        super().wait()
        blocks, self.blocks = self.blocks, None
        if blocks is None:
            return
        self._give_memory()
        ranks = self.sharing.shards.size()
        for piece, of_piece in zip(self.whole.tensor_split(ranks), blocks.tensor_split(ranks), strict=True):
            dequantise_(piece, of_piece)

    def give_up(self) -> None:
        """As the plain row; the blocks may be half there."""
        self.blocks = None
        super().give_up()

    def held(self) -> dict[str, list[Tensor]]:
        """As the plain row, and the blocks."""
        found = super().held()
        if self.blocks is not None:
            found["gathered"].append(self.blocks)
        return found


def empty_blocks(pieces: Sequence[int], device: torch.device) -> Tensor:
    """Room for pieces of so many numbers each, which `torch.tensor_split` finds again. Shapes: (blocks, BLOCK + 4)."""
    blocks = sum(-(-numbers // BLOCK) for numbers in pieces)
    return torch.zeros(blocks, BLOCK + _SCALE.itemsize, dtype=torch.uint8, device=device)


def quantise_(blocks: Tensor, numbers: Tensor) -> None:
    """Round a piece's numbers into its blocks. A number that is not finite leaves none of its block finite.

    Shapes: blocks (b, BLOCK + 4), numbers (n,) with n <= b BLOCK.
    """
    for part in _parts(blocks, numbers):
        least, most = part.numbers.aminmax(dim=1, keepdim=True)
        part.scales.copy_(torch.maximum(-least, most)).div_(_MOST).clamp_(min=_LEAST_SCALE)
        part.steps.copy_((part.numbers / part.scales).round_())


def dequantise_(numbers: Tensor, blocks: Tensor) -> None:
    """Fill a piece with what its blocks say. Shapes: as `quantise_`."""
    for part in _parts(blocks, numbers):
        part.numbers.copy_(part.steps).mul_(part.scales)


class _Part(NamedTuple):
    """Blocks that are equally full: their numbers (b, n), whole steps (b, n), and scales (b, 1)."""

    numbers: Tensor
    steps: Tensor
    scales: Tensor


def _parts(blocks: Tensor, numbers: Tensor) -> Iterator[_Part]:
    """Views of what is full, and of the block that is not."""
    steps, scales = blocks[:, :BLOCK].view(torch.int8), blocks[:, BLOCK:].view(_SCALE)
    full = len(numbers) // BLOCK
    whole, rest = numbers[: full * BLOCK], numbers[full * BLOCK :]
    yield _Part(whole.view(full, BLOCK), steps[:full], scales[:full])
    if len(rest):
        yield _Part(rest.view(1, -1), steps[full:, : len(rest)], scales[full:])
