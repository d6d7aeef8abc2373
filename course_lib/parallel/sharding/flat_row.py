"""A flat row: the parameters of a unit side by side as one row of numbers, of which every rank keeps a piece.

Between steps a rank has its piece alone, the shard. `FlatRow` has the steps of a unit's life, in this order:

    gather         all-gather: the pieces of all ranks make the row whole
    show_whole     the model's parameters are views of the row, and it can compute with them
    free           the row's memory is given back; the parameters are this rank's pieces again
    reduce         after backward, a reduce-scatter adds up the whole gradients
    finish_reduce  the optimizer finds this rank's piece of their average

A piece ends where `torch.tensor_split` cuts the row, without regard to where a parameter ends. Say a unit has a weight
of 3 numbers and a bias of 4, and two ranks share it. Rank 0 keeps the first 4 of the 7, which are the whole weight and
one number of the bias; rank 1 keeps the other 3 of the bias, and of the weight nothing.

When each step comes is said in `sharded`; `additions` has what more a row may do.
Source: Rajbhandari et al. 2020, ZeRO, section 5; Zhao et al. 2023, PyTorch FSDP, section 3.2 (flat parameters).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib import comm
from course_lib.comm.call import device_of
from course_lib.parallel.table.meta import without_numbers
from course_lib.parallel.table.placement import Flat, Stretch


@dataclass(frozen=True)
class Apart:
    """Parameters, by name, that only some of the ranks share, since the others have other ones: experts."""

    names: frozenset[str]
    shards: ProcessGroup


@dataclass(frozen=True)
class Sharing:
    """How rows are shared: the ranks of `shards` have different pieces, and gradients are averaged over `everyone`.

    `dtype` is what is computed and gathered in, `reduce_dtype` what gradients are added up in; without them, the
    parameters' own. The other fields ask for additions to the plain row, each in a file of its own.
    """

    shards: ProcessGroup
    everyone: ProcessGroup
    _: KW_ONLY
    dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    algorithm: str = "ring"
    uneven: frozenset[str] = frozenset()  # parameters, by name, of which tensor parallelism left parts of several sizes
    resident: bool = False  # `zero`: the row stays whole from step to step
    apart: Apart | None = None
    divisor: int | None = None  # of the sum of gradients, where it is not the number of ranks in `everyone`
    copies: ProcessGroup | None = None  # `hybrid`: the ranks with a piece equal to this one's
    secondary: ProcessGroup | None = None  # `secondary`: neighbours that keep the row from forward to backward
    quantised: bool = False  # `quantised`: it is gathered in one-byte numbers
    offload: bool = False  # `offload`: pieces lie in main memory


class FlatRow:
    """One row. Shapes: `whole` (N,) in the dtype of computing; `shard` (N/s,) in the parameters' own.

    `pieces` are what the optimizer trains, by name: here the model's own parameters. Of what is on meta they have no
    numbers yet.
    """

    def __init__(self, named: Mapping[str, nn.Parameter], sharing: Sharing) -> None:
        self.names = tuple(named)
        self.parameters = tuple(named.values())
        self.sharing = sharing
        self.shapes = [parameter.shape for parameter in self.parameters]
        self.sizes = [parameter.numel() for parameter in self.parameters]
        first = self.parameters[0]
        self.trained = first.requires_grad
        device = device_of(sharing.everyone) if first.is_meta else first.device

        # The row, and the parameters as views of it.
        # Whole numbers, the codes of a weight, are computed with as they are.
        dtype = sharing.dtype if sharing.dtype is not None and first.is_floating_point() else first.dtype
        self.whole = torch.empty(sum(self.sizes), dtype=dtype, device=device)
        parts = self.whole.split(self.sizes)
        self.views = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

        # This rank's piece of the row, and where in it each parameter's piece lies.
        chunk = self._of_this_rank(self.whole)
        self.one_memory = self._is_shard_in_row(first.dtype)
        self.shard = chunk if self.one_memory else self._empty_shard(len(chunk), first.dtype)
        self.stretches = self._stretches()
        self.parts: list[slice] = []
        end = 0
        for stretch in self.stretches:
            start, end = end, end + stretch.stop - stretch.start
            self.parts.append(slice(start, end))

        self.is_whole = True
        self._gathering: comm.Work | None = None  # an all-gather that is under way
        self._reducing: Tensor | None = None  # the row of gradients while they are added up
        self._works: list[comm.Work] = []  # which do so
        self._put_aside: list[Tensor | None] = [None for _ in self.parameters]  # gradients of pieces, while it is whole

        self._take_over()
        self.pieces = dict(named)
        self.show_pieces()
        self.free()

    def _is_shard_in_row(self, dtype: torch.dtype) -> bool:
        """Whether the shard has no memory of its own: a rank that shares with nobody needs its numbers only once."""
        return self.sharing.shards.size() == 1 and self.whole.dtype == dtype

    def _empty_shard(self, length: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(length, dtype=dtype, device=self.whole.device)

    def _of_this_rank(self, row: Tensor) -> Tensor:
        return piece_of(row, self.sharing.shards)

    def _stretches(self) -> list[slice]:
        """Which numbers of each parameter this rank's piece has."""
        shards = self.sharing.shards
        total = sum(self.sizes)
        rule = Flat(axis="", row="")  # that of the table (`Layout`); here there is one row, and it needs no name
        found = []
        start = 0
        for length in self.sizes:
            stretch = Stretch(start, length, total)
            found.append(rule.piece(stretch, shards.rank(), shards.size()))
            start += length
        return found

    def _take_over(self) -> None:
        """Copy the numbers that there are."""
        places = zip(self.parameters, self.views, self.parts, self.stretches, strict=True)
        for parameter, view, part, stretch in places:
            if parameter.is_meta:
                # The optimizer, and tied modules, know this very object: it stays, and can have numbers from now on.
                empty = torch.empty(0, dtype=parameter.dtype, device=self.whole.device)
                torch.utils.swap_tensors(parameter, nn.Parameter(empty, parameter.requires_grad))
                without_numbers(self.shard[part])
            elif self.one_memory:
                view.copy_(parameter.detach())
            else:
                self.shard[part].copy_(parameter.detach().reshape(-1)[stretch])

    # --- weights: gather, compute, free ---

    def gather(self, *, async_op: bool = False) -> None:
        """Begin to make the row whole.

        Cost: an all-gather of N numbers in the dtype of computing.
        """
        if self._gathering is not None:
            return  # it was begun early, while another unit computed
        if not self.one_memory:
            self._give_memory()
            self._of_this_rank(self.whole).copy_(self.shard)
        if self.sharing.shards.size() > 1:
            self._gathering = comm.all_gather_(
                self.whole,
                algorithm=self.sharing.algorithm,
                group=self.sharing.shards,
                async_op=async_op,
            )

    def _give_memory(self) -> None:
        # Autograd has saved views of this very storage in forward. So it is filled again: a new tensor would not do.
        self.whole.untyped_storage().resize_(self.whole.numel() * self.whole.element_size())

    def wait(self) -> None:
        """Return when what `gather` began is there."""
        work, self._gathering = self._gathering, None
        if work is not None:
            work.wait()

    def show_whole(self) -> None:
        """Let the model compute with the row."""
        if self.is_whole:
            return
        self.is_whole = True
        # What earlier micro-batches left is in the shape of pieces, and autograd would refuse to add to it.
        self._put_aside = [parameter.grad for parameter in self.parameters]
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.grad = None
            parameter.data = view

    def free(self, *, keep: bool = False) -> None:
        """Give the memory back; the parameters are this rank's pieces.

        `keep` says that backward will want the row again; the plain row is then gathered a second time.
        """
        self.wait()
        if self.is_whole:
            self.show_pieces()
        if not self.one_memory:
            self.whole.untyped_storage().resize_(0)

    def show_pieces(self) -> None:
        """Let the optimizer work: parameters and gradients are this rank's."""
        self.is_whole = False
        pieces = self._pieces_of(self.shard)
        for parameter, piece, gradient in zip(self.parameters, pieces, self._put_aside, strict=True):
            parameter.grad = None  # first, since a gradient must have the shape of its parameter
            parameter.data = piece
            parameter.grad = gradient
        self._put_aside = [None for _ in self.parameters]

    def _pieces_of(self, shard: Tensor) -> list[Tensor]:
        """A shard by parameter: (n,), but of the parameter's shape where one rank has the whole row."""
        pieces = [shard[part] for part in self.parts]
        if self.sharing.shards.size() > 1:
            return pieces
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    # --- gradients: reduce, keep a piece ---

    def reduce(self, *, async_op: bool = False) -> None:
        """Begin to add up the ranks' whole gradients, which are gone then; where there is none, it counts as zero.

        Cost: a reduce-scatter of N numbers in the dtype of reducing.
        """
        self._reducing = self._row_of_gradients()
        self._works = []
        if self.sharing.shards.size() > 1:
            work = comm.reduce_scatter_(
                self._reducing,
                algorithm=self.sharing.algorithm,
                group=self.sharing.shards,
                async_op=async_op,
            )
            if work is not None:
                self._works.append(work)

    def _row_of_gradients(self) -> Tensor:
        """The gradients side by side; they exist no more when this returns, before anything is sent."""
        row = torch.empty_like(self.whole)
        for parameter, part, shape in zip(self.parameters, row.split(self.sizes), self.shapes, strict=True):
            if parameter.grad is None:
                part.zero_()
            else:
                part.view(shape).copy_(parameter.grad)
            parameter.grad = None
        return row.to(self.sharing.reduce_dtype or row.dtype)

    def finish_reduce(self) -> None:
        """Add this rank's piece of the average to the gradients of `pieces`. The row must have been freed."""
        row, self._reducing = self._reducing, None
        if row is None:
            return
        for work in self._works:
            work.wait()
        # A copy in the shard's dtype, so that the memory of the whole row goes.
        mine = self._of_this_rank(row).to(self.shard, copy=True)
        mine.div_(self.sharing.divisor or self.sharing.everyone.size())
        for piece, part in zip(self.pieces.values(), self._pieces_of(mine), strict=True):
            piece.grad = part if piece.grad is None else piece.grad.add_(part)

    # --- beside the steps ---

    def give_up(self) -> None:
        """A forward or backward has failed: let nobody wait, and keep no gradient of it."""
        if self._gathering is not None:
            self._gathering.give_up()
        if self._reducing is not None:
            for work in self._works:
                work.give_up()
        self._gathering = self._reducing = None
        for parameter in self.parameters:
            parameter.grad = None
        self.free()

    def held(self) -> dict[str, list[Tensor]]:
        """The tensors that it keeps, by what they are; gradients of parameters apart."""
        return {
            "weights": [self.shard],
            "gathered": [] if self.one_memory else [self.whole],
            "reducing": [] if self._reducing is None else [self._reducing],
            "gradient pieces": [x for x in self._put_aside if x is not None],
        }


def piece_of(row: Tensor, group: ProcessGroup) -> Tensor:
    """This rank's piece of a row that the ranks of a group share, in the row's own memory."""
    return row.tensor_split(group.size())[group.rank()]
