"""The ladder in processes that torchrun started: the first one climbs alone before it is a rank, and judges after."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import torch.distributed as dist

from course_lib.cli.verify_arguments import Comparison
from course_lib.cli.verify_report import BAD_INPUT, say
from course_lib.ranks import devices, switch
from course_lib.verify.alike import Plan
from course_lib.verify.climb import climb_rank
from course_lib.verify.ladder import STEPS, climb_first, judge
from course_lib.verify.pairs import RUNGS
from course_lib.verify.replay import Replay
from course_lib.verify.trace import Trace

_TORCHRUN_S = ("RANK", "LOCAL_", "WORLD_SIZE", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_")


def verify_under_torchrun(read: Callable[[], Comparison]) -> NoReturn:
    """Climb as one of torchrun's ranks, and end the process with the command's status, which the first rank has."""
    first, asked = os.environ["RANK"] == "0", None
    try:
        asked = read()
        status = _first_rank(asked) if first else _other_rank(asked)
    except ValueError as error:
        status = BAD_INPUT
        if first or asked:  # what cannot be read is the same on all ranks
            print(error, file=sys.stderr)
    except Exception:  # torchrun ends the ranks that wait for this one
        traceback.print_exc()
        status = BAD_INPUT
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # gloo's threads may still let go of tensors, for which an interpreter that is ending aborts them


def _first_rank(asked: Comparison) -> int:
    plan = Plan(batch_of=asked.batches, steps=STEPS, dtype=asked.dtype)
    with tempfile.TemporaryDirectory() as folder:
        with _alone():
            plan, alone = climb_first(asked.reference, plan, RUNGS, folder)
        ranks = _climbed(asked, plan)
    with _alone():
        return say(lambda: judge(alone, ranks, Replay(asked.reference, plan), RUNGS), asked.out)


def _other_rank(asked: Comparison) -> int:
    _climbed(asked, Plan(batch_of=asked.batches, steps=STEPS, dtype=asked.dtype))
    return 0


def _climbed(asked: Comparison, plan: Plan) -> list[Trace]:
    """Every rank's trace, on the first; the others learn from it what it found out alone."""
    devices.join_torchrun(devices.choose(*devices.local_place(), switch.device_kind()))
    found: list[Any] = [plan.adamw, plan.folder]
    dist.broadcast_object_list(found)
    mine = climb_rank(asked.parallel, replace(plan, adamw=found[0], folder=found[1]))
    ranks: list[Trace] = [mine] * dist.get_world_size()
    dist.all_gather_object(ranks, mine)
    dist.barrier()  # a rank that leaves early would abort the others' teardown
    dist.destroy_process_group()
    return ranks


@contextmanager
def _alone() -> Iterator[None]:
    """Without torchrun's variables, by which libraries would take this process for a rank."""
    hidden = {name: os.environ.pop(name) for name in [*os.environ] if name.startswith(_TORCHRUN_S)}
    try:
        yield
    finally:
        os.environ.update(hidden)
