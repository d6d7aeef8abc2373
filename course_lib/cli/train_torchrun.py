"""The training run in a process that torchrun started: all ranks say one thing, once, and leave together.

torchrun ends all ranks as soon as one has left, so the others wait until the first has said why.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, redirect_stdout
from datetime import timedelta
from functools import partial
from typing import NoReturn, TypeVar

import torch.distributed as dist

from course_lib.cli import train_checks, train_folder, train_run
from course_lib.cli.interrupts import Interrupt
from course_lib.cli.train_config import TrainRun, check_started, read_train
from course_lib.cli.train_watch import watch
from course_lib.ranks import devices
from course_lib.ranks.devices import Choice
from course_lib.training.batches import Batches

_INTERRUPTED = 130  # a shell's status of a command that Ctrl-C ended
_ANEW = "\nbegins anew"
_MEET_S = 5.0  # how long a rank that failed waits for the others
T = TypeVar("T")


def train_under_torchrun(overrides: Sequence[str], interrupt: Interrupt) -> NoReturn:
    """Train as one of torchrun's ranks, and end the process: with 0, or with 1 or 2 after a line of the first rank."""
    choice = devices.choose_for_training(*devices.local_place())
    devices.join_torchrun(choice)
    watch(train_run.FIRST_STEP_S)
    try:
        status, line = _attempt(overrides, choice, interrupt)
    except KeyboardInterrupt as stop:
        if dist.get_rank() == 0:
            print(f"interrupted{stop}", file=sys.stderr, flush=True)
        os._exit(_INTERRUPTED)
    if status:
        _leave(status, line)
    dist.barrier()  # a rank that leaves early would abort the others' teardown
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # gloo's threads may still let go of tensors, for which an interpreter that is ending aborts them


def _attempt(overrides: Sequence[str], choice: Choice, interrupt: Interrupt) -> tuple[int, str]:
    """Train; return the exit status, and the line that explains one that is not 0."""
    first = dist.get_rank() == 0
    with ExitStack() as stack:
        try:
            run, batches = _agreed(lambda: _prepare(overrides, choice, first))
            _agreed(lambda: stack.enter_context(train_folder.taken(run)) if first else None)
        except ValueError as error:
            return 2, str(error)
        try:
            if first:
                heading = train_run.heading(run, batches, choice)
                print(f"{choice.notice}{heading}{_going_on(run)}", flush=True)
            asks = interrupt.asks(lambda: None, speaks=first, again=False) if run.out is not None else nullcontext()
            with asks:
                steps = train_run.work(run, batches, choice, sys.stdout.isatty(), lambda: interrupt.asked)
            if len(steps) < run.steps:
                raise train_folder.broken_off(run, interrupt.time_is_up)
            if first:
                print(train_folder.finish(run, steps), flush=True)
        except (ValueError, OSError, RuntimeError) as error:
            if interrupt.heard:  # another rank's end was noticed first, or Python dropped the exception
                raise KeyboardInterrupt(train_folder.kept(run)) from None
            interrupt.heard = True  # torchrun ends the ranks that a dead one has left, but not before they say why
            kept = train_folder.kept(run, can_resume=not train_run.could_not_resume(error))
            return 1, f"{train_run.failure_line(error)}{kept}"
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(str(stop) or train_folder.kept(run)) from None
    return 0, ""


def _going_on(run: TrainRun) -> str:
    """A line for a run that is not at its beginning, or that torchrun has started before."""
    where = train_folder.going_on(run)
    restarts, most = (int(os.environ.get(f"TORCHELASTIC_{name}", 0)) for name in ("RESTART_COUNT", "MAX_RESTARTS"))
    return f"{where or _ANEW}; torchrun's attempt {restarts + 1} of {most + 1}" if restarts else where


def _prepare(overrides: Sequence[str], choice: Choice, first: bool) -> tuple[TrainRun, Batches]:
    """Everything that can be wrong before a rank starts to work."""
    run = read_train(overrides, partial(check_started, started=dist.get_world_size()))
    train_checks.check_model(run, choice, int(os.environ["LOCAL_WORLD_SIZE"]))
    with nullcontext() if first else redirect_stdout(None):
        return run, train_run.make_batches(run)


def _agreed(task: Callable[[], T]) -> T:
    """The task's result, if it succeeds on all ranks.

    Raises: ValueError, the same on all ranks, if on any of them it fails.
    """
    problem, result = "", None
    try:
        result = task()
    except (ValueError, OSError) as error:
        problem = train_run.failure_line(error)
    problems = [""] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    if found := next(filter(None, problems), None):
        raise ValueError(found)
    return result  # type: ignore[return-value]


def _leave(status: int, line: str) -> NoReturn:
    """End this process once the first rank has said the line; if the ranks do not meet, each says its own."""
    rank = dist.get_rank()
    if rank == 0:
        print(line, file=sys.stderr, flush=True)
    try:
        dist.barrier(async_op=True).wait(timedelta(seconds=_MEET_S))
    except RuntimeError:
        if rank:
            print(f"rank {rank}: {line}", file=sys.stderr, flush=True)
    os._exit(status)  # a teardown after a failure could itself hang
