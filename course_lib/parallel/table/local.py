"""What this rank holds of a model, and what all ranks make of it together; the layout says how."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from course_lib import comm
from course_lib.comm.call import device_of, resolve
from course_lib.errors import four_parts
from course_lib.parallel.table import meta
from course_lib.parallel.table.layout import Layout
from course_lib.parallel.table.placement import At
from course_lib.ranks.plain import Plain, plain

Kinds = Mapping[str, Tensor]  # several tensors that are cut alike: a weight and its optimizer's states
Found = Mapping[str, Mapping[str, Tensor | Plain]]  # what a rank has, or what came from it


class Local:
    """A rank's parts of a model's parameters and buffers, by the model's own names.

    `mesh` None is one device. What is replicated is held by every rank; what is tied, under its first name.
    """

    def __init__(self, model: nn.Module, mesh: DeviceMesh | None) -> None:
        self.mesh = mesh
        names = mesh.mesh_dim_names or () if mesh is not None else ()
        coordinate = (mesh.get_coordinate() or ()) if mesh is not None else ()
        self.at: At = dict(zip(names, coordinate, strict=True))
        self._grid = mesh.mesh if mesh is not None else None  # a mesh computes it each time that it is asked
        self.layout = Layout(model, dict(zip(names, mesh.shape, strict=True)) if mesh is not None else {})
        self.parameters: dict[str, nn.Parameter] = dict(model.named_parameters())
        self.buffers: dict[str, Tensor] = dict(model.named_buffers())
        everything = {**self.parameters, **self.buffers}
        self.dtypes = {name: x.dtype for name, x in everything.items()}  # other stages' too
        self.absent = [name for name, x in everything.items() if x.is_meta]  # what came without numbers

    def renew(self, model: nn.Module) -> None:
        """Take the parameters anew: PyTorch's wrappers put others into their places."""
        self.parameters = {name: model.get_parameter(name) for name in self.parameters}

    def keep(self, names: set[str]) -> None:
        """Let go of everything else."""
        self.parameters = {name: p for name, p in self.parameters.items() if name in names}
        self.buffers = {name: b for name, b in self.buffers.items() if name in names}

    def give_memory(self) -> None:
        """Let what is still on meta have memory."""
        meta.give_memory((*self.parameters.values(), *self.buffers.values()), self.device)

    # --- the mesh ---

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        return torch.get_default_device() if self.everyone is None else device_of(self.everyone)

    def size(self, axis: str) -> int:
        """Ranks along an axis."""
        return self.layout.sizes.get(axis, 1)

    def rank(self, axis: str) -> int:
        """This rank's coordinate."""
        return self.at.get(axis, 0)

    def group(self, axis: str) -> ProcessGroup:
        """This rank's row along an axis."""
        assert self.mesh is not None
        return self.mesh.get_group(axis)

    @property
    def everyone(self) -> ProcessGroup | None:
        """All ranks of the mesh; None for one device."""
        if self.mesh is None:
            return None
        return self.mesh.get_group() if self.mesh.ndim == 1 else resolve(None, "Local")

    def name_of(self, **at: int) -> int:
        """The global rank at these coordinates; along other axes, the first."""
        if self._grid is None:
            return 0
        return int(self._grid[tuple(at.get(axis, 0) for axis in self.layout.sizes)])

    # --- whole tensors ---

    def whole(self, mine: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors that are cut as the parameters of their names, put together on every rank, outside the ledger.

        Of what is replicated each rank sees its own copy, so that one that drifted away shows.
        """
        return {name: kinds[""] for name, kinds in self._exchanged({n: {"": x} for n, x in mine.items()}).items()}

    def whole_once(self, mine: Mapping[str, Kinds]) -> dict[str, dict[str, Tensor]]:
        """The same for several tensors of each name; every number is sent once, by the rank that counts it."""
        places = self.layout.places
        if self.layout.cutting_axes:
            mine = {name: kinds for name, kinds in mine.items() if places[name].counts(self.at)}
        return self._exchanged(mine, at=dict.fromkeys(self.at, 0))

    def _exchanged(self, mine: Mapping[str, Kinds], at: At | None = None) -> dict[str, dict[str, Tensor]]:
        everyone = self._everyones(mine)
        at = self.at if at is None else at
        result: dict[str, dict[str, Tensor]] = {}
        for name in self.layout.places:
            kinds = dict.fromkeys(kind for one in everyone.values() for kind in one.get(name, ()))
            found = {kind: self.layout.joined(name, self._getter(everyone, name, kind), at) for kind in kinds}
            if there := {kind: x for kind, x in found.items() if x is not None}:
                result[name] = there
        return result

    def _everyones(self, mine: Mapping[str, Kinds]) -> dict[int, Found]:
        """What every rank of the mesh has, by its global rank; its own is all it needs where nothing is cut."""
        if not self.layout.cutting_axes:
            return dict.fromkeys(self.members, mine)
        sent = {name: {kind: plain(x) for kind, x in kinds.items()} for name, kinds in mine.items()}
        found = [sent] * len(self.members)
        dist.all_gather_object(found, sent, group=self.everyone)
        return dict(zip(self.members, found, strict=True))

    def _getter(self, everyone: Mapping[int, Found], name: str, kind: str) -> Callable[[At], Tensor | None]:
        def part_at(at: At) -> Tensor | None:
            x = everyone[self.name_of(**at)].get(name, {}).get(kind)
            return x.tensor() if isinstance(x, Plain) else x

        return part_at

    @property
    def members(self) -> list[int]:
        """The global ranks of the mesh, in the order of `everyone`."""
        return [0] if self.mesh is None else dist.get_process_group_ranks(self.everyone)

    def part(self, name: str, whole: Tensor) -> Tensor:
        """This rank's part of a whole tensor."""
        return self.layout.part(name, whole, self.at)

    # --- gradients ---

    def gradients(self) -> dict[str, Tensor]:
        """The gradients that there are, of this rank's parts."""
        return {name: own_part(p.grad) for name, p in self.parameters.items() if p.grad is not None}

    @torch.no_grad()
    def global_norm(self) -> Tensor:
        """The length of all gradients as one vector, in float64; every number of the model counts once.

        Cost: an all-reduce of one number along each axis that cuts something; replicas need not talk.
        """
        cutting = self.layout.cutting_axes
        mine = [
            g
            for name, g in self.gradients().items()
            if not cutting or self.layout.places[name].counts(self.at, cutting)
        ]
        device = next(iter(self.parameters.values())).device
        squares = torch.zeros(1, dtype=torch.float64, device=device)
        for gradient in mine:
            squares += torch.linalg.vector_norm(gradient, dtype=torch.float64).square()
        for axis in self.layout.sizes:
            if axis in cutting and self.size(axis) > 1:
                group = self.group(axis)
                squares = comm.all_reduce(squares.to(device_of(group)), group=group)  # gradients may be offloaded
        return squares[0].sqrt()

    @contextmanager
    def partial_sums(self) -> Iterator[None]:
        """Within the block gradients come about; at its end the terms that the ranks hold of one are added up.

        Cost: along each partial axis one all-reduce of all such gradients as one row; where only some ranks have terms
        of one sum, as along "pp", each of them sends every other one its row.
        """
        places = self.layout.places
        held = {name: p for name, p in self.parameters.items() if places[name].partial and p.requires_grad}
        before = {name: p.grad.clone() for name, p in held.items() if p.grad is not None}  # a bucket may reuse it
        for parameter in held.values():
            parameter.grad = None  # else what an earlier pass summed would be summed again
        yield
        sums = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in sorted(held.items()) if p.numel()}
        for axis in sorted({axis for name in held for axis in places[name].partial}):
            for holders, names in self._sharing(axis, sums):
                flat = torch.cat([sums[name].flatten() for name in names])
                parts = self._summed(flat, axis, holders).split([sums[name].numel() for name in names])
                sums |= {name: part.view_as(sums[name]) for name, part in zip(names, parts, strict=True)}
        for name, total in sums.items():
            parameter = held[name]
            total = before[name] + total if name in before else total
            parameter.grad = total if parameter.grad is None else parameter.grad.copy_(total)  # it may lie in a bucket

    def _sharing(self, axis: str, names: Iterable[str]) -> list[tuple[tuple[int, ...], list[str]]]:
        """The tensors with terms along an axis, by which ranks of it have the terms of one sum."""
        places, rows = self.layout.places, dict[tuple[int, ...], list[str]]()
        for name in names:
            if axis in places[name].partial:
                rows.setdefault(places[name].holders(axis, self.at, self.size(axis)), []).append(name)
        return sorted(rows.items())

    def _summed(self, mine: Tensor, axis: str, holders: Sequence[int]) -> Tensor:
        """The sum of the holders' rows of numbers, the same bit by bit on all of them."""
        group = self.group(axis)
        if len(holders) < group.size() or axis == "pp":
            return _exchanged_sum(mine, holders, group)
        return comm.all_reduce_(mine, group=group)

    # --- what must be the same on all ranks ---

    def check_table(self) -> None:
        """Raise the same ValueError on all ranks unless all have written the same table, other stages' rows too."""
        if (everyone := self.everyone) is None:
            return
        tables = [""] * everyone.size()
        dist.all_gather_object(tables, str(self.layout), group=everyone)
        for rank, table in zip(self.members, tables, strict=True):
            for first, row in zip(tables[0].splitlines(), table.splitlines(), strict=True):
                if first != row:
                    values = f"the layout has {' '.join(first.split())!r} on rank {self.members[0]}"
                    values += f" and {' '.join(row.split())!r} on rank {rank}"
                    rule = "what is gathered is put together from one table"
                    raise ValueError(four_parts("Trainer", values, rule, "let every rank apply the same techniques"))


