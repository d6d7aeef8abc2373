"""Data parallelism under a pipeline: a stage's gradients are averaged when its last backward is through.

Hooks on parameters would be wrong here: a stage is backward once for every micro-batch, and the weights' gradients of a
backward in two parts never pass autograd.
"""

from __future__ import annotations

from functools import partial
from itertools import chain

from torch import nn
from torch.distributed import ProcessGroup

from course_lib.parallel.data import expected, replicate
from course_lib.parallel.data.buckets import Bucket, fill, homes, trained
from course_lib.parallel.data.options import Hook, Plan, allreduce_hook
from course_lib.parallel.pipelines.executor import Pipeline


class StageReducer:
    """Averages the gradients of a pipeline's stages on this rank over the group of `plan`.

    A weight that two stages of this rank use is complete with the later one. `together` are all ranks of all
    pipelines: if one has to raise, all do.
    """

    def __init__(self, pipeline: Pipeline, plan: Plan, together: ProcessGroup) -> None:
        self.plan = plan
        self.hook: Hook = allreduce_hook
        ends = pipeline.ends
        order = sorted(pipeline.stages, key=lambda stage: ends[stage])
        stages = nn.ModuleList(pipeline.stages[stage] for stage in order)
        complete_with: dict[nn.Parameter, int] = {}
        names: dict[nn.Parameter, str] = {}
        for stage, module in zip(order, stages, strict=True):
            for name, parameter in trained(module).items():
                complete_with[parameter] = stage  # the last one that uses it
                names.setdefault(parameter, name)
        self.parameters, self.names = list(names), list(names.values())
        self.buffers = list(stages.buffers())
        if plan.init_sync:
            replicate.broadcast_state(stages, plan.group, plan.first_rank)
        self.buckets: dict[int, list[Bucket]] = {}  # by stage
        for stage in order:
            mine = [parameter for parameter in self.parameters if complete_with[parameter] == stage]
            parts = fill(mine, plan.bucket_bytes)
            self.buckets[stage] = [Bucket(part, as_view=plan.gradient_as_bucket_view) for part in parts]
        self.home = homes(chain.from_iterable(self.buckets.values()))
        self.expected = expected.policy(plan, self.names, pipeline.device, together)

    def prepare_for_backward(self) -> None:
        """Before a step: buffers are the first rank's; nobody waits for a step that raised."""
        for bucket in chain.from_iterable(self.buckets.values()):
            bucket.give_up()
        if self.plan.broadcast_buffers:
            replicate.broadcast_tensors(self.buffers, self.plan.group, self.plan.first_rank)

    def mark_stage_ready(self, stage: int) -> None:
        """Start averaging what is complete with this stage, while others still compute."""
        for bucket in self.buckets[stage]:
            bucket.begin()
            bucket.launch(partial(self.hook, self.plan))

    def finalize_backward(self) -> None:
        """All stages are through: wait for the averages, and look at what got no gradient."""
        for bucket in chain.from_iterable(self.buckets.values()):
            bucket.wait()
        used = set()
        for number, parameter in enumerate(self.parameters):
            if parameter.grad is not None:
                used.add(number)
        for number in self.expected.settle(used):
            bucket, place = self.home[self.parameters[number]]
            bucket.give(place)
