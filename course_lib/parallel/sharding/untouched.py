"""What may not happen to sharded parameters behind the wrapper's back, and would go unnoticed."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import cache
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

from course_lib.errors import four_parts
from course_lib.parallel.sharding.flat_row import FlatRow

_rows: Any = WeakTensorKeyDictionary()  # parameter -> a weak reference to its row, which has the parameter


def watch(rows: Iterable[FlatRow]) -> None:
    """From now on every optimizer's step is looked at, for it may hold parameters of these rows."""
    _look_at_steps()
    for row in rows:
        for parameter in row.parameters:
            _rows[parameter] = weakref.ref(row)


def row_of(parameter: Tensor) -> FlatRow | None:
    """The row that a model's parameter is part of, if it is sharded."""
    found: FlatRow | None = _rows.get(parameter, lambda: None)()
    return found


@cache
def _look_at_steps() -> None:
    """Once in a process: models come and go."""
    register_optimizer_step_pre_hook(_check_step)


def _check_step(optimizer: Optimizer, *_: Any) -> None:
    """Refuse an optimizer whose tensors are not those that get gradients, or whose states are of another shape.

    Raises: ValueError, on every rank that steps.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if (row := row_of(parameter)) is not None:
                _check(parameter, row, optimizer)


def _check(parameter: nn.Parameter, row: FlatRow, optimizer: Optimizer) -> None:
    name, kind = _name_in(row, parameter), type(optimizer).__name__
    if row.sharing.resident:
        values, rule = f"{kind} holds the whole {name}", "with ZeRO-1 and ZeRO-2 gradients come to this rank's pieces"
        raise ValueError(four_parts("zero", values, rule, "build the optimizer of the pieces, `ShardedModel.pieces`"))
    if row.is_whole:
        values, rule = f"{kind} steps while {name} is whole", "its gradients wait for the backward of a later forward"
        raise ValueError(four_parts("fully_shard", values, rule, "evaluate under torch.no_grad(), or after the step"))
    for state in optimizer.state.get(parameter, {}).values():
        if isinstance(state, Tensor) and state.dim() and state.shape != parameter.shape:
            values = f"{kind} has a state of shape {tuple(state.shape)} for {name}, of which this rank has "
            values += f"{parameter.numel()} numbers"
            rule, way_out = (
                "its state is for the whole weight",
                "build the optimizer after sharding, then load its state",
            )
            raise ValueError(four_parts("fully_shard", values, rule, way_out))


def changed(model: nn.Module, rows: Iterable[FlatRow]) -> str:
    """What was put into the place of a sharded parameter, in words; an empty string if nothing was."""
    ours = {id(parameter): row for row in rows for parameter in row.parameters}
    resident = any(row.sharing.resident for row in ours.values())
    for name, parameter in model.named_parameters():
        row = ours.get(id(parameter))
        if resident and not parameter.requires_grad:
            continue  # nobody shares it
        if row is None:
            return f"{name} is another parameter than the one that was sharded"
        if _is_elsewhere(parameter, row):
            return f"the numbers of {name} were replaced"
    return ""


def _name_in(row: FlatRow, parameter: Tensor) -> str:
    """The first name of one of its parameters."""
    return next(name for name, own in zip(row.names, row.parameters, strict=True) if own is parameter)


def _is_elsewhere(parameter: Tensor, row: FlatRow) -> bool:
    """Whether somebody has given a parameter other numbers than those of its row."""
    numbers = row.whole if row.is_whole else row.shard
    start, last = numbers.data_ptr(), numbers.data_ptr() + numbers.nbytes
    return parameter.numel() > 0 and not start <= parameter.data_ptr() < last
