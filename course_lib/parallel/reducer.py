"""What happens to gradients during backward: they fill buckets, and each full bucket's all-reduce starts at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed import ProcessGroup, ReduceOp

from course_lib import comm
from course_lib.comm.switches import active
from course_lib.errors import four_parts
from course_lib.parallel import agreement
from course_lib.parallel.buckets import Bucket, fill, trained

OPERATION = "DistributedDataParallel"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a model is kept the same on all ranks."""

    group: ProcessGroup
    algorithm: str
    bucket_bytes: int
    overlap: bool
    sync: bool
    broadcast_buffers: bool
    find_unused_parameters: bool
    static_graph: bool

    @property
    def options(self) -> dict[str, object]:
        """What every rank must have chosen alike."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "group"}

    @property
    def first_rank(self) -> int:
        """The rank whose state and order hold for all."""
        return dist.get_process_group_ranks(self.group)[0]


def average(flat: Tensor, plan: Plan) -> comm.Handle | None:
    """Average one bucket over the ranks, in the background if communication may overlap with backward."""
    if plan.overlap:
        return comm.iall_reduce_(flat, op=ReduceOp.AVG, algorithm=plan.algorithm, group=plan.group)
    comm.all_reduce_(flat, op=ReduceOp.AVG, algorithm=plan.algorithm, group=plan.group)
    return None


class Reducer:
    """Averages the gradients of a model over the group during every backward while `syncing` is on.

    A hook on each parameter runs as soon as its gradient is complete. Buckets are launched in their own order, the
    same on all ranks, whatever the order in which they fill. When backward is through, a callback of the autograd
    engine launches what is left and waits for all. Parameters go by their number in `names`.
    """

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        self.plan = plan
        self.syncing = True
        named = trained(model)
        self.names, self.parameters = list(named), list(named.values())
        self.running = False  # a backward
        self.expecting = False  # one, since the wrapper's last forward
        self.used: set[int] = set()  # has got a gradient since the last average, under no_sync too
        self.settled: set[int] | None = None  # of a static graph: what its first backward used on this rank
        self._deal(range(len(self.parameters)))
        for number, parameter in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(partial(self.ready, number))

    def prepare(self, syncing: bool) -> None:
        """Before forward: say whether its backward averages, and clear away a backward that raised."""
        self.syncing, self.expecting = syncing, True
        if self.running:
            for handle in self.handles:
                handle.give_up()
            self.running, self.used = False, set()
            self._deal([number for bucket in self.members for number in bucket])  # an old call may still write

    def begin(self, *_: object) -> None:
        """Backward has come to the model: by its output, or by a first gradient."""
        if self.running or not self.syncing:
            return
        self.running = True
        self.arrived: dict[int, None] = {}  # in this backward, in order
        self.handles: list[comm.Handle] = []
        self.launched = 0
        absent = set() if self.settled is None else set(self.places) - self.settled
        self.missing = [len(set(bucket) - absent) for bucket in self.members]
        Variable._execution_engine.queue_callback(self.finish)

    def ready(self, number: int, _: Tensor) -> None:
        """One parameter's gradient is complete."""
        if self.expecting:
            self.begin()
        if self.syncing and not self.running:
            return  # a backward of the bare model, or of a later wrapper around it
        self.used.add(number)
        if not self.syncing:
            return
        again = number in self.arrived
        self.arrived[number] = None
        bucket, place = self.places.get(number, (len(self.buckets), 0))
        if bucket < self.launched:
            values = f"the gradient of {self.names[number]} came after its bucket was sent"
            rule = "a launched bucket is complete"
            raise ValueError(four_parts(OPERATION, values, rule, "pass overlap=False"))
        if bucket < len(self.buckets) and not again:
            self.buckets[bucket].take(place)
            self.missing[bucket] -= 1
        if self.plan.overlap and not self._first_of_static:
            while self.launched < len(self.buckets) and not self.missing[self.launched]:
                self.launch()

    def launch(self) -> None:
        """Start the all-reduce of the next bucket."""
        bucket = self.buckets[self.launched]
        for place, number in enumerate(self.members[self.launched]):
            if number not in self.arrived:
                bucket.take(place)
        self.launched += 1
        handle = average(bucket.flat, self.plan)
        self.handles += [handle] if handle else []

    def finish(self) -> None:
        """Backward is through: average what is left, wait for all, and look at what got no gradient."""
        while self.launched < len(self.buckets):
            self.launch()
        for handle in self.handles:
            handle.wait()
        self.running = self.expecting = False
        used, self.used = self.used, set()
        if self._first_of_static:
            self._settle(used)
        elif self.settled is not None:
            self._require(used, self.settled)
            self._give(set(self.places))
        elif self.plan.find_unused_parameters:
            self._give(self._used_anywhere(used))
        else:
            self._require(used, set(self.places))

    @property
    def _first_of_static(self) -> bool:
        return self.plan.static_graph and self.settled is None

    def _deal(self, order: Sequence[int]) -> None:
        """Fill buckets with these parameters in this order."""
        numbers = {id(self.parameters[number]): number for number in order}
        parts = fill([self.parameters[number] for number in order], self.plan.bucket_bytes)
        self.buckets = [Bucket(part) for part in parts]
        self.members = [[numbers[id(parameter)] for parameter in part] for part in parts]
        self.places = {number: (b, at) for b, part in enumerate(self.members) for at, number in enumerate(part)}

    def _give(self, numbers: set[int]) -> None:
        """Let these parameters have the average as gradient, also if this rank added nothing to it."""
        for number in numbers:
            bucket, place = self.places[number]
            self.buckets[bucket].give(place)

    def _used_anywhere(self, used: set[int]) -> set[int]:
        """Which parameters got a gradient on any rank. Cost: one all-reduce of a byte for each parameter."""
        flags = torch.zeros(len(self.parameters), dtype=torch.uint8, device=self.parameters[0].device)
        flags[list(used)] = 1
        comm.all_reduce_(flags, op=ReduceOp.MAX, algorithm=self.plan.algorithm, group=self.plan.group)
        return set(flags.nonzero().flatten().tolist())

    def _settle(self, used: set[int]) -> None:
        """Rebuild the buckets in the order in which gradients came on the first rank, without what nobody uses.

        Cost: one all-reduce of a byte and one broadcast of 8 bytes for each parameter.
        """
        anywhere = self._used_anywhere(used)
        self._give(anywhere)
        mine = [*self.arrived, *(number for number in range(len(self.parameters)) if number not in self.arrived)]
        order = torch.tensor(mine, device=self.parameters[0].device)
        order = comm.broadcast(order, src=self.plan.first_rank, group=self.plan.group)
        self._deal([number for number in order.tolist() if number in anywhere])
        for bucket in self.buckets:
            for place in range(len(bucket.parameters)):
                bucket.take(place)
        self.settled = used

    def _require(self, used: set[int], expected: set[int]) -> None:
        """Raise if other parameters got gradients than must, on all ranks if the guard is on."""
        lacking, extra = sorted(expected - used), sorted(used - expected)
        problems = [
            f"{what} {agreement.listing([self.names[number] for number in numbers])} on rank {dist.get_rank()}"
            for what, numbers in (("no gradient of", lacking), ("a gradient of", extra))
            if numbers
        ]
        rule, way_out = "every backward brings a gradient of every trained parameter on every rank", "freeze it, or "
        if self.settled is not None:
            rule, way_out = (
                "a static graph's gradients are always those of its first backward",
                "pass static_graph=False, ",
            )
        agreement.no_problem(
            OPERATION,
            " and ".join(problems),
            rule,
            f"{way_out}pass find_unused_parameters=True",
            self.plan.group,
            compare=active.guard,
        )