def own_part(x: Tensor) -> Tensor:
    """This rank's part of a tensor that PyTorch distributed, a DTensor, in the same memory; any other as it is."""
    part: Tensor = x.to_local() if hasattr(x, "to_local") else x
    return part


def laid_as(parameter: Tensor, part: Tensor) -> Tensor:
    """A copy of this rank's part of an optimizer's state, as a DTensor where the parameter is one."""
    if not hasattr(parameter, "to_local") or part.shape != own_part(parameter).shape:  # a counter has no parts
        return part.clone()
    state = torch.zeros_like(parameter)
    own_part(state).copy_(part)
    return state


def _exchanged_sum(mine: Tensor, holders: Sequence[int], group: ProcessGroup) -> Tensor:
    """The holders' tensors, added in the same order by all, so that copies stay equal bit by bit."""
    here, names = group.rank(), dist.get_process_group_ranks(group)
    parts = {rank: mine.contiguous() if rank == here else torch.empty_like(mine) for rank in holders}
    others = [rank for rank in holders if rank != here]
    under_way: list[Any] = [comm.irecv(parts[rank], names[rank], group) for rank in others]
    under_way += [comm.isend(parts[here], names[rank], group) for rank in others]
    for work in under_way:
        work.wait()
    return torch.stack([parts[rank] for rank in holders]).sum(0)
