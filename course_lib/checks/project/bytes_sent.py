"""What the project's trainers hand to collectives, in bytes: counted, and by formula."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from course_lib.checks.project.one_device import WIDTH
from course_lib.checks.project.tasks import Task, trained_numbers
from course_lib.ranks.script import Ended

_FP64 = 8
_TP, _BLOCKS = 2, 2
_SINGLE = ("reduce_scatter_tensor", "all_gather_into_tensor")  # the same, of one tensor instead of a list
_COUNTED = frozenset({"all_reduce", "reduce_scatter", "all_gather", *_SINGLE})


def gradient_bytes(rank: Ended) -> int:
    """Of one rank, all but the single numbers of losses and norms, and what rank 0 broadcasts at the start."""
    return sum(call.bytes for call in rank.calls if call.operation in _COUNTED and call.bytes > _FP64)


def _replicas(task: Task, processes: int) -> int:
    """All gradients in each step."""
    return len(task["batches"]) * trained_numbers(task) * _FP64


def _shards(task: Task, processes: int) -> int:
    """In each step a part of the gradients, then one of the weights, both padded to equal parts."""
    part = -(-trained_numbers(task) // processes)
    return len(task["batches"]) * 2 * part * _FP64


def _mesh(task: Task, processes: int) -> int:
    """In each step the gradients that rank 0 holds, and for each row four sums: forward and backward of two blocks.

    Once, at the end, its part of what is cut.
    """
    cut = [name for name in task["weights"] if ".up." in name or name.endswith("down.weight")]
    held = {name: w.numel() // (_TP if name in cut else 1) for name, w in task["weights"].items()}
    gradients = sum(numbers for name, numbers in held.items() if name not in task["frozen"])
    gathered = sum(held[name] for name in cut)
    rows = sum(len(_own(x, processes // _TP)) for x, _ in task["batches"])
    return (len(task["batches"]) * gradients + rows * 2 * _BLOCKS * WIDTH + gathered) * _FP64


def _own(x: Tensor, replicas: int) -> Tensor:
    return x.tensor_split(replicas)[0]


TARGETS: dict[str, Callable[[Task, int], int]] = {"replicas": _replicas, "shards": _shards, "mesh": _mesh}
