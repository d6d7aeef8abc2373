"""`make gpu`: what one GPU can show of the course's claims, written down with its day for the lesson.

The ladder climbs in float64 over NCCL with one rank, gradients in bf16 are held against float64's, and steps of Llama
1B and 8B are measured: bytes at each instant, and seconds. What does not fit into this GPU is written down as such.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch.distributed as dist

from course_lib import presets
from course_lib.config import TrainConfig, load_model, parse_model
from course_lib.costs.model.longest_sequence import Room, longest_sequence
from course_lib.costs.model.two_axes import TwoAxes
from course_lib.gauges.fsdp_step import FsdpCase
from course_lib.gauges.on_gpu import batch_on_gpu, measure, room, rounding
from course_lib.models.decoder import Decoder
from course_lib.parallel.table.mesh import make_mesh
from course_lib.schedules import make_schedule
from course_lib.training.setup import Technique
from course_lib.training.sharding import fully_shard, zero
from course_lib.training.techniques import replicate, stages
from course_lib.training.tensor_technique import tensor
from course_lib.training.torch_sharding import torch_fully_shard, torch_zero
from course_lib.training.torch_techniques import torch_replicate, torch_tensor
from course_lib.training.trainer import Trainer
from course_lib.units import GiB
from course_lib.verify import assert_parallel_equals
from tools.gpu_files import asks_for_a_gpu, write
from tools.paths import ROOT

FOLDER = ROOT / "course_lib/presets/gpu"
SMALL = parse_model(presets.read("tiny", "tiny_llama")).config
TECHNIQUES: dict[str, tuple[Technique, ...]] = {
    "replicate": (replicate(),),
    "zero 1": (zero(1),),
    "zero 2": (zero(2),),
    "fully_shard": (fully_shard(),),
    "tensor": (tensor(),),
    "tensor and fully_shard": (tensor(), fully_shard()),
    "stages": (stages(make_schedule("1f1b", 1, 2)),),
    "torch_replicate": (torch_replicate(),),
    "torch_zero": (torch_zero(),),
    "torch_fully_shard": (torch_fully_shard(),),
    "torch_tensor and torch_fully_shard": (torch_tensor(), torch_fully_shard()),
}
STEPS = [  # model, sequence, checkpointing, offload
    ("llama3_2_1b", 1024, False, False),
    ("llama3_2_1b", 4096, False, False),
    ("llama3_2_1b", 4096, True, False),
    ("llama3_2_1b", 16384, True, False),
    ("llama3_2_1b", 4096, True, True),
    ("llama3_1_8b", 1024, False, False),
    ("llama3_1_8b", 1024, True, False),
    ("llama3_1_8b", 4096, True, False),
    ("llama3_1_8b", 8192, True, False),
]


def alone(config: TrainConfig) -> Trainer:
    """One device."""
    return Trainer(Decoder(SMALL).cuda(), config)


def on_rank(apply: tuple[Technique, ...], config: TrainConfig) -> Trainer:
    """The only rank of a mesh, over NCCL."""
    assert dist.get_backend() == "nccl"
    return Trainer(Decoder(SMALL).cuda(), config, mesh=make_mesh(dp=1), apply=apply)


def ladder() -> Iterator[dict[str, Any]]:
    """The whole ladder for each technique, with one rank."""
    batches = partial(batch_on_gpu, vocab_size=SMALL.vocab_size, sequence=8, sequences=4)
    for name, apply in TECHNIQUES.items():
        report = assert_parallel_equals(alone, partial(on_rank, apply), batches, world_size=1)
        yield {"technique": name, "deviation": report.max_deviation}


def rounded() -> Iterator[dict[str, Any]]:
    """Two layers of Llama 8B in bf16 against float64: one device, and FSDP of both kinds."""
    config = replace(load_model("llama3_1_8b"), n_layers=2)
    for name, found in rounding(config).items():
        yield {
            "technique": name,
            "tensors": len(found),
            "sound": sum(one.is_sound for one in found),
            "alone": max(one.alone for one in found),
            "ranks": max(one.ranks for one in found),
        }


def steps() -> Iterator[dict[str, Any]]:
    """Each case in a process of its own."""
    for model, sequence, checkpointing, offload in STEPS:
        given: dict[str, Any] = {"sequence": sequence, "checkpointing": checkpointing, "offload": offload}
        found = measure(FsdpCase(config=load_model(model), dp=1, **given))
        print(model, given, "does not fit" if found is None else f"peak {found.held['peak'] / GiB:.2f} GiB", flush=True)
        yield {"model": model, **given, **({"held": None, "step_s": None} if found is None else asdict(found))}


def limits() -> Iterator[dict[str, Any]]:
    """The longest text that fits by the formula, and whether one a little shorter does, and one a little longer."""
    free, model = room(), "llama3_1_8b"
    config = load_model(model)
    for checkpointing in (False, True):
        run = TwoAxes(dp=1, checkpointing=checkpointing, fused_norms=True)
        longest = longest_sequence(config, run, Room(device=free)).sequence
        row: dict[str, Any] = {"model": model, "checkpointing": checkpointing, "room": free, "longest": longest}
        for share in (98, 102):
            sequence = longest * share // 100
            fits = measure(FsdpCase(config=config, dp=1, sequence=sequence, checkpointing=checkpointing)) is not None
            row[f"fits {share} %"] = fits
        yield row


def main() -> None:
    """Write the file of this machine."""
    asks_for_a_gpu("make gpu")
    tables = {"ladder": ladder, "rounding": rounded, "steps": steps, "limits": limits}
    write(FOLDER, "python -m tools.gpu_checks", tables)


if __name__ == "__main__":
    main()
