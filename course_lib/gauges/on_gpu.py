"""A step of FSDP2 on a real GPU, held against the formulas: what one device can show of memory, speed and rounding.

One GPU is one rank over NCCL: nothing is exchanged, but every kernel, every format and every byte is real. The tensors
are those of `fake_scale`, which traces the same code on ranks that do not exist.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from statistics import median
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh

from course_lib import presets
from course_lib.config import ModelConfig, TrainConfig, load_model
from course_lib.gauges.fsdp_step import FsdpCase, Instant, Step, distribute
from course_lib.models.decoder import Decoder
from course_lib.parallel.table.mesh import make_mesh
from course_lib.training.batches import Batch
from course_lib.training.sharding import fully_shard
from course_lib.training.torch_sharding import torch_fully_shard
from course_lib.training.trainer import Trainer
from course_lib.verify.rounding import Rounding, compare_rounding

STEPS = 5  # that are timed, after one in which Adam's moments come
SEQUENCE = 1024  # of the gradients that are compared
_GAPS = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}  # the allocator leaves none between tensors
_TECHNIQUES = {"fully_shard": fully_shard, "torch_fully_shard": torch_fully_shard}
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A step as it was on the GPU: bytes that torch had allocated, and seconds."""

    held: dict[Instant, int]
    step_s: float  # the median


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A measurement that `make gpu` wrote down."""

    case: FsdpCase
    found: Measured


def names() -> tuple[str, ...]:
    """The result files, each called by its day and its device."""
    return presets.names("gpu")


def recorded(name: str | None = None) -> tuple[Recorded, ...]:
    """The steps of a result file that fitted, by default the newest's; `presets.read("gpu", name)` has the rest."""
    return tuple(_recorded(**row) for row in presets.read("gpu", name or names()[-1])["steps"] if row["held"])


def _recorded(
    model: str, sequence: int, checkpointing: bool, offload: bool, held: dict[Instant, int], step_s: float
) -> Recorded:
    sizes: dict[str, Any] = {"sequence": sequence, "checkpointing": checkpointing, "offload": offload}
    return Recorded(case=FsdpCase(config=load_model(model), dp=1, **sizes), found=Measured(held=held, step_s=step_s))


def measure(case: FsdpCase) -> Measured | None:
    """Train a few steps of it in a new process on the first GPU; None if its memory does not suffice.

    Cost: half a minute, most of it to start.
    """
    return _in_new_process(_measure, case)


def _measure(case: FsdpCase) -> Measured | None:
    with _alone_over_nccl() as mesh:
        try:
            step = Step(case, distribute(case, mesh, "cuda"), "cuda", fused=True)
            step.run(_allocated)
            seconds = []
            for _ in range(STEPS):
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                started = time.perf_counter()
                held = step.run(_allocated)
                torch.cuda.synchronize()
                seconds.append(time.perf_counter() - started)
        except torch.cuda.OutOfMemoryError:
            return None
        return Measured(held={**held, "peak": torch.cuda.max_memory_allocated()}, step_s=median(seconds))


def room() -> int:
    """Bytes of the first GPU that tensors may fill, beside what CUDA, NCCL and cuBLAS take of it."""
    return _in_new_process(_room)


def _room() -> int:
    with _alone_over_nccl():
        x = torch.ones(64, 64, device="cuda")
        dist.all_reduce(x @ x)
        free, _ = torch.cuda.mem_get_info()
        return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def _allocated() -> int:
    return torch.cuda.memory_allocated()


def _in_new_process(work: Callable[..., T], *given: Any) -> T:
    """What `work` returns where nothing has touched the GPU before."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as process:
        return process.submit(work, *given).result()


@contextmanager
def _alone_over_nccl() -> Iterator[DeviceMesh]:
    """This process as the only rank of a mesh ("dp", "tp")."""
    os.environ.update(_GAPS)
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", rank=0, world_size=1, store=HashStore())
    try:
        yield make_mesh(dp=1, tp=1)
    finally:
        dist.destroy_process_group()


def rounding(config: ModelConfig) -> dict[str, list[Rounding]]:
    """How far gradients in bf16 are from those in float64, by technique: one device alone, and FSDP over NCCL.

    The same weights throughout, which bf16 can hold, on one sequence.
    """
    return _in_new_process(_rounding, config)


def _rounding(config: ModelConfig) -> dict[str, list[Rounding]]:
    with _alone_over_nccl():
        mesh, half = make_mesh(dp=1), torch.bfloat16
        exact = _gradients(_born(config).double())
        alone = _gradients(_born(config).to(half))
        found = {}
        for name, technique in _TECHNIQUES.items():
            shared = technique(param_dtype=half, reduce_dtype=torch.float32)
            found[name] = compare_rounding(exact, alone, _gradients(_born(config), mesh=mesh, apply=(shared,)))
        return found


def _born(config: ModelConfig) -> Decoder:
    torch.manual_seed(0)
    with torch.device("cuda"):
        return Decoder(config).to(torch.bfloat16).float()


def _gradients(model: Decoder, **how: Any) -> dict[str, Tensor]:
    batch = batch_on_gpu(0, model.config.vocab_size, SEQUENCE)
    trainer = Trainer(model, TrainConfig(optimizer="sgd", learning_rate=0.1), **how)
    trainer.compute_gradients(batch)
    return {name: x.cpu() for name, x in trainer.gradients().items()}


def batch_on_gpu(number: int, vocab_size: int, sequence: int, sequences: int = 1) -> Batch:
    """Words at random, the same for the same number, each to be followed by the next one."""
    words = torch.randint(vocab_size, (sequences, sequence + 1), generator=torch.Generator().manual_seed(number))
    return words[:, :-1].cuda(), words[:, 1:].cuda()
