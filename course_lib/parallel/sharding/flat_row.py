"""Some parameters side by side in one flat row of numbers, of which every rank of a group keeps a piece.

The pieces follow `torch.tensor_split`, without regard to where one parameter ends. A row is whole only while somebody
computes with it: then its parameters are views of it. Otherwise its memory is given back, and each parameter is what
this rank's piece has of it, which may be nothing.
Source: Rajbhandari et al. 2020, ZeRO, section 5; Zhao et al. 2023, PyTorch FSDP, section 3.2 (flat parameters).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib import comm
from course_lib.comm.call import device_of
from course_lib.parallel.sharding.quantised import dequantise_, empty_blocks, quantise_
from course_lib.parallel.table.meta import without_numbers
from course_lib.parallel.table.placement import Flat, Stretch
from course_lib.split import split_sizes


@dataclass(frozen=True)
class Sharing:
    """How rows are shared: `shards` are the ranks with different pieces, `copies` those with equal ones, of `everyone`.

    A `resident` row stays whole from step to step, as in ZeRO-1 and ZeRO-2: the optimizer then has parameters of its
    own, and what it changed must be gathered. `dtype` is what is computed and gathered in, `reduce_dtype` what
    gradients are added up in; without them, the parameters' own. `quantised` rows are gathered in one-byte numbers:
    all ranks compute with these, of their own pieces too. With `offload` pieces lie in main memory, where the optimizer
    then works, and a row is on the device only while it is whole. Of `secondary`, a run of neighbours, each keeps a
    piece of the whole row from forward to backward, so that it is gathered again among them alone. What is `uneven`, by
    name, was cut before, into parts of several sizes.
    """

    shards: ProcessGroup
    everyone: ProcessGroup
    copies: ProcessGroup | None = None
    _: KW_ONLY
    resident: bool = False
    dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    quantised: bool = False
    offload: bool = False
    secondary: ProcessGroup | None = None
    uneven: frozenset[str] = frozenset()
    algorithm: str = "ring"


class FlatRow:
    """One row. Shapes: `whole` (N,) in the dtype of computing; `shard` (N/s,) in the parameters' own.

    `pieces` are what the optimizer trains, by name: the model's own parameters, unless the row is resident. Of what is
    on meta they have no numbers yet.
    """

    def __init__(self, named: Mapping[str, nn.Parameter], sharing: Sharing) -> None:
        self.names, self.parameters, self.sharing = tuple(named), tuple(named.values()), sharing
        self.trained = self.parameters[0].requires_grad
        self.shapes, self.sizes = [p.shape for p in self.parameters], [p.numel() for p in self.parameters]
        first = self.parameters[0]
        own, device = first.dtype, device_of(sharing.everyone) if first.is_meta else first.device
        self.whole = torch.empty(sum(self.sizes), dtype=sharing.dtype or own, device=device)
        self.views = [part.view(shape) for part, shape in zip(self.whole.split(self.sizes), self.shapes, strict=True)]
        chunk = self._of_this_rank(self.whole)
        home = torch.device("cpu") if sharing.offload else device
        is_same = (self.whole.dtype, device) == (own, home) and not sharing.quantised
        self.one_memory = is_same and (sharing.resident or sharing.shards.size() == 1)
        pinned = home != device  # else a copy to the device would wait for the processor
        shard = chunk if self.one_memory else torch.empty(len(chunk), dtype=own, device=home, pin_memory=pinned)
        self.shard = shard
        self.stretches, self.parts = self._stretches()
        self._take_over()
        self.pieces = dict(zip(self.names, self._make_pieces(), strict=True))
        self.is_whole = not sharing.resident
        self.kept: Tensor | None = None  # this rank's secondary piece, between forward and backward
        self.blocks: Tensor | None = None  # of a quantised row, until they are there
        self._gathering: comm.Work | None = None
        self._reducing: tuple[Tensor, list[comm.Work]] | None = None
        self._put_aside: list[Tensor | None] = [None] * len(self.parameters)
        if sharing.resident:
            self.show_whole()
        else:
            self.free()

    def _of_this_rank(self, row: Tensor) -> Tensor:
        return _piece(row, self.sharing.shards)

    def _stretches(self) -> tuple[list[slice], list[slice]]:
        """What of each parameter lies in the shard, and where in the shard."""
        rank, size, end = self.sharing.shards.rank(), self.sharing.shards.size(), 0
        starts = [0, *accumulate(self.sizes)]
        stretches, parts = [], []
        for start, length in zip(starts, self.sizes, strict=False):
            piece = Flat(axis="", row="").piece(Stretch(start, length, starts[-1]), rank, size)
            stretches.append(piece)
            parts.append(slice(end, end := end + piece.stop - piece.start))
        return stretches, parts

    def _take_over(self) -> None:
        """The numbers that there are; a parameter on meta stays the same object, but can have numbers from now on."""
        for parameter, view, part, stretch in zip(self.parameters, self.views, self.parts, self.stretches, strict=True):
            if parameter.is_meta:
                empty = torch.empty(0, dtype=parameter.dtype, device=self.whole.device)
                torch.utils.swap_tensors(parameter, nn.Parameter(empty, parameter.requires_grad))
                without_numbers(self.shard[part])
            elif self.one_memory:
                view.copy_(parameter.detach())
            else:
                self.shard[part].copy_(parameter.detach().reshape(-1)[stretch])

    def _make_pieces(self) -> list[nn.Parameter]:
        if not self.sharing.resident:
            return list(self.parameters)
        return [nn.Parameter(piece, self.trained) for piece in self._pieces_of(self.shard)]

    def _pieces_of(self, shard: Tensor) -> list[Tensor]:
        """A shard by parameter: (n,), but of the parameter's shape where one rank has the whole row."""
        pieces = [shard[part] for part in self.parts]
        if self.sharing.shards.size() > 1:
            return pieces
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def name_of(self, parameter: Tensor) -> str:
        """The first name of one of its parameters."""
        return next(name for name, own in zip(self.names, self.parameters, strict=True) if own is parameter)

    def is_elsewhere(self, parameter: Tensor) -> bool:
        """Whether somebody has given one of its parameters other numbers than those of the row."""
        row = self.whole if self.is_whole else self.shard
        start, last = row.data_ptr(), row.data_ptr() + row.nbytes
        return parameter.numel() > 0 and not start <= parameter.data_ptr() < last

    def held(self) -> dict[str, list[Tensor]]:
        """The tensors that it keeps, by what they are; gradients of parameters apart."""
        return {
            "weights": [self.shard],
            "gathered": ([] if self.one_memory else [self.whole]) + _there(self.kept, self.blocks),
            "reducing": [] if self._reducing is None else [self._reducing[0]],
            "gradient pieces": _there(*self._put_aside),
        }

    # --- the weights ---

    def gather(self, *, async_op: bool = False) -> None:
        """Begin to make the row whole. What autograd saved looks into the same memory, and finds it again.

        Cost: an all-gather of N numbers in the dtype of computing, or quantised.
        """
        if self._gathering is not None or self.blocks is not None:
            return
        sharing, group, mine, quantised = self.sharing, self.sharing.shards, self.shard, self.sharing.quantised
        if sharing.secondary is not None and self.kept is not None:  # what was kept had been quantised already
            group, mine, quantised, self.kept = sharing.secondary, self.kept, False, None
        row = self._in_blocks() if quantised else self._placed(mine, group)
        if group.size() > 1:
            self._gathering = comm.all_gather_(row, algorithm=sharing.algorithm, group=group, async_op=async_op)

    def _placed(self, piece: Tensor, group: ProcessGroup) -> Tensor:
        """The row, with a piece in its place."""
        if not self.one_memory:
            _piece(self._with_memory(), group).copy_(piece)
        return self.whole

    def _in_blocks(self) -> Tensor:
        """Blocks for the row, with those of the shard in their place."""
        group, device = self.sharing.shards, self.whole.device
        self.blocks = empty_blocks(split_sizes(len(self.whole), group.size()), device)
        quantise_(_piece(self.blocks, group), self.shard.to(device))
        return self.blocks

    def _with_memory(self) -> Tensor:
        self.whole.untyped_storage().resize_(self.whole.numel() * self.whole.element_size())
        return self.whole

    def wait(self) -> None:
        """Return when what `gather` began is there."""
        work, self._gathering = self._gathering, None
        if work is not None:
            work.wait()
        blocks, self.blocks = self.blocks, None
        if blocks is not None:
            both = (x.tensor_split(self.sharing.shards.size()) for x in (self._with_memory(), blocks))
            for piece, of_piece in zip(*both, strict=True):
                dequantise_(piece, of_piece)

    def show_whole(self) -> None:
        """Let the model compute with the row; gradients of its pieces are put aside, for they have another shape."""
        if self.is_whole:
            return
        self.is_whole = True
        if not self.sharing.resident:
            self._put_aside = [parameter.grad for parameter in self.parameters]
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.grad, parameter.data = None, view

    def free(self, *, keep: bool = False) -> None:
        """Give the memory back, unless the row is resident; the parameters are this rank's pieces.

        With `keep` backward will want it again: the secondary piece stays.
        """
        self.wait()
        secondary = self.sharing.secondary
        self.kept = _piece(self.whole, secondary).clone() if keep and secondary is not None else None
        if self.sharing.resident:
            return
        if self.is_whole:
            self.show_pieces()
        if not self.one_memory:
            self.whole.untyped_storage().resize_(0)

    def show_pieces(self) -> None:
        """Let the optimizer work: parameters and gradients are this rank's."""
        self.is_whole = False
        for parameter, piece in zip(self.parameters, self._pieces_of(self.shard), strict=True):
            parameter.grad, parameter.data = None, piece
        for parameter, gradient in zip(self.parameters, self._put_aside, strict=True):
            parameter.grad = gradient
        self._put_aside = [None] * len(self.parameters)

    # --- the gradients ---

    def reduce(self, *, async_op: bool = False) -> None:
        """Begin to average the whole gradients, which are gone then; where there is none, it counts as zero.

        Cost: a reduce-scatter of N numbers in the dtype of reducing, and an all-reduce of N/s over the copies.
        """
        row = self._row_of_gradients()
        sharing, mine = self.sharing, self._of_this_rank(row)
        works = [
            comm.reduce_scatter_(row, algorithm=sharing.algorithm, group=sharing.shards, async_op=async_op)
            if sharing.shards.size() > 1
            else None,
            _all_reduce(mine, sharing, async_op) if sharing.copies is not None and mine.numel() else None,
        ]
        self._reducing = row, [work for work in works if work is not None]

    def _row_of_gradients(self) -> Tensor:
        """The gradients side by side; they exist no more when this returns, before anything is sent."""
        pairs = zip(self.parameters, self.views, strict=True)
        row = torch.cat([(view if p.grad is None else p.grad).detach().reshape(-1) for p, view in pairs])
        for parameter, part in zip(self.parameters, row.split(self.sizes), strict=True):
            if parameter.grad is None:
                part.zero_()
            parameter.grad = None
        return row.to(self.sharing.reduce_dtype or row.dtype)

    def finish_reduce(self) -> None:
        """Add this rank's piece of the average to the gradients of `pieces`. The row must have been freed."""
        if self._reducing is None:
            return
        (row, works), self._reducing = self._reducing, None
        for work in works:
            work.wait()
        mine = self._of_this_rank(row).to(self.shard, copy=True).div_(self.sharing.everyone.size())
        for piece, part in zip(self.pieces.values(), self._pieces_of(mine), strict=True):
            piece.grad = part if piece.grad is None else piece.grad.add_(part)

    def give_up(self) -> None:
        """A forward or backward has failed: let nobody wait, and keep no gradient of it."""
        gathering, self._gathering = self._gathering, None
        reducing, self._reducing = self._reducing, None
        for work in ([gathering] if gathering else []) + (reducing[1] if reducing else []):
            work.give_up()
        self.blocks = None
        for parameter in self.parameters:
            parameter.grad = None
        self.free()


def _piece(row: Tensor, group: ProcessGroup) -> Tensor:
    return row.tensor_split(group.size())[group.rank()]


def _there(*tensors: Tensor | None) -> list[Tensor]:
    return [x for x in tensors if x is not None]


def _all_reduce(x: Tensor, sharing: Sharing, async_op: bool) -> comm.Work | None:
    if async_op:
        return comm.all_reduce_(x, algorithm=sharing.algorithm, group=sharing.copies, async_op=True)
    comm.all_reduce_(x, algorithm=sharing.algorithm, group=sharing.copies)
    return None
