"""Trainings that were published with their layout: where the planner ranks it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from course_lib.hardware import load_cluster
from course_lib.planner.policy_search import search
from course_lib.planner.space import Job, Space
from course_lib.sim.published import published_runs

RUNS = {run.name: run for run in published_runs()}
FIRST = 5
TRAININGS = {  # and the place within which their degrees stand if every cp is tried
    "mlm21t1-007": FIRST,  # Megatron-LM's 145, 310 and 530 billion, and a trillion
    "mlm21t1-008": FIRST,
    "mlm21t1-009": FIRST,
    "mlm21t1-010": FIRST,
    "mtnlg-001": FIRST,  # Megatron-Turing NLG
    "bloom-134": 10,  # BLOOM's final shape; nobody cut sequences in 2022
    "llama3-001": 40,  # Llama 3 on 8,192 and on 16,384 GPUs: with cut sequences nothing would be recomputed
    "llama3-002": 40,
    "mlperf-007": FIRST,  # GPT-3 and Llama 3.1 405B, as NVIDIA tuned them for a benchmark
    "mlperf-021": FIRST,
}


@pytest.mark.parametrize("name", TRAININGS)
def test_published_degrees_stand_among_the_first_five(name):
    run = RUNS[name]
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
    assert search(job, Space(cp=(policy["cp"],))).place_of(**degrees) < FIRST
    assert search(job, Space()).place_of(**degrees) < TRAININGS[name]
