"""What fills a GPU in training, turned by its controls: a model, its device, and how it is spread."""

from __future__ import annotations

from typing import Any, get_args

from course_lib.config import ParallelConfig, load_model
from course_lib.costs.model.activations import Recompute
from course_lib.costs.model.conventions import find_convention
from course_lib.costs.sweep.assembly import GpuMemory
from course_lib.costs.sweep.gpu_memory import Work, tensor_memory
from course_lib.hardware import device_names, load_device
from course_lib.viz.ink.drawing import Drawing
from course_lib.viz.memory.gpu import plot_gpu_memory
from course_lib.viz.memory.parts import bytes_table
from course_lib.viz.widgets import controls
from course_lib.viz.widgets.controls import Panel, Table, Values
from course_lib.viz.widgets.explorer import Explorer

_CONVENTION = "zero"  # the one that lesson 01 starts from
_REACH = 2.0  # the axis ends at so many times the device's memory, whatever the bars are
_FIRST: dict[str, Any] = {
    **{"model": "llama3_1_70b", "device": "h100_sxm_80", "dp": 16, "tp": 2, "pp": 1, "zero_stage": 3},
    **{"recompute": "none", "sequence": 4096, "microbatch": 1},
}
_PRESETS = {
    "70B on 64 GPUs": {**_FIRST, "dp": 8, "tp": 8},
    "70B, ZeRO-1": {**_FIRST, "dp": 64, "tp": 1, "zero_stage": 1},
    "70B, recomputed": {**_FIRST, "dp": 64, "tp": 1, "recompute": "layers"},
    "8B on one node": {**_FIRST, "model": "llama3_1_8b", "dp": 8, "tp": 1},
    "405B on 512 GPUs": {**_FIRST, "model": "llama3_1_405b", "dp": 32, "tp": 8, "pp": 2, "recompute": "layers"},
}


def memory_explorer() -> Explorer:
    """Controls for a model, its device and how it is spread, above what one GPU holds, on an axis that stays.

    Ranks that share matrices share the sequence too. Each replica has as many micro-batches as stages. An outline is
    the picture before.
    """
    return Explorer(memory_panel())


def memory_panel() -> Panel:
    """The same without widgets, with a table of each part's bytes."""
    devices = {load_device(name).name: name for name in device_names()}
    stages = {"none": 0, **{f"ZeRO-{stage}": stage for stage in (1, 2, 3)}}
    return Panel(
        draw=_memory_of_run,
        controls={
            "model": controls.model_choice(_FIRST["model"]),
            "device": controls.choice("device", _FIRST["device"], devices),
            "recompute": controls.choice("recompute", _FIRST["recompute"], get_args(Recompute)),
            "dp": controls.slider("data (dp)", _FIRST["dp"], controls.powers_of_two(1, 1024)),
            "tp": controls.slider("tensor (tp)", _FIRST["tp"], controls.powers_of_two(1, 16)),
            "pp": controls.slider("pipeline (pp)", _FIRST["pp"], controls.powers_of_two(1, 64)),
            "zero_stage": controls.choice("ZeRO stage", _FIRST["zero_stage"], stages),
            "sequence": controls.slider("sequence", _FIRST["sequence"], controls.powers_of_two(512, 131_072)),
            "microbatch": controls.slider("micro-batch", _FIRST["microbatch"], controls.powers_of_two(1, 64)),
        },
        presets=_PRESETS,
        compares=True,
        table=_bytes_of_run,
    )


def _memory_of_run(*, before: Values | None, **now: Any) -> Drawing:
    """The first stage and the last one: those between hold less."""
    shape, device, convention = load_model(now["model"]), load_device(now["device"]), find_convention(_CONVENTION)
    rows, old = _rows(**now), list(_rows(**before).values()) if before else []
    ranks = now["dp"] * now["tp"] * now["pp"]
    subtitle = (
        f"{_spread(now)}; sequence {now['sequence']:,}, micro-batch {now['microbatch']:,}, "
        f"recompute {now['recompute']}; {convention.bytes_per_parameter} B a parameter"
    )
    return plot_gpu_memory(
        rows,
        device,
        title=f"{shape.name} on {ranks:,} GPU{'s' * (ranks > 1)}",
        subtitle=subtitle,
        reach_bytes=_REACH * device.memory_bytes(),
        before=old,
        unit="GB",
    )


def _bytes_of_run(**now: Any) -> Table:
    return bytes_table(_rows(**now), load_device(now["device"]))


def _spread(now: dict[str, Any]) -> str:
    zero = f"ZeRO-{now['zero_stage']}" if now["zero_stage"] else "no ZeRO"
    return f"dp {now['dp']}, tp {now['tp']}, pp {now['pp']}, {zero}"


def _rows(
    *,
    model: str,
    device: str,
    dp: int,
    tp: int,
    pp: int,
    zero_stage: int,
    recompute: Recompute,
    sequence: int,
    microbatch: int,
) -> dict[str, GpuMemory]:
    parallel = ParallelConfig(dp=dp, tp=tp, pp=pp, zero_stage=zero_stage, sequence_parallel=tp > 1)
    work = Work(sequence=sequence, microbatch=microbatch, n_microbatches=pp, recompute=recompute)
    return {
        f"stage {stage + 1} of {pp}" if pp > 1 else "every GPU": tensor_memory(
            load_model(model), parallel, work, find_convention(_CONVENTION), stage=stage
        )
        for stage in sorted({0, pp - 1})
    }
