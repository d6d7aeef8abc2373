"""`python -m course_lib train`: train on this machine, in this process or on ranks of its own, or as torchrun says."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import cloudpickle

from course_lib.cli import train_folder, train_run
from course_lib.cli.interrupts import heard_once
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
    with heard_once() as interrupt:
        return train_under_torchrun(overrides, interrupt) if "RANK" in os.environ else _train_here(overrides)


def _train_here(overrides: Sequence[str]) -> int:
    """Train in this process, or on ranks that it starts and ends."""
    run = read_train(overrides)
    if run.ranks > 1:
        _import_early()
    choice = devices.choose_for_training(0, run.ranks)
    train_run.check_model(run, choice, run.ranks)
    batches = train_run.make_batches(run)
    with train_folder.taken(run):
        print(f"{train_run.heading(run, batches, choice)}{train_folder.going_on(run)}", flush=True)
        try:
            steps = _alone(run, batches, choice) if run.ranks == 1 else _on_pool(run, batches, choice.device.type)
            print(train_folder.finish(run, steps))
        except (ValueError, OSError, RuntimeError) as error:
            print(f"{train_run.failure_line(error)}{train_folder.kept(run)}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            raise KeyboardInterrupt(train_folder.kept(run)) from None
    return 0


def _import_early() -> None:
    """Let the ranks' fork server import, once for all of them, while this process reads the text."""
    server.preload(__name__)
    with suppress(OSError):  # the ranks' own start will say what the system refuses
        server.start_fork_server()


def _alone(run: TrainRun, batches: Batches, choice: Choice) -> list[Step]:
    """Train in this process."""
    devices.take(choice)
    return train_run.work(run, batches, choice, sys.stdout.isatty())


def _on_pool(run: TrainRun, batches: Batches, device: str) -> list[Step]:
    """Train on ranks of our own; what the first one shows is shown at once."""
    call = packed((_pool_rank, (run, batches, device, sys.stdout.isatty())))
    ranks = list(range(run.ranks))
    try:
        outcomes = run_task(run.ranks, ranks, timeout=train_run.FIRST_STEP_S, device=device, listen=_hear, call=call)
    finally:
        shutdown()
    steps: list[Step] = cloudpickle.loads(outcomes[0].value)
    return steps


def _pool_rank(run: TrainRun, batches: Batches, device: str, live: bool) -> list[Step]:
    """What each rank of the pool does."""
    choice = devices.choose(*devices.local_place(), device)
    return train_run.work(run, batches, choice, live)


def _hear(rank: int | None, text: str) -> None:
    """The first rank speaks for all; the others have only warnings to say."""
    stream = sys.stderr if rank else sys.stdout
    stream.write(text)
    stream.flush()
