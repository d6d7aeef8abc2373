"""`python -m course_lib doctor`: what would go wrong in a training run, in a few lines, before it starts."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from course_lib.cli import train_model, train_run
from course_lib.cli.compose import parse_overrides
from course_lib.cli.train_config import KEYS, TrainRun, read_train
from course_lib.costs.model.conventions import Convention
from course_lib.costs.model.parameters import model_parameters
from course_lib.costs.sweep.advice import Asked, indivisible, memory_of, replicated, uneven, ways_to_fit
from course_lib.costs.sweep.gpu_memory import GpuMemory, Work
from course_lib.hardware import Device, load_device
from course_lib.parallel.tensor_plan import plan_for
from course_lib.ranks import devices
from course_lib.units import format_bytes, format_count

_COMMAND = "doctor"
_DEVICE = "device"
_USUAL = "h100_sxm_80"
_MOMENTS = {"sgd": 0, "adamw": 2}  # numbers that the optimizer keeps of each parameter


def doctor_command(overrides: Sequence[str]) -> int:
    """Say what would stop the training run that the overrides ask for; return 0 if nothing would, else 1.

    Raises: ValueError for what is no training run at all.
    """
    parsed = parse_overrides(_COMMAND, "a training run", overrides, keys=(*KEYS, _DEVICE), groups=("model", _DEVICE))
    device = next((str(one.value()) for one in parsed if one.key_or_group == _DEVICE), _USUAL)
    run = read_train([str(one.input_line) for one in parsed if one.key_or_group != _DEVICE], lambda ranks: None)
    lines, would_run = _examine(run, load_device(device))
    print("\n".join(lines))
    return 0 if would_run else 1


def _examine(run: TrainRun, device: Device) -> tuple[list[str], bool]:
    """The lines, and whether the run would run on such devices."""
    asked = asked_of(run)
    lines = [_heading(run), devices.in_words()]
    if problems := [f"does not divide: {problem}" for problem in indivisible(asked)] or list(_refused(run)):
        return [*lines, *problems, "it would not run, whatever the memory"], False
    lines += [f"divides unevenly: {fact}" for fact in uneven(asked)]
    lines += [f"stays replicated: {fact}" for fact in (*replicated(asked), *_whole(run))]
    memory, room = memory_of(asked), device.memory_bytes()
    lines.append(_memory(run, memory, device))
    if memory.total <= room:
        return [*lines, "it would run"], True
    ways = ways_to_fit(asked, room)
    lines += [f"would fit with {' '.join(flags)}: {format_bytes(total)}" for flags, total in ways]
    return [*lines, f"it would not run on {device.name}{'' if ways else ', whatever the flags'}"], False


def asked_of(run: TrainRun) -> Asked:
    """The run in numbers, as the formulas take it."""
    itemsize = getattr(torch, run.dtype).itemsize
    moments = _MOMENTS[run.config.optimizer]
    states = Convention(
        name=run.dtype,
        weights=itemsize,
        gradients=itemsize,
        optimizer=moments * itemsize,
        assumes=f"{run.dtype} throughout",
        source="course_lib.training",
    )
    computing = getattr(torch, run.values["param_dtype"] or run.dtype)
    return Asked(
        model=run.model,
        parallel=replace(run.parallel, sequence_parallel=run.sequence_parallel is not None),
        work=Work(
            sequence=run.sequence,
            microbatch=1,
            n_microbatches=run.schedule.n_microbatches if run.schedule is not None else 1,
            itemsize=computing.itemsize,
            recompute="full" if run.recompute else "none",
            fused_norms=run.folder is None,  # those of transformers are written in Python
            keep_gathered=run.sequence_parallel == "keep",
        ),
        convention=states,
        batch=max(run.parallel.dp, run.batch // run.config.accumulation),
        engine="torch" if run.engine == "torch" else "own",
        offload=run.values["offload"] is not None,
    )


def _heading(run: TrainRun) -> str:
    where = run.parallel.in_words or "one device"
    stage = f", zero_stage={run.parallel.zero_stage}" if run.parallel.zero_stage else ""
    size = f"{format_count(model_parameters(run.model))} parameters in {run.dtype}"
    return f"{run.model.name}, {size}; engine={run.engine}, {where}{stage}, batch={run.batch}, sequence={run.sequence}"


def _refused(run: TrainRun) -> Iterator[str]:
    """What stops the run when its model is built, cut and loaded; what is said of that besides, `_whole` says."""
    for problem, check in (("cannot be built", train_run.check_shape), ("cannot be loaded", train_run.check_weights)):
        try:
            with warnings.catch_warnings(action="ignore"):
                check(run)
        except ValueError as error:
            yield f"{problem}: {error}"


def _whole(run: TrainRun) -> list[str]:
    """What the plan of a model of transformers leaves whole on every rank along tp."""
    if run.parallel.tp == 1 or run.folder is None:
        return []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        plan_for(train_model.on_meta(run))
    return [f"{str(one.message).partition('whole: ')[2]}; the memory below counts them as shared" for one in said]


def _memory(run: TrainRun, memory: GpuMemory, device: Device) -> str:
    """By what it is for."""
    parts = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "gathered weights": memory.gathered,
        "activations": memory.activations,
        "head and loss": memory.head,
    }
    named = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items() if size)
    strategy = run.values["strategy"]
    as_if = f", as if strategy=FULL_SHARD and not {strategy}" if strategy not in (None, "FULL_SHARD") else ""
    room = f"{device.name} has at least {format_bytes(device.memory_bytes())}"
    return f"memory by formula{as_if}: {format_bytes(memory.total)} ({named}); {room}"
