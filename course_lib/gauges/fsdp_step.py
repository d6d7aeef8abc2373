"""One step of PyTorch's own FSDP2 x DTensor on our decoder: traced on ranks that do not exist, measured on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from course_lib.config import ModelConfig, ParallelConfig
from course_lib.models.decoder import Decoder
from course_lib.parallel.tensors.plan import plan_for
from course_lib.parallel.tensors.styles import styles_of
from course_lib.training.step import loss_of
from course_lib.training.torch_plan import parallel_plan
from course_lib.training.torch_recompute import torch_recompute_layers

Instant = Literal["start", "loss", "gradients", "peak"]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class FsdpCase:
    """A step of one sequence on each of dp ranks; tp neighbours share each sequence and every matrix."""

    config: ModelConfig
    dp: int
    tp: int = 1
    sequence: int = 4096
    checkpointing: bool = False  # each layer keeps its input and computes once more in backward
    sequence_parallel: bool = True  # the tp ranks share what lies between the blocks
    loss_parallel: bool = True  # and the logits
    computing: Literal["bf16", "fp32"] = "bf16"  # what weights are gathered as
    offload: bool = False  # what lasts is in the host's memory, and Adam works there

    def __post_init__(self) -> None:
        parallel = ParallelConfig(dp=self.dp, tp=self.tp, sequence_parallel=self.sequence_parallel and self.tp > 1)
        parallel.check(self.config, sequence=self.sequence)


def distribute(case: FsdpCase, mesh: DeviceMesh, device: str = "meta") -> nn.Module:
    """Tensor parallelism inside, then checkpointing, then FSDP2 by blocks; on meta not a byte is allocated."""
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
    from torch.distributed.tensor.parallel import parallelize_module

    with torch.device(device):
        model = Decoder(case.config)
    if case.tp > 1:
        plan = parallel_plan(model, styles_of(model, plan_for(model)), sequence_parallel=case.sequence_parallel)
        parallelize_module(model, mesh["tp"], plan, src_data_rank=None)
    dtype = torch.bfloat16 if case.computing == "bf16" else torch.float32
    policy = partial(MixedPrecisionPolicy, param_dtype=dtype, reduce_dtype=torch.float32)
    where: dict[str, Any] = {
        "mesh": mesh["dp"],
        "offload_policy": CPUOffloadPolicy() if case.offload else OffloadPolicy(),
    }
    inner = policy(cast_forward_inputs=False)  # angles of later positions need more digits than bf16 has
    if case.checkpointing:
        torch_recompute_layers(model)
    for layer in model.layers:
        fully_shard(layer, mp_policy=inner, **where)
    outer = policy(output_dtype=torch.float32)
    fully_shard(model, mp_policy=outer, reshard_after_forward=False, **where)
    return model


class Step:
    """A batch of one sequence on each rank, and what trains on it.

    `fused` is one kernel for all of Adam: its usual form on a GPU makes tensors as large as all weights on the way.
    """

    def __init__(self, case: FsdpCase, model: nn.Module, device: str = "cpu", *, fused: bool = False) -> None:
        from torch.distributed.tensor.parallel import loss_parallel

        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
        self.tokens = torch.arange(case.sequence, device=device)[None] % case.config.vocab_size
        self.in_parts = case.tp > 1 and case.loss_parallel
        self.around = loss_parallel if self.in_parts else nullcontext

    def run(self, look: Callable[[], T]) -> dict[Instant, T]:
        """One step; `look` is asked for what there is, when something lasting has come or gone."""
        found: dict[Instant, T] = {"start": look()}
        with self.around():
            loss = loss_of(self._logits(), self.tokens) / self.tokens.numel()
            found["loss"] = look()
            loss.backward()
        del loss
        found["gradients"] = look()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return found

    def _logits(self) -> Tensor:
        """A DTensor with tp > 1: this rank's part of them, or all."""
        found: Any = self.model(self.tokens)
        return found.full_tensor() if isinstance(found, DTensor) and not self.in_parts else found
