"""What happens to gradients during backward: they fill buckets, and each full bucket's all-reduce starts at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.autograd.graph import Node

from course_lib import comm
from course_lib.errors import four_parts
from course_lib.parallel.data import expected, graph
from course_lib.parallel.data.buckets import DENSE, Bucket, fill, trained
from course_lib.parallel.data.options import OPERATION, Plan, allreduce_hook
from course_lib.parallel.table.hooks import when_gradient_came

Hook = Callable[[Plan, Bucket], comm.Work | None]


class Reducer:
    """Averages the gradients of a model over the group during every backward for which it was prepared so.

    A hook on each parameter runs as soon as its gradient is complete. Buckets are launched in their own order, the
    same on all ranks, whatever the order in which they fill. When backward is through, a callback of the autograd
    engine launches what is left and waits for all. Parameters go by their number in `names`.
    """

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        named = trained(model)
        self.plan, self.names, self.parameters = plan, list(named), list(named.values())
        self.hook: Hook = allreduce_hook
        self.expected = expected.policy(plan, self.names, self.parameters[0].device, plan.group)
        self.syncing = True
        self.running = False  # a backward
        self.expecting = False  # one, since the wrapper's last forward
        self.used: set[int] = set()  # has got a gradient since the last average, under no_sync too
        self.rebuild_buckets(range(len(self.parameters)))
        for number, parameter in enumerate(self.parameters):
            when_gradient_came(parameter, self.mark_ready, number)

    def prepare_for_backward(self, syncing: bool) -> None:
        """Before forward: say whether its backward averages, and clear away a backward that raised."""
        self.syncing, self.expecting = syncing, True
        if self.running:
            for bucket in self.buckets:
                bucket.give_up()
            self.running, self.used = False, set()
            self.rebuild_buckets([number for bucket in self.buckets for number in bucket.numbers])  # may be written to

    def watch(self, output: Tensor) -> None:
        """Begin when backward comes to an output, so that a rank whose batch reaches no parameter takes part."""
        if output.grad_fn is not None:
            leaves = graph.first_leaves(output.grad_fn, self.parameters)  # the node itself would keep the hook alive
            output.register_hook(partial(self.begin_if_accumulating, leaves))

    def begin_if_accumulating(self, leaves: Sequence[Node], _: Tensor) -> None:
        """Backward is at an output: unless it is `torch.autograd.grad`'s, there will be gradients to average."""
        if not self.running and any(map(graph.accumulates, leaves)):
            self.begin_backward()

    def begin_backward(self) -> None:
        """Backward has come to the model: by its output, or by a first gradient."""
        if self.running or not self.syncing:
            return
        self.running = True
        self.arrived: dict[int, None] = {}  # in this backward, in order
        self.launched = 0  # buckets
        awaited = self.expected.awaited()
        for bucket in self.buckets:
            bucket.begin(place for place, number in enumerate(bucket.numbers) if number in awaited)
        Variable._execution_engine.queue_callback(self.finalize_backward)

    def mark_ready(self, number: int, _: Tensor) -> None:
        """One parameter's gradient is complete."""
        if self.expecting:
            self.begin_backward()
        if self.syncing and not self.running:
            return  # a backward of the bare model, or of a later wrapper around it
        self.used.add(number)
        if not self.syncing:
            return
        self._check_dense(number)
        self.arrived[number] = None
        if number in self.places:
            bucket, place = self.places[number]
            if bucket.launched:
                values = f"the gradient of {self.names[number]} came after its bucket was sent"
                rule = "a launched bucket is complete"
                raise ValueError(four_parts(OPERATION, values, rule, "pass overlap=False"))
            bucket.mark_ready(place)
        if self.plan.overlap and not self.is_first_of_static:
            self.launch_ready()

    def _check_dense(self, number: int) -> None:
        gradient = self.parameters[number].grad
        if gradient is not None and gradient.layout is not torch.strided:
            values = f"a sparse gradient of {self.names[number]}"
            raise ValueError(four_parts(OPERATION, values, DENSE, "let the layer make dense ones"))

    def launch_ready(self) -> None:
        """Start the all-reduces of the buckets that are full; none overtakes another."""
        while self.launched < len(self.buckets) and not self.buckets[self.launched].pending:
            self.launch_next()

    def launch_next(self) -> None:
        """Hand the next bucket to the communication hook."""
        bucket = self.buckets[self.launched]
        self.launched += 1
        bucket.launch(partial(self.hook, self.plan))

    def finalize_backward(self) -> None:
        """Backward is through: average what is left, wait for all, and look at what got no gradient."""
        while self.launched < len(self.buckets):
            self.launch_next()
        for bucket in self.buckets:
            bucket.wait()
        self.running = self.expecting = False
        used, self.used = self.used, set()
        rebuilding = self.is_first_of_static
        given = self.expected.settle(used)
        for number in given:
            if number in self.places:  # a static graph's buckets hold what it uses
                bucket, place = self.places[number]
                bucket.give(place)
        if rebuilding:
            self.rebuild_in_order_of_arrival(given)

    @property
    def is_first_of_static(self) -> bool:
        """Whether buckets still have to learn a static graph's order."""
        return isinstance(self.expected, expected.Static) and self.expected.first is None

    def rebuild_in_order_of_arrival(self, kept: set[int]) -> None:
        """New buckets of these, in the order in which the first rank's gradients came.

        Cost: one broadcast of 8 bytes for each parameter.
        """
        mine = [*self.arrived, *(number for number in range(len(self.parameters)) if number not in self.arrived)]
        order = torch.tensor(mine, device=self.parameters[0].device)
        order = comm.broadcast(order, src=self.plan.first_rank, group=self.plan.group)
        self.rebuild_buckets([number for number in order.tolist() if number in kept])
        for bucket in self.buckets:
            for place in range(len(bucket.parameters)):
                bucket.take(place)

    def rebuild_buckets(self, order: Sequence[int]) -> None:
        """Fill buckets with these parameters in this order."""
        numbers = {id(self.parameters[number]): number for number in order}
        parts = fill([self.parameters[number] for number in order], self.plan.bucket_bytes)
        as_view = self.plan.gradient_as_bucket_view
        self.buckets = [Bucket(part, [numbers[id(p)] for p in part], as_view=as_view) for part in parts]
        self.places = {
            number: (bucket, place) for bucket in self.buckets for place, number in enumerate(bucket.numbers)
        }
