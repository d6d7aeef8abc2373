"""The care that `DistributedDataParallel` takes around the plain `Reducer`: which backward counts, and what it brought.

The plain one averages in every backward, and expects each gradient once. Here backwards under no_sync, of the bare
model and of `torch.autograd.grad` send nothing, and a gradient that is missing, sparse or late is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from course_lib import comm
from course_lib.errors import four_parts
from course_lib.parallel.data import expected, graph
from course_lib.parallel.data.buckets import Bucket, Reducer, trained
from course_lib.parallel.data.options import OPERATION, Hook, Plan, allreduce_hook

DENSE = "a bucket has room for every number of a gradient"  # the rule that a sparse one breaks


class GuardedReducer(Reducer):
    """Averages the gradients of a model over the group during every backward for which it was prepared so.

    Messages call parameters by their `names`; `expected` knows them by their number there.
    """

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        named = trained(model)
        self.plan, self.names = plan, list(named)
        parameters = list(named.values())
        self.numbers = {parameter: number for number, parameter in enumerate(parameters)}
        self.hook: Hook = allreduce_hook
        self.expected = expected.policy(plan, self.names, parameters[0].device, plan.group)
        self.syncing = True
        self.expecting = False  # a backward, since the wrapper's last forward
        self.used: set[int] = set()  # has got a gradient since the last average, under no_sync too
        super().__init__(
            parameters, plan.group, plan.algorithm, plan.bucket_bytes, as_view=plan.gradient_as_bucket_view
        )

    def average(self, bucket: Bucket) -> comm.Work | None:
        """Let the communication hook do it, which may be the user's."""
        return self.hook(self.plan, bucket)

    # --- which backward counts ---

    def prepare_for_backward(self, syncing: bool) -> None:
        """Before forward: say whether its backward averages, and clear away a backward that raised."""
        self.syncing, self.expecting = syncing, True
        if self.running:
            for bucket in self.buckets:
                bucket.give_up()
            self.running = False
            self.used = set()
            # An all-reduce that was given up may still write to its bucket: nobody may use that memory again.
            self.fill_buckets(list(self.home))

    def watch(self, output: Tensor) -> None:
        """Begin when backward comes to an output, so that a rank whose batch reaches no parameter takes part."""
        if output.grad_fn is not None:
            leaves = graph.first_leaves(output.grad_fn, self.parameters)  # the node itself would keep the hook alive
            output.register_hook(partial(self.begin_if_accumulating, leaves))

    def begin_if_accumulating(self, leaves: Sequence[Node], _: Tensor) -> None:
        """Backward is at an output: unless it is `torch.autograd.grad`'s, there will be gradients to average."""
        if not self.running and any(map(graph.accumulates, leaves)):
            self.begin()

    def begin(self) -> None:
        """Backward has come to the model: by its output, or by a first gradient."""
        if not self.syncing:
            return
        super().begin()
        for number in set(range(len(self.parameters))) - self.expected.awaited():
            parameter = self.parameters[number]
            if parameter in self.home:
                bucket, place = self.home[parameter]
                bucket.mark_ready(place)  # nobody waits for it

    # --- what it brings ---

    def mark_ready(self, parameter: nn.Parameter) -> None:
        """One parameter's gradient is complete."""
        if self.expecting and not self.running:
            self.begin()
        if self.syncing and not self.running:
            return  # a backward of the bare model, or of a later wrapper around it
        self.used.add(self.numbers[parameter])
        if not self.syncing:
            return
        gradient = parameter.grad
        if gradient is not None and gradient.layout is not torch.strided:
            values = f"a sparse gradient of {self.names[self.numbers[parameter]]}"
            raise ValueError(four_parts(OPERATION, values, DENSE, "let the layer make dense ones"))
        home = self.home.get(parameter)
        if home is None:
            return  # a static graph's buckets hold what it uses
        bucket, _ = home
        if bucket.launched:
            values = f"the gradient of {self.names[self.numbers[parameter]]} came after its bucket was sent"
            rule = "a launched bucket is complete"
            raise ValueError(four_parts(OPERATION, values, rule, "pass overlap=False"))
        super().mark_ready(parameter)

    def launch_full(self) -> None:
        """Unless buckets may overlap with backward, all of them wait for its end."""
        if self.plan.overlap:
            super().launch_full()

    def hand_out(self) -> None:
        """Give averages to those who are to have them: no gradient is not a gradient of zero."""
        self.expecting = False
        used, self.used = self.used, set()
        for number in self.expected.settle(used):
            parameter = self.parameters[number]
            if parameter in self.home:
                bucket, place = self.home[parameter]
                bucket.give(place)
