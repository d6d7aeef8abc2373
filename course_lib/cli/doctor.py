"""`python -m course_lib doctor`: what would go wrong in a training run, in a few lines, before it starts."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from typing import Any

import torch

from course_lib.cli import train_checks
from course_lib.cli.assumed import assumed_line
from course_lib.cli.commands import DEVICE
from course_lib.cli.compose import parse_overrides, refuse
from course_lib.cli.doctor_text import look_at_text
from course_lib.cli.doctor_whole import whole_pieces
from course_lib.cli.train_config import KEYS, TrainRun, read_train
from course_lib.config.parallel import CUT_IN_ALL, Piece
from course_lib.costs.model.conventions import Convention
from course_lib.costs.model.parameters import model_parameters
from course_lib.costs.sweep.advice import Asked, indivisible, replicated, uneven, ways_to_fit
from course_lib.costs.sweep.assembly import GpuMemory
from course_lib.costs.sweep.assumptions import adapter_fields
from course_lib.costs.sweep.gpu_memory import gpu_memory
from course_lib.costs.sweep.job import Job
from course_lib.costs.sweep.software import Software
from course_lib.hardware import Device, load_device
from course_lib.ranks import devices
from course_lib.units import format_bytes, format_count

_COMMAND = "doctor"
_MOST_RANKS = 2**20
_SETTINGS = {  # of `train`, by what they decide of a job
    "convention": "precision",
    "optimizer": "optimizer",
    "offload": "offload",
    "sequence_parallel": "sequence_parallel",
    "recompute": "recompute",
    "schedule": "schedule",
    "context": "context",
}


def doctor_command(overrides: Sequence[str]) -> int:
    """Say what would stop the training run that the overrides ask for; return 0 if nothing would, else 1.

    Raises: ValueError for what is no training run at all.
    """
    parsed = parse_overrides(
        _COMMAND, "a training run", overrides, keys=(*KEYS, DEVICE.name), groups=("model", DEVICE.name)
    )
    device = next((str(one.value()) for one in parsed if one.key_or_group == DEVICE.name), DEVICE.default)
    run = read_train([str(one.input_line) for one in parsed if one.key_or_group != DEVICE.name], _check_ranks)
    lines, would_run = _examine(run, load_device(device))
    print("\n".join(lines))
    return 0 if would_run else 1


def _check_ranks(ranks: int) -> None:
    """Ranks of a cluster, not of this machine."""
    if ranks > _MOST_RANKS:
        refuse(_COMMAND, f"{ranks} ranks", "no cluster has so many", f"give degrees whose product is <= {_MOST_RANKS}")


def _examine(run: TrainRun, device: Device) -> tuple[list[str], bool]:
    """The lines, and whether the run would run on such devices."""
    whole, reasons = whole_pieces(run)
    asked = asked_of(run, whole)
    lines = [_heading(run), devices.in_words()]
    if problems := [f"does not divide: {problem}" for problem in indivisible(asked)] or list(_refused(run)):
        return [*lines, *problems, "it would not run, whatever the memory"], False
    lines += [f"divides unevenly: {fact}" for fact in uneven(asked)]
    lines += [f"stays replicated: {fact}" for fact in (*replicated(asked), *(reasons if run.parallel.tp > 1 else ()))]
    memory, room = gpu_memory(asked.counted), device.usable_bytes
    lines += [_memory(run, memory, device), _assumed(run, asked.counted, device), _usual(asked.counted)]
    ways = ways_to_fit(asked, room, lambda flags: _is_taken(run, flags, whole, room)) if memory.total > room else []
    lines += [f"would fit with {' '.join(flags)}: {format_bytes(total)}" for flags, total in ways]
    text, unseen = _text(run)
    lines += [f"cannot be trained on: {text}"] if text else []
    if memory.total > room:
        return [*lines, f"it would not run on {device.name}{'' if ways else ', whatever the flags'}"], False
    if text:
        return [*lines, "it would not run on this text"], False
    return [*lines, *([f"not looked at: {', '.join(unseen)}"] if unseen else []), "it would run"], True


def _is_taken(run: TrainRun, flags: Sequence[str], whole: Set[Piece], room: int) -> bool:
    """Whether `train` takes the run with these flags, and it then fits: tried, since its rules are not all here."""
    changed = {word.partition("=")[0]: word for word in (*run.overrides, *" ".join(flags).split())}
    try:
        other = read_train([*changed.values()], _check_ranks)
        with warnings.catch_warnings(action="ignore"):
            train_checks.check_shape(other)
    except ValueError:
        return False
    return bool(gpu_memory(asked_of(other, whole).counted).total <= room)


def _text(run: TrainRun) -> tuple[str, list[str]]:
    """Why the run's text would be refused, if it would; and what of all that it reads nobody has looked at."""
    numbers = ["the numbers of its weights"] if train_checks.reads_weights(run) else []
    try:
        rest = look_at_text(run)
    except ValueError as error:
        return str(error), numbers
    return "", numbers + ([rest] if rest else [])


