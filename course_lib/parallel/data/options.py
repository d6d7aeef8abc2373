"""How gradients are averaged over the ranks: what was chosen at wrapping, and the call that does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch.distributed as dist
from torch.distributed import ProcessGroup

from course_lib import comm
from course_lib.parallel.data.buckets import BUCKET_CAP_MB, Bucket, average_in_background, average_now
from course_lib.units import MiB

OPERATION = "DistributedDataParallel"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a model is kept the same on all ranks."""

    group: ProcessGroup
    algorithm: str = "ring"
    bucket_cap_mb: float = BUCKET_CAP_MB
    overlap: bool = True
    init_sync: bool = True
    broadcast_buffers: bool = True
    find_unused_parameters: bool = False
    gradient_as_bucket_view: bool = False
    static_graph: bool = False

    @property
    def options(self) -> dict[str, object]:
        """What every rank must have chosen alike."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "group"}

    @property
    def bucket_bytes(self) -> float:
        """What a bucket holds before the next one is begun."""
        return self.bucket_cap_mb * MiB

    @property
    def first_rank(self) -> int:
        """The rank whose state and order hold for all."""
        return dist.get_process_group_ranks(self.group)[0]


Hook = Callable[[Plan, Bucket], comm.Work | None]


def allreduce_hook(plan: Plan, bucket: Bucket) -> comm.Work | None:
    """Average one bucket over the ranks, in the background if communication may overlap with backward."""
    if plan.overlap:
        return average_in_background(bucket, plan.group, plan.algorithm)
    average_now(bucket, plan.group, plan.algorithm)
    return None
