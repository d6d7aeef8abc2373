"""Trainings that were published with their layout: where the planner ranks it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from course_lib.hardware import load_cluster
from course_lib.planner.policy_search import search
from course_lib.planner.space import Job, Space
from course_lib.sim.published import published_runs

RUNS = {run.name: run for run in published_runs()}
PLACES = {  # of the published degrees, the first is 0: with cp as published, and with every cp
    "mlm21t1-007": (1, 2),  # Megatron-LM's 145, 310 and 530 billion, and a trillion
    "mlm21t1-008": (2, 3),
    "mlm21t1-009": (1, 1),
    "mlm21t1-010": (1, 4),
    "mtnlg-001": (0, 0),  # Megatron-Turing NLG
    "bloom-134": (3, 8),  # BLOOM's final shape; nobody cut sequences in 2022
    "llama3-001": (2, 36),  # Llama 3 on 8,192 and on 16,384 GPUs: cut sequences would recompute nothing
    "llama3-002": (1, 35),
    "mlperf-007": (1, 2),  # GPT-3 and Llama 3.1 405B, as NVIDIA tuned them for a benchmark
    "mlperf-021": (0, 1),
}


@pytest.mark.parametrize("name", PLACES)
def test_published_degrees_stand_among_the_first_five(name):
    run, (at_their_cp, at_any_cp) = RUNS[name], PLACES[name]
    policy, nodes = (
        run.policy,
        replace(load_cluster("dgx_h100" if "H100" in run.gpu else "dgx_a100"), n_nodes=run.gpus // 8),
    )
    job = Job(
        model=run.model,
        cluster=nodes,
        batch=int(run.policies.global_batch),
        sequence=policy["sequence"],
        software=run.software,
        convention=run.convention,
    )
    degrees = {axis: policy[axis] for axis in ("tp", "pp", "cp", "dp")}
    assert search(job, Space(cp=(policy["cp"],))).place_of(**degrees) == at_their_cp < 5
    assert search(job, Space()).place_of(**degrees) == at_any_cp
