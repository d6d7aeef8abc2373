"""Lesson 12's script: one rank of two kinds of parallelism stops, or ranks call their groups in different orders."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from course_lib.gauges.flight import dumps_in, where_ranks_part
from tools.paths import ROOT


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """By case: what is said of the dumps, without numbers of lines."""
    folder = tmp_path_factory.mktemp("dumps")
    command = [sys.executable, str(ROOT / "notebooks" / "scripts" / "12_spreads.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    texts = {case.name: where_ranks_part(dumps_in(case)) for case in folder.iterdir() if case.is_dir()}
    return {name: re.sub(r"line \d+", "line N", text).splitlines() for name, text in texts.items()}


def test_all_waiting_leads_to_the_rank_that_stopped_before_its_call(told):
    assert told["a later step"] == [
        "dumps of ranks 0, 1, 2, 3",
        "look at rank 3 first: others wait, and it is held up by no recorded collective",
        "  rank 3: its last was all_reduce in add_up, line N, ended",
        "  rank 1 waits for rank 3 in call 2 of mesh_dp (called by ranks 1, 3), all_reduce in add_up, line N",
        "  rank 2 waits for rank 3 in call 2 of mesh_tp (called by ranks 2, 3), all_reduce in add_up, line N",
        "  rank 0 waits for rank 2 in call 2 of mesh_dp (called by ranks 0, 2), all_reduce in add_up, line N",
    ]


def test_who_is_in_a_group_is_not_known_before_its_first_call(told):
    """Of gloo: NCCL's dumps list the ranks."""
    assert told["first step"] == [
        "dumps of ranks 0, 1, 2, 3",
        "look at rank 3 first: others wait, and it is held up by no recorded collective",
        "  rank 3: it has called none",
        *(
            f"  rank {rank} waits in call 1 of {kind} (called by rank {rank}), all_reduce in add_up, line N; "
            "who else is in it is not known"
            for rank, kind in enumerate(("mesh_dp", "mesh_dp", "mesh_tp"))
        ),
    ]


def test_groups_called_in_another_order_hold_each_other_in_a_circle(told):
    _, first, *waiting = told["circle"]
    assert first == "ranks 0, 1, 2, 3 wait in a circle: compare the order of their calls, and who has left one out"
    assert [line.partition(", all_reduce")[0] for line in waiting] == [
        "  rank 0 waits for rank 1 in call 3 of mesh_tp (called by ranks 0, 1)",
        "  rank 1 waits for rank 3 in call 3 of mesh_dp (called by ranks 1, 3)",
        "  rank 2 waits for rank 0 in call 3 of mesh_dp (called by ranks 0, 2)",
        "  rank 3 waits for rank 2 in call 3 of mesh_tp (called by ranks 2, 3)",
    ]
