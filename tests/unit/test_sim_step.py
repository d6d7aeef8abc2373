"""The closed form of the simulator: it adds up, it follows its formulas, and many policies give what one gives."""

from __future__ import annotations

import numpy as np
import pytest

from course_lib.config import ParallelConfig, load_model
from course_lib.costs.comm.pipeline import pipeline_in_flight
from course_lib.costs.model.conventions import find_convention
from course_lib.costs.sweep.gpu_memory import Work, gpu_memory
from course_lib.hardware import load_cluster
from course_lib.sim.constants import rates_of
from course_lib.sim.machine import Software, generation_of, machine_of
from course_lib.sim.memory import CATEGORIES, in_flight, memory_of
from course_lib.sim.policies import RECOMPUTE, SCHEDULES, Policies, code_of
from course_lib.sim.simulate import simulate, step_times
from course_lib.sim.step import CAUSES

MODEL, CLUSTER = load_model("llama3_1_8b"), load_cluster("dgx_h100")
RATES = rates_of(machine_of(CLUSTER), Software())


def some_policies(**changes):
    fields = {
        "dp": np.array([8, 4, 2, 1]),
        "tp": np.array([1, 2, 4, 2]),
        "pp": np.array([1, 1, 1, 4]),
        "n_microbatches": np.array([2, 4, 8, 16]),
        "zero_stage": np.array([3, 1, 0, 1]),
        "shards": np.array([8, 4, 2, 1]),
        "sequence": 8192,
        "recompute": np.array([0, 4, 1, 3]),
        "schedule": np.array([1, 1, 1, 3]),
    }
    return Policies(**(fields | changes))


def test_causes_are_not_negative_and_add_up():
    times = step_times(MODEL, RATES, some_policies())
    parts = np.stack([getattr(times, cause) for cause in CAUSES])
    assert parts.shape == (len(CAUSES), 4) and (parts >= 0).all()
    np.testing.assert_allclose(parts.sum(axis=0), times.total)


def test_a_policy_alone_takes_as_long_and_as_much_memory_as_among_others():
    policies = some_policies()
    among = simulate(MODEL, CLUSTER, policies)
    for number in range(len(policies)):
        alone = simulate(MODEL, CLUSTER, policies.take([number]))
        np.testing.assert_allclose(alone.step_s, among.step_s[number])
        np.testing.assert_allclose(alone.memory.total, among.memory.total[number])


def test_states_and_activations_are_those_of_costs():
    parallel = ParallelConfig(dp=4, tp=2, pp=2, zero_stage=1, sequence_parallel=True)
    policy = Policies.of(parallel, sequence=4096, n_microbatches=8)
    convention = find_convention("megatron")
    plain = Software(kind="legacy", kernel="flash2")  # no kernel that keeps less than its tensors
    found = memory_of(MODEL, policy, plain, convention)
    wanted = gpu_memory(MODEL, parallel, Work(sequence=4096, microbatch=1, n_microbatches=8), convention)
    for name in ("weights", "gradients", "optimizer", "activations"):
        assert getattr(found, name)[0] == pytest.approx(getattr(wanted, name), rel=1e-6)
    assert found.total[0] == pytest.approx(sum(getattr(found, name)[0] for name in CATEGORIES))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
@pytest.mark.parametrize("last", [False, True])
def test_microbatches_in_flight_are_those_of_costs(schedule, last):
    p, m = np.array([2, 4, 8]), np.array([4, 16, 8])
    v = 2 if schedule == "interleaved" else 1
    found = in_flight(Policies(pp=p, n_microbatches=m, stages_per_rank=v, schedule=SCHEDULES.index(schedule)), last)
    for number, (ranks, count) in enumerate(zip(p.tolist(), m.tolist(), strict=True)):
        rank = ranks - 1 if last else 0
        wanted = pipeline_in_flight(schedule, n_ranks=ranks, n_microbatches=count, rank=rank, stages_per_rank=v)
        assert found[number] == wanted / v


def test_the_bubble_shrinks_with_microbatches_and_with_stages_on_a_rank():
    many = Policies(pp=4, n_microbatches=np.array([4, 8, 64]), sequence=8192, shards=1)
    times = step_times(MODEL, RATES, many)
    share = times.bubble / times.total
    assert share[0] > share[1] > share[2] > 0
    turns = Policies(pp=4, n_microbatches=8, schedule=SCHEDULES.index("interleaved"), stages_per_rank=np.array([1, 2]))
    plain, interleaved = step_times(MODEL, RATES, turns).bubble
    assert interleaved < plain


def test_recomputing_costs_time_and_saves_memory():
    ways = Policies(recompute=np.arange(len(RECOMPUTE)), sequence=8192, dp=8, shards=8, zero_stage=3)
    found = simulate(MODEL, CLUSTER, ways)
    none, attention, *_, full = found.step_s
    assert none < attention < full
    assert found.memory.activations[-1] < found.memory.activations[0]
    assert found.hfu[-1] > found.mfu[-1] and found.hfu[0] == found.mfu[0]


def test_fields_of_different_lengths_are_refused_in_four_parts():
    with pytest.raises(ValueError, match="Policies: dp: .*; fields are as long as each other; "):
        Policies(dp=np.array([1, 2]), tp=np.array([1, 2, 4]))
    with pytest.raises(ValueError, match="Policies: tp=0; tp is at least 1; give tp >= 1"):
        Policies(tp=0)


def test_names_that_nobody_knows_are_refused_with_those_that_are():
    with pytest.raises(ValueError, match="recompute='some'; not a known one; choose none, attention"):
        code_of("recompute", "some", RECOMPUTE)
    with pytest.raises(ValueError, match="device 'TPU v4'; its generation has no constants; take one of V100"):
        generation_of("TPU v4")
    assert [generation_of(name) for name in ("GB200", "A800-80GB", "H100-96GB")] == ["Blackwell", "A100", "H100"]
