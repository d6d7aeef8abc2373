"""Distributed data parallelism: every rank trains the whole model on its share, and gradients are averaged."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.utils._pytree import tree_leaves

from course_lib.comm import call
from course_lib.errors import four_parts
from course_lib.parallel.data import replicate
from course_lib.parallel.data.buckets import BUCKET_CAP_MB
from course_lib.parallel.data.guarded import DENSE, GuardedReducer
from course_lib.parallel.data.options import OPERATION, Hook, Plan
from course_lib.parallel.data.static import StaticReducer
from course_lib.parallel.table import agreement


class DistributedDataParallel(nn.Module):
    """Wrap a model on every rank, then only call `loss.backward()`: the gradients are averages over the ranks.

    Keywords that PyTorch has mean what they mean there. `init_sync` copies the first rank's parameters and buffers at
    wrapping; `broadcast_buffers` its buffers before each forward that follows one which averaged, evaluation too: to
    evaluate on one rank alone, call `.module`. With `find_unused_parameters` a rank may have no gradient of some
    parameters, which counts as zero. `static_graph` says that each backward is like the first one, whose order of
    gradients the buckets then follow. A bucket is closed at `bucket_cap_mb` MiB: 0 gives each gradient its own,
    `math.inf` all of them one. `device_ids` and `output_device` are ignored: model and inputs are where they are. Our
    own are `algorithm`, and `overlap`, which reduces buckets while backward goes on.

    As in PyTorch, a gradient taken by `torch.autograd.grad` is not averaged and nobody waits for it. Complex
    parameters are welcome, sparse gradients refused.

    Cost: `course_lib.costs.comm.ddp`. The buckets are a second copy of the gradients, unless these are made views of
    them by `gradient_as_bucket_view`; then the next backward overwrites a gradient that you kept.
    Source: Li et al. 2020, PyTorch Distributed.
    Raises: ValueError, the same on all ranks, if the ranks' models or options differ.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        device_ids: Sequence[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        process_group: ProcessGroup | None = None,
        algorithm: str = "ring",
        bucket_cap_mb: float = BUCKET_CAP_MB,
        overlap: bool = True,
        init_sync: bool = True,
        broadcast_buffers: bool = True,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
    ) -> None:
        plan = Plan(
            group=call.resolve(process_group, OPERATION),
            algorithm=algorithm,
            bucket_cap_mb=bucket_cap_mb,
            overlap=overlap,
            init_sync=init_sync,
            broadcast_buffers=broadcast_buffers,
            find_unused_parameters=find_unused_parameters,
            gradient_as_bucket_view=gradient_as_bucket_view,
            static_graph=static_graph,
        )
        agreement.same_model(OPERATION, module, plan.options, plan.group)
        _check(module, bucket_cap_mb)
        if init_sync:
            replicate.broadcast_state(module, plan.group, plan.first_rank)
        else:
            agreement.same_values(OPERATION, module, plan.group)
        self._hold(module, plan)

    def _hold(self, module: nn.Module, plan: Plan) -> None:
        super().__init__()
        self.module, self.plan = module, plan
        kind = StaticReducer if plan.static_graph else GuardedReducer
        self._reducer: GuardedReducer = kind(module, plan)
        self._syncing = self._send_buffers = True

    def __deepcopy__(self, memo: dict[int, Any]) -> DistributedDataParallel:
        """A wrapper in the same group around a copy of the model; nothing is sent."""
        twin = memo[id(self)] = type(self).__new__(type(self))
        twin._hold(copy.deepcopy(self.module, memo), self.plan)
        twin._reducer.hook = self._reducer.hook
        return twin

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.plan.broadcast_buffers and self._send_buffers:
            buffers = list(self.module.buffers())
            replicate.broadcast_tensors(buffers, self.plan.group, self.plan.first_rank)
        training = torch.is_grad_enabled()
        # Buffers can only have come apart where ranks trained, and torch sends them no sooner than an average.
        self._send_buffers = training and self._syncing
        if not training:
            return self.module(*args, **kwargs)
        self._reducer.prepare_for_backward(self._syncing)
        output = self.module(*args, **kwargs)
        fields = vars(output) if is_dataclass(output) else output  # as transformers answer
        for tensor in tree_leaves(fields):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                self._reducer.watch(tensor)
        return output

    def register_comm_hook(self, hook: Hook) -> None:
        """Let `hook(plan, bucket)` work on each bucket in place of `options.allreduce_hook`; all ranks the same one."""
        self._reducer.hook = hook

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients add up on each rank alone: forward and backward of all micro-batches but a step's last."""
        before, self._syncing = self._syncing, False
        try:
            yield
        finally:
            self._syncing = before


def _check(module: nn.Module, bucket_cap_mb: float) -> None:
    if not bucket_cap_mb >= 0:  # NaN is no size either
        way_out = f"0 gives each gradient its own, math.inf all of them one, {BUCKET_CAP_MB} suits most models"
        raise ValueError(four_parts(OPERATION, f"{bucket_cap_mb=}", "a bucket has a size in MiB", way_out))
    if not any(parameter.requires_grad for parameter in module.parameters()):
        rule = "there must be a gradient to average"
        raise ValueError(four_parts(OPERATION, "no trained parameter", rule, "leave a frozen model unwrapped"))
    sparse = []
    for name, layer in module.named_modules():
        is_table = isinstance(layer, nn.Embedding | nn.EmbeddingBag)
        if is_table and layer.sparse and layer.weight.requires_grad:
            sparse.append(f"{name}.weight".lstrip("."))  # the model itself has no name
    if sparse:
        values = f"{agreement.listing(sparse)} with sparse=True"
        raise ValueError(four_parts(OPERATION, values, DENSE, "pass sparse=False"))
