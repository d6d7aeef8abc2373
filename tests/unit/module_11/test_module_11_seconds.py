"""What adapters do to a step's seconds: by formula as on a GPU, where kernels are long enough to fill it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from course_lib.cli.main import main
from course_lib.config import load_model
from course_lib.costs.model.adapters import IA3, Adapters
from course_lib.costs.sweep.job import Job
from course_lib.costs.sweep.software import Software
from course_lib.gauges.savers_on_gpu import recorded
from course_lib.hardware import load_cluster, load_device
from course_lib.sim.constants import rates_of
from course_lib.sim.exact import exact_step
from course_lib.sim.machine import machine_of
from course_lib.sim.policies import RECOMPUTE, Policies
from course_lib.sim.simulate import simulate, step_times

H200 = replace(load_cluster("dgx_h100"), device=load_device("h200_sxm_141"))
EAGER = Software(kind="eager", kernel="flash2")
MODEL, LORA = load_model("llama3_2_1b"), Adapters(rank=8)
WAYS = {"": "none", ", recomputed": "layers"}
MEASURED = {(one.sequence, one.recipe): one.found.seconds for one in recorded() if one.model == "llama3_2_1b"}


def policy(sequence=8192, way="none", **others):
    return Policies(micro_batch=np.array([1.0]), sequence=sequence, recompute=RECOMPUTE.index(way), **others)


def share(sequence, way):
    """Of full training's forward and backward."""
    rates = rates_of(machine_of(H200), EAGER)
    full, beside = (step_times(MODEL, rates, policy(sequence, way), one) for one in (None, LORA))
    causes = ("matmul", "attention", "pointwise", "recompute")
    return sum(getattr(beside, cause)[0] for cause in causes) / sum(getattr(full, cause)[0] for cause in causes)


@pytest.mark.parametrize("recipe", WAYS)
def test_lora_takes_the_share_that_a_gpu_took(recipe):
    """A third of the products with weights is saved, and what lies beside them takes it back."""
    measured = {n: MEASURED[n, f"LoRA{recipe}"] / MEASURED[n, f"all weights{recipe}"] for n in (2048, 8192)}
    assert share(8192, WAYS[recipe]) == pytest.approx(measured[8192], rel=0.02)
    assert measured[2048] > 2 * share(2048, WAYS[recipe])  # which a plan says: each small kernel waits for its launch


def test_what_is_frozen_is_neither_updated_nor_averaged_and_has_no_gradient():
    rates, many = rates_of(machine_of(H200), EAGER), policy(dp=8)
    full, lora, factors = (step_times(MODEL, rates, many, one) for one in (None, LORA, IA3))
    assert lora.optimizer / full.optimizer == pytest.approx(LORA.parameters(MODEL) / 1_498_482_688, rel=0.01)
    assert lora.dp < full.dp / 50 and factors.dp < lora.dp
    assert factors.matmul == pytest.approx(2 / 3 * full.matmul, rel=1e-12) and factors.pointwise == full.pointwise
    shared, bare = policy(dp=8, zero_stage=3, shards=8), replace(rates, dp_exposed=1.0)  # so that nothing hides it
    all_of_it, gathers = (step_times(MODEL, bare, shared, one).dp for one in (None, LORA))
    assert gathers / all_of_it == pytest.approx(4 / 6, rel=0.05)  # of bf16 weights twice, without gradients in bf16


def test_the_exact_step_and_utilisation_know_it():
    job = Job(model=MODEL, cluster=H200, sequence=8192, batch=8, software=EAGER, adapters=LORA)
    one = policy(dp=8)
    assert exact_step(job, one).step_s == pytest.approx(simulate(job, one).step_s[0], rel=1e-9)
    full, beside = (simulate(replace(job, adapters=adapters), one) for adapters in (None, LORA))
    assert beside.step_s < full.step_s and beside.mfu < full.mfu


def test_a_plan_says_what_is_timed(capsys):
    words = ["model=llama3_1_8b", "cluster=dgx_h100", "batch=16", "sequence=2048", "retime=0", "tp=1", "pp=1"]
    main(["plan", *words, "adapter=qlora"])
    assert "small products wait for no launch, as of thousands of tokens at a time, and weights are spread out" in (
        capsys.readouterr().out
    )
