"""`python -m course_lib train`: train on this machine, in this process or on ranks of its own, or as torchrun says."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import cloudpickle

from course_lib.cli import train_checks, train_folder, train_run
from course_lib.cli.interrupts import Interrupt, heard
from course_lib.cli.train_config import TrainRun, read_train
from course_lib.cli.train_torchrun import train_under_torchrun
from course_lib.ranks import devices, server, shutdown
from course_lib.ranks.api import run_task
from course_lib.ranks.devices import Choice
from course_lib.ranks.tasks import packed
from course_lib.training.batches import Batches
from course_lib.training.loop import Step


def train_command(overrides: Sequence[str]) -> int:
    """Train as the overrides say; return 0, or 1 if the run failed, in which case nothing is written.

    Raises: ValueError for an illegal value, before anything runs.
    """
    with heard() as interrupt:
        if "RANK" in os.environ:
            return train_under_torchrun(overrides, interrupt)
        return _train_here(overrides, interrupt)


def _train_here(overrides: Sequence[str], interrupt: Interrupt) -> int:
    """Train in this process, or on ranks that it starts and ends."""
    run = read_train(overrides)
    if run.ranks > 1:
        _import_early()
    choice = devices.choose_for_training(0, run.ranks)
    train_checks.check_model(run, choice, run.ranks)
    batches = train_run.make_batches(run)
    with train_folder.taken(run):
        print(f"{train_run.heading(run, batches, choice)}{train_folder.going_on(run)}", flush=True)
        try:
            if run.ranks == 1:
                steps = _alone(run, batches, choice, interrupt)
            else:
                steps = _on_pool(run, batches, choice.device.type, interrupt)
            if len(steps) < run.steps:
                raise train_folder.broken_off(run, interrupt.time_is_up)
            print(train_folder.finish(run, steps))
        except (ValueError, OSError, RuntimeError) as error:
            kept = train_folder.kept(run, can_resume=not train_run.could_not_resume(error))
            print(f"{train_run.failure_line(error)}{kept}", file=sys.stderr)
            return 1
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(str(stop) or train_folder.kept(run)) from None
    return 0


def _import_early() -> None:
    """Let the ranks' fork server import, once for all of them, while this process reads the text."""
    server.preload(__name__)
    with suppress(OSError):  # the ranks' own start will say what the system refuses
        server.start_fork_server()


def _alone(run: TrainRun, batches: Batches, choice: Choice, interrupt: Interrupt) -> list[Step]:
    """Train in this process."""
    devices.take(choice)
    with interrupt.asks(lambda: None) if run.out is not None else nullcontext():
        return train_run.work(run, batches, choice, sys.stdout.isatty(), lambda: interrupt.asked)


def _on_pool(run: TrainRun, batches: Batches, device: str, interrupt: Interrupt) -> list[Step]:
    """Train on ranks of our own; what the first one shows is shown at once.

    They hear no signal of a terminal: a file that appears asks them to stop.
    """
    ranks = list(range(run.ranks))
    with tempfile.TemporaryDirectory(prefix="train-") as folder:
        stop = Path(folder) / "stop"
        call = packed((_pool_rank, (run, batches, device, sys.stdout.isatty(), stop)))
        try:
            with interrupt.asks(stop.touch) if run.out is not None else nullcontext():
                outcomes = run_task(
                    run.ranks, ranks, timeout=train_run.FIRST_STEP_S, device=device, listen=_hear, call=call
                )
        finally:
            shutdown()
    steps: list[Step] = cloudpickle.loads(outcomes[0].value)
    return steps


def _pool_rank(run: TrainRun, batches: Batches, device: str, live: bool, stop: Path) -> list[Step]:
    """What each rank of the pool does."""
    choice = devices.choose(*devices.local_place(), device)
    return train_run.work(run, batches, choice, live, stop.exists)


def _hear(rank: int | None, text: str) -> None:
    """The first rank speaks for all; the others have only warnings to say."""
    stream = sys.stderr if rank else sys.stdout
    stream.write(text)
    stream.flush()
