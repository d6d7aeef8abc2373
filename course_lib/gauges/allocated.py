"""Two gauges of memory: what autograd saves, and what PyTorch's allocator gave and has not got back."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from itertools import accumulate

import torch
from torch import Tensor, nn

from course_lib.comm import rooms
from course_lib.training.step import storage_bytes


def saved_bytes(model: nn.Module, forward: Callable[[], object]) -> int:
    """Bytes that autograd keeps for backward while `forward` runs, without the model's own weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: list[Tensor] = []  # held, so that no address is used twice

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept.append(tensor.detach())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    return storage_bytes(kept)


def allocated_bytes(work: Callable[[], object]) -> int:
    """Bytes that `work` allocated and that still exist when it has returned; its result counts as existing."""
    return sum(_given(work))


def peak_bytes(work: Callable[[], object]) -> int:
    """The most bytes beyond those of the beginning that existed at any moment while `work` ran."""
    return max(accumulate(_given(work)), default=0)


def _given(work: Callable[[], object]) -> list[int]:
    """What was allocated one after the other; what was given back has a minus.

    The allocator reports each piece, whoever holds it: no list of tensors is needed. What is kept for the next
    messages to arrive in is let go of first. On a CPU.
    """
    thread = threading.get_ident()
    rooms.forget(thread)
    gc.collect()  # what is freed meanwhile would count with a minus
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = work()
        rooms.forget(thread)
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    del result
    return [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