def asked_of(run: TrainRun, whole: Set[Piece] = CUT_IN_ALL) -> Asked:
    """The run in numbers, as the formulas take it; `whole_pieces` says what every rank along tp would have whole."""
    pipeline: dict[str, Any] = (
        {"schedule": run.schedule.name, "stages_per_rank": run.schedule.stages_per_rank} if run.schedule else {}
    )
    job = Job(
        model=run.model,
        parallel=replace(run.parallel, sequence_parallel=run.sequence_parallel is not None),
        sequence=run.sequence,
        batch=max(run.parallel.dp, run.batch // run.config.accumulation),
        recompute=run.recompute,
        group=run.group,
        loss_pieces=run.values["loss_chunks"],
        software=Software(kind="eager", kernel="naive" if run.values["attention"] == "naive" else "flash2"),
        convention=_states(run),
        optimizer=run.config.optimizer,
        offload="all" if run.values["offload"] is not None else "none",
        itemsize=getattr(torch, run.precision.gathered or run.precision.lasting).itemsize,
        products=getattr(torch, run.precision.products).itemsize if run.precision.products else None,
        fused_norms=run.folder is None,  # those of transformers are written in Python
        keep_gathered=run.sequence_parallel == "keep",
        whole=whole,
        **({"context": run.values["context"]} if run.parallel.cp > 1 else {}),
        **pipeline,
        **(adapter_fields(run.values["adapter"], run.values["rank"]) if run.values["adapter"] else {}),
    )
    return Asked(
        job=job,
        n_microbatches=run.schedule.n_microbatches if run.schedule is not None else 1,
        accumulation=run.config.accumulation,
        engine="torch" if run.engine == "torch" else "own",
        is_own_decoder=run.folder is None,
    )


def _states(run: TrainRun) -> Convention:
    """The trainer keeps all in the model's own format."""
    one = run.precision
    itemsize, lasting = one.itemsize, one.lasting
    how = f"computed in {one.gathered}" if one.gathered else one.products and f"products in {one.products}"
    assumes = f"{lasting}, {how}" if how else f"{lasting} throughout"
    return Convention(
        name=lasting,
        weights=itemsize,
        gradients=itemsize,
        optimizer=2 * itemsize,
        moments=2 * itemsize,
        assumes=assumes,
        source="course_lib.training",
    )


def _heading(run: TrainRun) -> str:
    where = run.parallel.in_words or "one device"
    stage = f", zero_stage={run.parallel.zero_stage}" if run.parallel.zero_stage else ""
    size = f"{format_count(model_parameters(run.model))} parameters in {run.precision.lasting}"
    return f"{run.model.name}, {size}; engine={run.engine}, {where}{stage}, batch={run.batch}, sequence={run.sequence}"


def _refused(run: TrainRun) -> Iterator[str]:
    """What stops the run when its model is built, cut and loaded; what stays whole then, `whole_pieces` says."""
    for problem, check in (
        ("cannot be built", train_checks.check_shape),
        ("cannot be loaded", train_checks.check_weights),
    ):
        try:
            with warnings.catch_warnings(action="ignore"):
                check(run)
        except ValueError as error:
            yield f"{problem}: {error}"


def _memory(run: TrainRun, memory: GpuMemory, device: Device) -> str:
    """By what it is for."""
    parts = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "gathered weights": memory.gathered,
        "activations": memory.activations,
        "head and loss": memory.head,
        "context, buffers and fragments": memory.other,
    }
    named = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items() if size)
    strategy = run.values["strategy"]
    as_if = f", as if strategy=FULL_SHARD and not {strategy}" if strategy not in (None, "FULL_SHARD") else ""
    room = f"{device.name} offers {format_bytes(device.usable_bytes)}"
    return f"memory by formula{as_if}: {format_bytes(memory.total)} ({named}); {room}"


def _usual(job: Job) -> str:
    """The same layout by what `plan` and `sweep` assume, which most clusters train with."""
    names = ("model", "sequence", "batch", "microbatch", "recompute", "schedule", "stages_per_rank")
    parallel = replace(job.parallel, sequence_parallel=job.parallel.tp > 1)
    usual = Job(parallel=parallel, **{name: getattr(job, name) for name in names})
    told = {name: words for name, words in usual.assumptions.items() if words != job.assumptions[name]}
    named = "; ".join(f"{name}={words}" for name, words in told.items())
    return f"the same by what plan and sweep assume: {format_bytes(gpu_memory(usual).total)} ({named})"


def _assumed(run: TrainRun, job: Job, device: Device) -> str:
    """What the run leaves to `train`, and what no setting of it says."""
    typed = {word.partition("=")[0] for word in run.overrides}
    given = [key for key, name in _SETTINGS.items() if name in typed]
    given += ["compute_dtype", *["kernel"] * ("attention" in typed)]  # of which the first is said with the convention
    return assumed_line(job, device, given, names=_SETTINGS)
