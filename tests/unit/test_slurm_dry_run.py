"""A shipped job starts on ranks that do not exist: its own trainer cuts 70 B weights, and not one of them has memory.

What each rank would keep is what the formulas say, byte by byte. That nothing else comes on top when the weights get
their numbers is measured on real ranks, in tests/ranks/test_train_memory.py.
"""

from __future__ import annotations

import resource
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from unittest.mock import patch

import torch
import torch.distributed as dist

from course_lib.cli import doctor, train_run
from course_lib.cli.slurm_config import read_job
from course_lib.costs.sweep.gpu_memory import gpu_memory
from course_lib.parallel.sharding import flat_row
from course_lib.parallel.table import local
from course_lib.units import GiB, KiB

NOWHERE = torch.device("meta")


def started(rank):
    """Bytes of weights that a rank of the job has, those by formula, and the most that its process ever had.

    Pieces lie in no memory, not even in the main memory that the job puts them into.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    with patch.object(train_run, "make_batches"):
        run = read_job(["job=llama3_70b_puhti", "offload=null"]).run
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=run.ranks)
    with (
        patch.object(flat_row, "device_of", lambda _: NOWHERE),
        patch.object(local, "device_of", lambda _: NOWHERE),
        patch.object(local.Local, "give_memory"),
        patch("course_lib.training.trainer.check_filled"),
    ):
        trainer = train_run.make_trainer(run, torch.device("cpu"), print)
    assert (trainer.local.at["dp"], trainer.local.at["tp"]) == divmod(rank, run.parallel.tp)
    mine = [x.detach() for x in trainer.local.parameters.values()]
    assert all(x.is_meta for x in mine)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KiB
    return sum(x.nbytes for x in mine), gpu_memory(doctor.asked_of(run).counted).weights, most


def test_each_rank_of_the_70b_job_has_what_the_formulas_say_and_no_memory_before():
    with ProcessPoolExecutor(max_workers=2, mp_context=get_context("spawn"), max_tasks_per_child=1) as processes:
        found = list(processes.map(started, (0, 7)))
    for weights, by_formula, most in found:
        assert weights == by_formula == 34_490_302_464
        assert most < 2 * GiB  # with PyTorch itself
