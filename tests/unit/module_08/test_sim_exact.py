"""One policy on its instruction lists: the closed form is close, stages may be uneven, the head weighs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from course_lib.config import load_model
from course_lib.costs.sweep.job import Job
from course_lib.hardware import load_cluster
from course_lib.schedules import Forward
from course_lib.sim.exact import even_layers, exact_step
from course_lib.sim.policies import EVERY_SCHEDULE, SCHEDULES, Policies
from course_lib.sim.simulate import simulate

MODEL, CLUSTER = load_model("llama3_1_8b"), load_cluster("dgx_h100")
JOB = Job(model=MODEL, cluster=CLUSTER, sequence=4096)


def policy(schedule, pp=4, v=1, m=16):
    return Policies(
        dp=[2],
        tp=2,
        pp=pp,
        shards=2,
        zero_stage=1,
        n_microbatches=m,
        sequence=8192,
        sequence_parallel=True,
        schedule=SCHEDULES.index(schedule),
        stages_per_rank=v,
    )


@pytest.mark.parametrize(("schedule", "v"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1)])
def test_the_closed_form_is_within_three_percent_of_the_lists(schedule, v):
    one = policy(schedule, v=v)
    exact, closed = exact_step(JOB, one), simulate(JOB, one)
    assert exact.step_s == pytest.approx(closed.step_s[0], rel=0.03)
    assert exact.schedule.name == schedule and exact.layers == (8, 8, 8, 8)
    assert sum(isinstance(slot.instruction, Forward) for slot in exact.slots) == 16 * 4 * v


def test_without_a_pipeline_both_are_the_same():
    one = policy("1f1b", pp=1)
    assert exact_step(JOB, one).step_s == pytest.approx(simulate(JOB, one).step_s[0], rel=1e-9)


def test_norms_that_are_not_fused_take_as_long_in_both():
    one, job = policy("1f1b", pp=1), replace(JOB, fused_norms=False)
    assert exact_step(job, one).step_s == pytest.approx(simulate(job, one).step_s[0], rel=1e-9)
    assert exact_step(job, one).step_s > exact_step(JOB, one).step_s


def test_fewer_layers_beside_the_head_make_the_step_shorter_and_many_make_it_longer():
    one = policy("1f1b")
    even, less, more = (exact_step(JOB, one, layers=cut) for cut in CUTS)
    assert less.step_s < even.step_s < more.step_s
    assert 0 < even.bubble_s < even.pipeline_s < even.step_s


CUTS = ((8, 8, 8, 8), (8, 9, 8, 7), (8, 8, 7, 9))


def test_layers_are_cut_as_even_as_they_go():
    assert even_layers(126, 16) == (7, *[8] * 14, 7) and even_layers(61, 16)[-1] == 3
    assert even_layers(32, 1) == (32,) and sum(even_layers(61, 16)) == 61


def test_a_schedule_that_nothing_here_runs_has_no_lists():
    one = replace(policy("1f1b"), schedule=EVERY_SCHEDULE.index("zb-v"))
    with pytest.raises(ValueError, match="make_schedule: name='zb-v'; no schedule is called so; choose one of gpipe"):
        exact_step(JOB, one)


def test_layers_that_are_not_the_models_are_refused():
    with pytest.raises(
        ValueError, match=r"exact_step: layers=\(8, 8, 8, 9\); 4 ranks share 32 layers; give one number"
    ):
        exact_step(JOB, policy("1f1b"), layers=(8, 8, 8, 9))
