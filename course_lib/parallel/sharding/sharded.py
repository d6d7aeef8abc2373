"""Sharded data parallelism: a model whose weights are pieces between steps, and whole only where they are used.

A hook gathers a unit before its forward, another frees it after; in backward it is gathered once more, and as soon as
all of its gradients are there, they are averaged over the ranks, each of which keeps its piece. While one unit
computes, the next one in order is gathered already.
Source: Rajbhandari et al. 2020, ZeRO, section 5; Zhao et al. 2023, PyTorch FSDP, sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.autograd.graph import register_multi_grad_hook
from torch.utils._pytree import tree_leaves, tree_map

from course_lib.comm.switches import active
from course_lib.parallel.sharding import untouched
from course_lib.parallel.sharding.flat_row import Sharing
from course_lib.parallel.sharding.secondary import SecondaryRow
from course_lib.parallel.sharding.units import Unit, make_units
from course_lib.parallel.sharding.wrapping import Policy, by_block
from course_lib.parallel.table import agreement
from course_lib.parallel.table.hooks import when_gradient_came

_OPERATION = "fully_shard"


class ShardedModel:
    """Hooks into `model`; train `pieces`, which are by name this rank's pieces of its parameters.

    `policy` says which modules are a unit. With `reshard_after_forward` a unit is freed after its forward and gathered
    again in backward; without, it stays whole in between. With `overlap` the next unit is gathered, and gradients are
    averaged, while the model computes. `late` averages them only when backward is through, and not at all under
    `no_sync`; otherwise each backward averages, since whole gradients are what there is no room for.

    The pieces are the model's own parameters, so that an optimizer of `model.parameters()` trains them as well; rows
    that stay whole have pieces of their own.

    Raises: ValueError as `make_units`.
    """

    def __init__(
        self,
        model: nn.Module,
        sharing: Sharing,
        policy: Policy = by_block,
        *,
        reshard_after_forward: bool = True,
        overlap: bool = True,
        late: bool = False,
    ) -> None:
        self.model = model
        self.sharing = sharing
        self.reshard_after_forward = reshard_after_forward
        self.overlap = overlap
        self.late = late
        self.units = make_units(model, policy, sharing)
        self.pieces: dict[str, nn.Parameter] = {}
        self.names: dict[nn.Parameter, str] = {}
        self.unit_of: dict[nn.Parameter, Unit] = {}
        for unit in self.units:
            self.pieces |= unit.pieces
            for name, parameter in unit.named.items():
                self.names[parameter] = name
            for parameter in unit.trained:
                self.unit_of[parameter] = unit
        self.before: dict[Unit, Unit] = {}  # unit -> the one that is used before it in forward
        self.after: dict[Unit, Unit] = {}
        self.latest: Unit | None = None  # in this forward
        self.reducing: Unit | None = None
        self.in_backward = False
        self.syncing = True
        self.is_settled = True  # no backward waits for a later one to average what it brought
        self.rows = [row for unit in self.units for row in unit.rows]
        untouched.watch(self.rows)
        for unit in self.units:
            self._hook(unit)

    def _hook(self, unit: Unit) -> None:
        first, last = unit.modules[0], unit.modules[-1]
        first.register_forward_pre_hook(partial(self._before_forward, unit), with_kwargs=True)
        last.register_forward_hook(partial(self._after_forward, unit))
        for parameter in unit.trained:
            when_gradient_came(parameter, self._gradient_came)

    # --- forward ---

    def _before_forward(self, unit: Unit, _: nn.Module, args: Any, kwargs: Any) -> Any:
        again = _in_backward()  # what was not kept is computed a second time
        if not again:
            if unit.is_root:
                self._begin_forward()
            self._note_order(unit)
            self._free_frozen_after(unit, tree_leaves((args, kwargs)))
        unit.use()
        if not again:
            self._prefetch(self.after.get(unit))
        return self._cast((args, kwargs), self.sharing.dtype) if unit.is_root else None

    def _after_forward(self, unit: Unit, _: nn.Module, args: Any, output: Any) -> Any:
        if not _in_backward():
            graph = [x for x in tree_leaves(output) if isinstance(x, Tensor) and x.requires_grad]
            unit.in_graph = bool(graph)
            for x in graph:
                x.register_hook(partial(self._before_backward, unit))
            if unit.is_root and not graph:
                self._free_all()
            elif not unit.is_root and (self.reshard_after_forward or not graph):
                unit.free(keep=bool(graph))
        return self._cast(output, self.sharing.dtype and torch.float32) if unit.is_root else None

    def _begin_forward(self) -> None:
        """Clear away what failed; the order is learnt anew."""
        if self.in_backward or self.reducing is not None:
            self.give_up()
        self.latest = None
        for row in self.rows:
            if isinstance(row, SecondaryRow):
                row.kept = None  # of a forward without a backward; the weights may have changed
        rule, way_out = "its numbers are this rank's piece of a row", "change its numbers in place"
        problem = untouched.changed(self.model, self.rows)
        agreement.no_problem(_OPERATION, problem, rule, way_out, self.sharing.everyone, compare=active.guard)

    @staticmethod
    def _free_frozen_after(unit: Unit, inputs: list[Any]) -> None:
        """Frozen weights have no gradient that says that they have done their part: wait for that of the inputs."""
        wanted = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
        if wanted and torch.is_grad_enabled() and any(not row.trained for row in unit.rows):
            register_multi_grad_hook(wanted, lambda _: unit.free_frozen())

    def _note_order(self, unit: Unit) -> None:
        """Who follows whom: a model computes in the same order each time, and what comes next can be gathered early."""
        if self.latest is not None and self.latest is not unit:
            self.after[self.latest], self.before[unit] = unit, self.latest
        self.latest = unit

    def _prefetch(self, unit: Unit | None) -> None:
        if self.overlap and unit is not None and not unit.is_whole:
            unit.gather(async_op=True)

    @staticmethod
    def _cast(values: Any, dtype: torch.dtype | None) -> Any:
        """With mixed precision, numbers come in in the dtype of computing and leave in float32."""
        if dtype is None:
            return values
        return tree_map(lambda x: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x, values)

    # --- backward ---

    def _before_backward(self, unit: Unit, _: Tensor) -> None:
        self._begin_backward()
        unit.use()
        following = self.latest if unit.is_root else self.before.get(unit)
        self._prefetch(following if following is not None and following.in_graph else None)

    def _begin_backward(self) -> None:
        if self.in_backward:
            return
        self.in_backward = True
        if self.is_settled:
            for unit in self.units:
                unit.expect()
        Variable._execution_engine.queue_callback(self._end_backward)

    def _gradient_came(self, parameter: nn.Parameter) -> None:
        self._begin_backward()
        unit = self.unit_of[parameter]
        unit.awaited.discard(parameter)
        if not unit.awaited and not self.late:
            self._reduce(unit)

    def _reduce(self, unit: Unit) -> None:
        """One unit's gradients are summed at a time: the next row is made when the one before has gone."""
        self._finish_reduce()
        unit.reduce(async_op=self.overlap)
        self.reducing = unit

    def _finish_reduce(self) -> None:
        unit, self.reducing = self.reducing, None
        if unit is not None:
            unit.finish_reduce()

    def _end_backward(self) -> None:
        """Backward is through: average what is left, free what is whole, and look at what got no gradient."""
        self.in_backward = False
        self.is_settled = self.syncing or not self.late
        if not self.is_settled:
            return
        missing = [self.names[p] for p, unit in self.unit_of.items() if p in unit.awaited]
        if len(missing) == len(self.unit_of):
            return self._free_all()  # torch.autograd.grad took them away
        trained = [unit for unit in self.units if unit.trained]
        for unit in reversed(trained):
            if not unit.is_reduced:
                self._reduce(unit)
        self._finish_reduce()
        self._free_all()
        problem = f"no gradient of {agreement.listing(missing)}" if missing else ""
        rule = "every backward brings a gradient of every trained parameter on every rank"
        way_out = "freeze what is not used, before sharding"
        agreement.no_problem(_OPERATION, problem, rule, way_out, self.sharing.everyone, compare=active.guard)

    def _free_all(self) -> None:
        for unit in self.units:
            unit.free()

    def give_up(self) -> None:
        """A forward or backward has failed: nobody waits for it, and no gradient of it stays."""
        self.in_backward, self.reducing = False, None
        for unit in self.units:
            unit.give_up()

    # --- the step ---

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """All micro-batches but a step's last: with `late` whole gradients add up on each rank alone."""
        before, self.syncing = self.syncing, False
        try:
            yield
        finally:
            self.syncing = before

    def updated(self) -> None:
        """After the optimizer's step: rows that stay whole are gathered from the pieces."""
        if self.sharing.resident:
            for unit in self.units:
                unit.gather()
                for row in unit.rows:
                    row.wait()


def _in_backward() -> bool:
    """Whether autograd is going backward right now, on this thread."""
    return bool(torch._C._current_graph_task_id() != -1)
