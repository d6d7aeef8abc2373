"""`preflight` in processes that torchrun or srun has started: facts go through the store, so that no group is needed.

The ranks write as JSON, which all versions of Python and torch read: unlike versions are one thing that is looked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from datetime import timedelta
from typing import Any, NoReturn

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from course_lib.cli.preflight import COMMAND, Preflight, can_meet, judged_alone, report, say
from course_lib.cli.preflight_facts import Alone, Together, look_alone, look_together
from course_lib.cli.slurm import FIRST_PORT, PORTS
from course_lib.gauges.acceptance import SweepRow
from course_lib.gauges.links_alone import LinkRow
from course_lib.ranks import devices, meeting

_MEET, _WORK = timedelta(seconds=60), timedelta(seconds=120)


def preflight_started(asked: Preflight) -> NoReturn:
    """Look as one of the ranks, and end the process with the command's status, which the first rank has."""
    _take_from_slurm()
    try:
        status = _look(asked)
    except (RuntimeError, OSError) as error:
        place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        said = str(error).strip().splitlines() or [type(error).__name__]
        print(f"wrong  meeting     rank {os.environ['RANK']} at {place}: {said[0]}", flush=True)
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # gloo's threads may still let go of tensors, for which an interpreter that is ending aborts them


def _look(asked: Preflight) -> int:
    choice = devices.choose_for_training(*devices.local_place())
    devices.take(choice)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = meeting.store_of_attempt(rank, ranks) or next(iter(rendezvous("env://", timeout=_MEET)))[0]
    store.set_timeout(_WORK)
    mine = look_alone(rank, devices.local_place()[1], choice.device.type, asked.folder)
    store.set(f"alone/{rank}", json.dumps(asdict(mine)))
    if rank == 0:
        everyone = [alone_from(_told(store, f"alone/{one}")) for one in range(ranks)]
        store.set("go", json.dumps(can_meet(judged_alone(everyone))))
    if not _told(store, "go"):
        status = say(judged_alone(everyone)) if rank == 0 else 0
        return _left(store, rank, ranks, status)
    keys = PrefixStore(COMMAND, store)
    dist.init_process_group(choice.backend, store=keys, rank=rank, world_size=ranks, timeout=_WORK)
    together = look_together(asked.folder)
    store.set(f"together/{rank}", json.dumps(asdict(together)))
    found = [together_from(_told(store, f"together/{one}")) for one in range(ranks)] if rank == 0 else []
    status = report(asked, everyone, found) if rank == 0 else 0
    dist.barrier()  # a rank that leaves early would abort the others' teardown
    dist.destroy_process_group()
    return status


def _told(store: Any, key: str) -> Any:
    return json.loads(store.get(key))


def alone_from(values: dict[str, Any]) -> Alone:
    """Facts as JSON gives them back."""
    return Alone(**values | {"interfaces": tuple(values["interfaces"])})


def together_from(values: dict[str, Any]) -> Together:
    """What a rank saw, as JSON gives it back."""
    rows = tuple(SweepRow(*row) for row in values["rows"])
    links = tuple(LinkRow(tuple(ranks), *row) for ranks, *row in values["links"])
    clocks = tuple((off, half) for off, half in values["clocks"])
    return Together(**values | {"rows": rows, "links": links, "clocks": clocks})


def _left(store: Any, rank: int, ranks: int, status: int) -> int:
    """All leave after the first has spoken: whoever keeps the store has to be the last one."""
    store.set(f"left/{rank}", "true")
    for one in range(ranks) if rank == 0 else [0]:
        _told(store, f"left/{one}")
    return status


def _take_from_slurm() -> None:
    """What torchrun would have set, from what srun sets for its tasks."""
    given = os.environ
    if "RANK" in given:
        return
    words = ["scontrol", "show", "hostnames", given["SLURM_STEP_NODELIST"]]
    first = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[0]
    given |= {
        "RANK": given["SLURM_PROCID"],
        "WORLD_SIZE": given["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": given["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": str(tasks_here(given["SLURM_STEP_TASKS_PER_NODE"], int(given["SLURM_NODEID"]))),
        "MASTER_ADDR": first,
        "MASTER_PORT": str(FIRST_PORT + int(given["SLURM_JOB_ID"]) % PORTS),
    }


def tasks_here(counts: str, node: int) -> int:
    """Of `2(x3),1`: two tasks on each of three nodes, and one on the fourth."""
    listed: list[int] = []
    for part in counts.split(","):
        tasks, _, times = part.rstrip(")").partition("(x")
        listed += [int(tasks)] * int(times or 1)
    return listed[node]
