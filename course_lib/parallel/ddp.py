"""Distributed data parallelism: every rank trains the whole model on its share, and gradients are averaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.utils._pytree import tree_leaves

from course_lib.comm import call
from course_lib.errors import four_parts
from course_lib.parallel import agreement, replicate
from course_lib.parallel.buckets import BUCKET_BYTES
from course_lib.parallel.plan import OPERATION, Plan
from course_lib.parallel.reducer import Hook, Reducer


class DistributedDataParallel(nn.Module):
    """Wrap a model on every rank, then only call `loss.backward()`: the gradients are averages over the ranks.

    `overlap` reduces buckets while backward goes on. `sync` copies the first rank's parameters and buffers at
    wrapping, `broadcast_buffers` its buffers before each forward that begins a step. With `find_unused_parameters`
    a rank may have no gradient of some parameters, which counts as zero. `static_graph` says that each backward is
    like the first one, whose order of gradients the buckets then follow. As in PyTorch, a gradient taken by
    `torch.autograd.grad` is not averaged.

    Cost: `course_lib.costs.comm.ddp`. Source: Li et al. 2020, PyTorch Distributed.
    Raises: ValueError, the same on all ranks, if the ranks' models or options differ.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        group: ProcessGroup | None = None,
        algorithm: str = "ring",
        bucket_bytes: int = BUCKET_BYTES,
        overlap: bool = True,
        sync: bool = True,
        broadcast_buffers: bool = True,
        find_unused_parameters: bool = False,
        static_graph: bool = False,
    ) -> None:
        super().__init__()
        self.module = module
        self.plan = Plan(
            group=call.resolve(group, OPERATION),
            algorithm=algorithm,
            bucket_bytes=bucket_bytes,
            overlap=overlap,
            sync=sync,
            broadcast_buffers=broadcast_buffers,
            find_unused_parameters=find_unused_parameters,
            static_graph=static_graph,
        )
        agreement.same_model(OPERATION, module, self.plan.options, self.plan.group)
        _check(module, bucket_bytes)
        if sync:
            replicate.broadcast_state(module, self.plan.group, self.plan.first_rank)
        else:
            agreement.same_values(OPERATION, module, self.plan.group)
        self._reducer = Reducer(module, self.plan)
        self._syncing = self._step_begins = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.module(*args, **kwargs)
        if self.plan.broadcast_buffers and self._step_begins:
            replicate.broadcast_tensors([*self.module.buffers()], self.plan.group, self.plan.first_rank)
        self._step_begins = self._syncing
        self._reducer.prepare_for_backward(self._syncing)
        output = self.module(*args, **kwargs)
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                tensor.register_hook(
                    self._reducer.begin_backward
                )  # so that a rank whose batch reaches no parameter takes part
        return output

    def register_comm_hook(self, hook: Hook) -> None:
        """Let `hook(plan, bucket)` work on each bucket in place of `plan.allreduce_hook`; all ranks the same one."""
        self._reducer.hook = hook

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients add up on each rank alone: forward and backward of all micro-batches but a step's last."""
        before, self._syncing = self._syncing, False
        try:
            yield
        finally:
            self._syncing = before


def _check(module: nn.Module, bucket_bytes: int) -> None:
    if bucket_bytes < 1:
        rule = "a bucket holds at least one byte"
        raise ValueError(four_parts(OPERATION, f"bucket_bytes={bucket_bytes}", rule, "25 MiB suits most models"))
    if not any(parameter.requires_grad for parameter in module.parameters()):
        rule = "there must be a gradient to average"
        raise ValueError(four_parts(OPERATION, "no trained parameter", rule, "leave a frozen model unwrapped"))
