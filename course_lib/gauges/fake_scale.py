"""A step of PyTorch's FSDP x TP on more ranks than there are: real code, tensors without numbers, messages to nobody.

One process is rank 0 of a fake process group of any size, and computes with fake tensors: shapes, dtypes and lifetimes
are real, memory and arithmetic are not. So a 70B model's memory on 1,024 ranks is traced on a laptop, tensor by tensor,
in minutes. What it does not show is time, and memory that GPU kernels and the allocator need for themselves.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from course_lib import presets
from course_lib.config import load_model
from course_lib.gauges.fsdp_step import FsdpCase, Instant, Step, distribute

if TYPE_CHECKING:
    from torch.distributed._tools.mem_tracker import MemTracker

_OPERATIONS = {
    "_allgather_base_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
}


@dataclass(frozen=True, kw_only=True)
class Held:
    """What rank 0 keeps at an instant, in bytes."""

    weights: int  # its pieces, and the units that are whole just then
    gradients: int
    optimizer: int
    activations: int
    temporary: int  # of backward

    @property
    def total(self) -> int:
        """All of it but the batch."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.temporary


@dataclass(frozen=True, kw_only=True)
class Calls:
    """Collectives of one kind along one axis in a step; `nbytes` are those of the whole tensors, all calls together."""

    axis: str
    operation: str
    times: int
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A step that is not the first: between steps, when the loss is known, before the update, and at its peak."""

    held: dict[Instant, Held]
    calls: tuple[Calls, ...]


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A trace of a whole model as `make trace` wrote it down: each takes a minute."""

    case: FsdpCase
    trace: Trace
    seconds: int


def recorded() -> tuple[Recorded, ...]:
    """The traces of the last `make trace`; `presets.read("trace", "fsdp_tp")` also says when and with what."""
    return tuple(_recorded(**row) for row in presets.read("trace", "fsdp_tp")["cases"])


def _recorded(
    model: str,
    dp: int,
    tp: int,
    sequence: int,
    checkpointing: bool,
    seconds: int,
    held: dict[Instant, dict[str, int]],
    calls: Sequence[dict[str, Any]],
) -> Recorded:
    case = FsdpCase(config=load_model(model), dp=dp, tp=tp, sequence=sequence, checkpointing=checkpointing)
    found = Trace(held={name: Held(**parts) for name, parts in held.items()}, calls=tuple(Calls(**x) for x in calls))
    return Recorded(case=case, trace=found, seconds=seconds)


def trace(cases: Sequence[FsdpCase]) -> tuple[Trace, ...]:
    """Trace a step of each, one after the other, in one new process: a fake group is that of a whole process.

    Weights, their gradients and Adam's moments last in fp32; gradients are added up in fp32, and the loss computed of
    fp32 logits.
    Cost: 1 to 2 s a case of few layers, 1 to 2 minutes for 80; below 1 GiB.
    """
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as process:
        return tuple(process.map(_trace, cases))


def _trace(case: FsdpCase) -> Trace:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    warnings.simplefilter("ignore")  # PyTorch's, of hooks on a model whose inputs need no gradient
    with _fake_ranks(case) as mesh:
        model = distribute(case, mesh)  # outside the mode, in which meshes are not taken apart (torch 2.13)
        with FakeTensorMode(allow_non_fake_inputs=True):
            model.to_empty(device="cpu")
            step = Step(case, model)
            step.run(lambda: None)  # Adam's moments come, and what PyTorch works out but once
            tracker, counter = MemTracker(), _Counter(mesh)
            tracker._update_peak_stats = partial(_keep_peak, tracker)  # type: ignore[method-assign]
            tracker.track_external(model, step.optimizer, step.tokens)
            with _shapes_unseen(), tracker, counter:
                held = step.run(partial(_held, tracker, "current"))
    return Trace(held={**held, "peak": _held(tracker, "peak")}, calls=counter.calls())


@contextmanager
def _shapes_unseen() -> Iterator[None]:
    """Hide from the trackers the whole tensors that DTensor makes where it asks an operation for its output's shape.

    In a run they have no memory. Here nothing has, and 8 GiB of logits on paper would count as the peak.
    """
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    asked = ShardingPropagator._propagate_tensor_meta_non_cached

    def unseen(self: Any, schema: Any) -> Any:
        with _disable_current_modes():
            return asked(self, schema)

    with patch.object(ShardingPropagator, asked.__name__, unseen):
        yield


@contextmanager
def _fake_ranks(case: FsdpCase) -> Iterator[DeviceMesh]:
    """A mesh whose other ranks do not exist; messages arrive at once, and say nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=case.dp * case.tp)
    try:
        yield init_device_mesh("cpu", (case.dp, case.tp), mesh_dim_names=("dp", "tp"))
    finally:
        torch.distributed.destroy_process_group()


def _held(tracker: MemTracker, when: str) -> Held:
    found = {str(getattr(kind, "value", kind)): size for kind, size in _on_cpu(tracker, when).items()}
    return Held(
        weights=found["Parameter"],
        gradients=found["Gradient"],
        optimizer=found["Optstate"],
        activations=found["Activation"],
        temporary=found["Temp"],
    )


def _keep_peak(tracker: MemTracker, _: object) -> None:
    """Of all that is tracked; PyTorch's own keeps each module's too, which takes most of the time of 80 layers."""
    for device, now in tracker._curr_mem_snap.items():
        if sum(now.values()) > sum(tracker._peak_mem_snap.get(device, {}).values()):
            tracker._peak_mem_snap[device] = dict(now)


def _on_cpu(tracker: MemTracker, when: str) -> dict[Any, int]:
    return tracker.get_tracker_snapshot(when)[torch.device("cpu")]


class _Counter(TorchDispatchMode):
    """Counts collectives and the bytes of their tensors."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.axes: dict[str, str] = {mesh.get_group(axis).group_name: axis for axis in ("dp", "tp")}
        self.times: Counter[tuple[str, str]] = Counter()
        self.nbytes: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind is DTensor for kind in types):
            return NotImplemented  # it asks again, part by part
        found = func(*args, **(kwargs or {}))
        if func.namespace in ("c10d", "_c10d_functional") and (operation := self._operation(func)):
            key = self._axis(args), operation
            self.times[key] += 1
            self.nbytes[key] += max(x.nbytes for x in tree_leaves((args, found)) if isinstance(x, Tensor))
        return found

    def calls(self) -> tuple[Calls, ...]:
        """By axis and kind."""
        return tuple(
            Calls(axis=axis, operation=kind, times=self.times[axis, kind], nbytes=self.nbytes[axis, kind])
            for axis, kind in sorted(self.times)
        )

    @staticmethod
    def _operation(func: Any) -> str | None:
        return _OPERATIONS.get(func.name().partition("::")[2].partition(".")[0])

    def _axis(self, args: Any) -> str:
        """Of the group among the arguments: by its name, or boxed."""
        for x in args:
            if isinstance(x, torch.ScriptObject) and "ProcessGroup" in str(x._type()):
                x = torch.distributed.ProcessGroup.unbox(x).group_name
            if isinstance(x, str) and x in self.axes:
                return self.axes[x]
        raise LookupError("a collective of a group that is no axis")
