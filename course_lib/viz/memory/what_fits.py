"""Whether a model fits on so many GPUs, your own too: a bar for each stage of ZeRO, with and without recompute."""

from __future__ import annotations

from typing import Any

from course_lib.config import ModelConfig, ParallelConfig, load_model
from course_lib.costs.model.activations import Recompute
from course_lib.costs.model.conventions import find_convention
from course_lib.costs.sweep.assembly import GpuMemory
from course_lib.costs.sweep.gpu_memory import Work, tensor_memory
from course_lib.errors import four_parts
from course_lib.hardware import device_names, load_device
from course_lib.models.config_text import config_from_text
from course_lib.viz.ink.drawing import Drawing
from course_lib.viz.memory.gpu import plot_gpu_memory
from course_lib.viz.memory.parts import bytes_table
from course_lib.viz.widgets import controls
from course_lib.viz.widgets.controls import Panel, Table, Values
from course_lib.viz.widgets.explorer import Explorer

_CONVENTION = "zero"  # the one that lesson 01 starts from
_STAGES = ("no ZeRO", "ZeRO-1", "ZeRO-2", "ZeRO-3, FSDP")
_ADDED: dict[Recompute, str] = {"none": "", "layers": ", recomputed"}
_REACH = 2.0  # the axis ends at so many times the device's memory, whatever the bars are
_FIRST: dict[str, Any] = {
    **{"config": "", "model": "llama3_1_8b", "device": "h100_sxm_80", "gpus": 8, "tp": 1},
    **{"sequence": 4096, "microbatch": 1},
}
_PRESETS = {
    "8B on one node": _FIRST,
    "70B on one node": {**_FIRST, "model": "llama3_1_70b", "tp": 8},
    "405B on 512 GPUs": {**_FIRST, "model": "llama3_1_405b", "gpus": 512, "tp": 8},
}


def what_fits_explorer() -> Explorer:
    """Controls for a model and its GPUs, above what one GPU holds in each of eight ways, on an axis that stays.

    The text of a model's config.json takes the place of the published models. Ranks that share matrices share the
    sequence too. An outline is the picture before.
    """
    return Explorer(what_fits_panel())


def what_fits_panel() -> Panel:
    """The same without widgets, with a table of each part's bytes."""
    devices = {load_device(name).name: name for name in device_names()}
    return Panel(
        draw=_draw,
        controls={
            "model": controls.model_choice(_FIRST["model"]),
            "device": controls.choice("device", _FIRST["device"], devices),
            "gpus": controls.slider("GPUs", _FIRST["gpus"], controls.powers_of_two(1, 1024)),
            "tp": controls.slider("tensor (tp)", _FIRST["tp"], controls.powers_of_two(1, 16)),
            "sequence": controls.slider("sequence", _FIRST["sequence"], controls.powers_of_two(512, 131_072)),
            "microbatch": controls.slider("micro-batch", _FIRST["microbatch"], controls.powers_of_two(1, 64)),
            "config": controls.file_text("config.json"),
        },
        presets=_PRESETS,
        compares=True,
        table=_bytes,
    )


def _draw(*, before: Values | None, **now: Any) -> Drawing:
    device, shape = load_device(now["device"]), _shape(now)
    spread = f"dp {now['gpus'] // now['tp']}, tp {now['tp']}"
    return plot_gpu_memory(
        _ways(**now),
        device,
        title=f"What fits: {shape.name} on {now['gpus']:,} GPU{'s' * (now['gpus'] > 1)}",
        subtitle=f"{spread}; sequence {now['sequence']:,}, micro-batch {now['microbatch']:,}; tensors alone",
        reach_bytes=_REACH * device.memory_bytes(),
        before=list(_ways(**before).values()) if before else [],
        unit="GB",
    )


def _bytes(**now: Any) -> Table:
    return bytes_table(_ways(**now), load_device(now["device"]))


def _shape(now: Values) -> ModelConfig:
    return config_from_text(now["config"]) if now["config"].strip() else load_model(now["model"])


def _ways(**now: Any) -> dict[str, GpuMemory]:
    """By name, what each way leaves on a GPU."""
    gpus, tp = now["gpus"], now["tp"]
    if gpus % tp:
        rule = "a replica takes tp GPUs"
        raise ValueError(four_parts("what_fits_explorer", f"gpus={gpus}, tp={tp}", rule, f"choose tp <= {gpus}"))
    ways = [(stage, recompute) for recompute in _ADDED for stage in range(len(_STAGES))]
    return {_STAGES[stage] + _ADDED[recompute]: _one(now, stage, recompute) for stage, recompute in ways}


def _one(now: Values, stage: int, recompute: Recompute) -> GpuMemory:
    tp = now["tp"]
    parallel = ParallelConfig(dp=now["gpus"] // tp, tp=tp, zero_stage=stage, sequence_parallel=tp > 1)
    work = Work(sequence=now["sequence"], microbatch=now["microbatch"], recompute=recompute)
    return tensor_memory(_shape(now), parallel, work, find_convention(_CONVENTION))
