"""The folder of a run: taken for it alone, with its configuration, its metrics and its last checkpoint.

What is whole has its own name and what is not has another, so a run that is killed at any moment leaves a folder that
the same command goes on from.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import yaml

from course_lib.cli.compose import refuse
from course_lib.cli.settings import every
from course_lib.cli.train_config import COMMAND, TrainRun
from course_lib.cli.train_model import EXPORTS, export_name
from course_lib.cli.train_settings import TRAIN
from course_lib.gauges.run_log import CONFIG, METRICS
from course_lib.training import export_folder, step_folders
from course_lib.training.checkpoint import replaced
from course_lib.training.loop import Step

TIME_IS_UP = "TIME_IS_UP"
_FREE = tuple(setting.name for setting in every(TRAIN) if setting.free)


@contextmanager
def taken(run: TrainRun) -> Iterator[None]:
    """Hold the folder `out` for this run; if it ends before its first step, nothing of it stays.

    Raises: ValueError if there is anything but an unfinished run with the same values, if another run has it now, or
    if the system refuses.
    """
    if run.out is None:
        yield
        return
    try:
        run.out.mkdir(exist_ok=True)
        descriptor = os.open(run.out, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        _refuse(run.out, f"cannot be written: {error.strerror}")
    try:
        _lock(descriptor, run.out)
        _check(run, run.out)
        try:
            (run.out / TIME_IS_UP).unlink(missing_ok=True)
            _write(run.out / CONFIG, run.as_yaml())
            yield
        finally:
            if not _has_checkpoint(run.out):
                _clear(run.out)
    finally:
        os.close(descriptor)  # and with it the lock


def _has_checkpoint(folder: Path) -> bool:
    """Whether a checkpoint is there, even one that cannot be read."""
    return os.path.lexists(folder / step_folders.POINTER) or bool(step_folders.whole_folders(folder))


def _has_steps(folder: Path) -> bool:
    metrics = folder / METRICS
    return metrics.is_file() and metrics.stat().st_size > 0


def _clear(folder: Path) -> None:
    """Remove what a run without a checkpoint has half written; without a step, all of it.

    The folder goes too, unless somebody else put something there.
    """
    step_folders.remove_unfinished(folder)
    for name in EXPORTS:
        export_folder.remove(folder / name)
    for path in folder.glob("*.unfinished"):
        path.unlink(missing_ok=True)
    if _has_steps(folder):
        return
    for path in (folder / CONFIG, folder / METRICS):
        path.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def _lock(descriptor: int, folder: Path) -> None:
    """The system takes the lock back when the process ends, however it ends."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _refuse(folder, "another run writes there now")


def _check(run: TrainRun, folder: Path) -> None:
    """Refuse a folder of something else."""
    done = _last_step(folder)
    if done >= run.steps:
        rule = f"the run in {str(folder)!r} has {done} already"
        refuse(COMMAND, f"steps={run.steps}", rule, f"give steps > {done}, or another folder as out=")
    if (folder / CONFIG).is_file():
        _check_values(run, (folder / CONFIG).read_bytes())
    elif any(path.suffix != ".unfinished" for path in folder.iterdir()):
        _refuse(folder, "it is there already, and each run has its own")
    if run.folder is not None and (place := export_folder.in_the_way(folder / export_name(run))) is not None:
        refuse(COMMAND, str(place), "the trained model is written there, and no run wrote this", "move it away")


def _check_values(run: TrainRun, text: bytes) -> None:
    """Refuse to go on with other values than the run began with; a constant rate does not ask for the last step."""
    free = _FREE if run.rate.schedule == "cosine" else (*_FREE, "steps")
    try:
        begun = dict(_flat(yaml.safe_load(text.decode("utf-8"))))
    except (yaml.YAMLError, AttributeError, UnicodeDecodeError, RecursionError):
        _refuse(run.out, f"its {CONFIG} is of no run")
    for name, value in _flat(run.values):
        if name == "model.weights" and begun.get(name) != value:
            rule = f"the adapters in {str(run.out)!r} were trained beside other weights"
            refuse(COMMAND, f"model={run.folder}", rule, "put these back, or name another folder as out=")
        if name not in free and begun.get(name) != value:
            rule = f"the unfinished run in {str(run.out)!r} began with {name}={begun.get(name)}"
            refuse(COMMAND, f"{name}={value}", rule, f"give {name}={begun.get(name)}, or another folder as out=")


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values, those of a field of the model as model.n_layers."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _refuse(folder: Path | None, rule: str) -> NoReturn:
    refuse(COMMAND, f"out={str(folder)!r}", rule, "name another folder")


def _last_step(folder: Path | None) -> int:
    """After how many steps the run's last checkpoint was written; 0 if there is none."""
    found = None if folder is None else step_folders.latest(folder)
    return 0 if found is None else step_folders.step_of(found)


def going_on(run: TrainRun) -> str:
    """A line for a run that is not at its beginning."""
    done = _last_step(run.out)
    return f"\ngoes on after step {done} of {run.steps}, from {run.out}" if done else ""


def broken_off(run: TrainRun, time_is_up: bool) -> KeyboardInterrupt:
    """What a run ends with that was asked to stop.

    If it was because its job's time is up, a file says so to the job, which cannot tell it by a status: torchrun ends
    with 1 in every case. Any rank that has heard the signal may write it, since all have ended their last checkpoint.
    """
    if time_is_up and run.out is not None:
        (run.out / TIME_IS_UP).touch()
    return KeyboardInterrupt(kept(run))


def kept(run: TrainRun, *, can_resume: bool = True) -> str:
    """Of a run that broke off: say what is left of it, in the words that end its error line.

    Where the last checkpoint itself stopped the run, no command goes on from it, however whole its files are.
    """
    if run.out is None:
        return ""
    out = repr(str(run.out))
    try:
        found = step_folders.latest(run.out)
    except ValueError:  # which the line has said
        return ""
    if found is None:
        words = f"; {out} keeps {METRICS} and no checkpoint: the same command begins anew"
        return words if _has_steps(run.out) else ""
    if can_resume and not step_folders.damage(found):
        return f"; {out} keeps step {step_folders.step_of(found)}: the same command goes on from there"
    other = step_folders.undamaged(run.out, but=found)
    if other is None:
        return f"; {out} keeps no other checkpoint"
    pointer = run.out / step_folders.POINTER
    return f"; {out} keeps {other.name}: write {other.name} into {pointer}, and the same command goes on from there"


def finish(run: TrainRun, steps: Sequence[Step]) -> str:
    """The last words."""
    words = f"loss {steps[0].loss:.6f} -> {steps[-1].loss:.6f} nats per token in {len(steps)} steps"
    if run.out is None:
        return words
    last = step_folders.latest(run.out)
    assert last is not None  # `work` has written it
    export = "" if run.folder is None else f", {export_name(run)}/"
    return f"{words}\nwritten: {CONFIG}, {METRICS}, {last.name}/{export} in {run.out}"


def _write(path: Path, text: str) -> None:
    with replaced(path) as file:
        file.write(text.encode())
