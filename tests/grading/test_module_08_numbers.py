"""The sheets of module 08 expect what cost formulas, simulator and planner say of the same runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from course_lib import costs, planner, sim
from course_lib.checks.kit.registry import find
from course_lib.checks.kit.sheet import value
from course_lib.config import load_model
from course_lib.costs.comm.pipeline import pipeline_step
from course_lib.costs.comm.tensor import rows_traffic, tensor_rows
from course_lib.hardware import load_cluster
from course_lib.planner import Reliability
from course_lib.planner.reliability import first_order_goodput
from course_lib.sim import axes
from course_lib.sim.policies import Policies
from course_lib.sim.shape import shape_of
from course_lib.sim.step import step_time
from course_lib.units import GB

SEEDS = pytest.mark.parametrize("seed", [0, 1, 5])
ALMOST_NOTHING = 1e-12


def expected(exercise, seed):
    """What is given, and the right number for each name."""
    sheet, given = find(exercise), find(exercise).given(seed)
    return given, {ask.name: value(ask.answer, given) for group in sheet.levels.values() for ask in group.asks}


@SEEDS
def test_what_08_2_sends_is_in_the_tables_of_all_three_axes(seed):
    given, right = expected("08.2", seed)
    model = load_model("llama3_1_70b")

    def along_tp(layers):
        rows = tensor_rows(replace(model, n_layers=layers), tp=given.tp, batch=1, sequence=given.S)
        return max(rows_traffic([one for one in rows if one.when != "step"], tp=given.tp, itemsize=2).sent_bytes)

    layer = along_tp(2) - along_tp(1)
    assert right["tp_gb"] * GB == pytest.approx(layer * given.m * given.L / given.pp)
    cuts = [right["activation"]] * (given.pp - 1)
    assert right["pp_gb"] * GB == pytest.approx(
        pipeline_step(cuts, n_ranks=given.pp, n_microbatches=given.m).sent_bytes[1]
    )
    gradients = 2 * given.layer * given.L // given.pp // given.tp
    ring = costs.comm_time("all_reduce", "ring", world_size=given.dp, length=gradients // 2, itemsize=2)
    assert right["dp_gb"] * GB == pytest.approx(max(ring.sent_bytes), rel=1e-6)


def ideal_rates(given):
    """A machine on which products, sums and gradients take their time, and nothing else takes any."""
    real = sim.rates_of(sim.machine_of(load_cluster("dgx_h100")), costs.Software())
    names = ("size_penalty", "attention_knee", "keeps_scores", "score_s", "cast_bytes", "pp_exposed", "dp_exposed")
    once = ("inside_alpha_s", "ring_alpha_s", "step_s", "microbatch_s", "layer_s", "accumulated_s", "node_slowdown")
    none = dict.fromkeys((*names, *once), 0.0)
    fast = ("attention_flops_per_s", "pointwise_bytes_per_s", "optimizer_bytes_per_s")
    return replace(
        real,
        **none,
        **dict.fromkeys(fast, 1 / ALMOST_NOTHING**2),
        matmul_flops_per_s=given.reached,
        head_flops_per_s=given.reached,
        inside_bytes_per_s=given.fast,
        pair_bytes_per_s=given.fast,
        between_bytes_per_s=given.slow,
        tp_exposed=1.0,
        gradient_bytes=2.0,
        domain=given.tp,
    )


@SEEDS
def test_the_parts_of_08_3_are_the_simulator_s(seed):
    """Of the ideal machine. By hand the embedding counts among the products, which is a sixteenth of them.

    So do both tables of the vocabulary along dp, of which a stage has one.
    """
    given, right = expected("08.3", seed)
    model = load_model("llama3_1_8b")
    shape, rates = shape_of(model), ideal_rates(given)
    policy = Policies(
        dp=given.dp, tp=given.tp, pp=given.pp, n_microbatches=given.m, sequence=given.tokens, shards=given.dp
    )
    times = step_time(shape, rates, policy)
    table = model.vocab_size * model.hidden_size
    products = 1 - table / given.P
    assert float(times.matmul) == pytest.approx(right["multiply_s"] * products, rel=1e-3)
    assert float(times.tp) == pytest.approx(right["tp_s"], rel=1e-6)
    held = axes.held(shape, policy)
    along_dp = axes.data_s(shape, rates, policy, 0.0)
    numbers = given.P / (given.pp * given.tp)
    assert float(along_dp) * numbers / float(held.total) == pytest.approx(right["dp_s"], rel=1e-3)


@SEEDS
def test_the_shares_of_08_4_are_those_of_the_published_runs(seed):
    given, right = expected("08.4", seed)
    assert right["done"] == pytest.approx(given.a100_each / given.a100_peak, rel=0.05), "without attention's scores"
    assert right["from_step"] == pytest.approx(right["mfu_of_line_3"], rel=0.05)
    means = ("weak scaling", "weak scaling", "HFU", "MFU")
    wrong = [n for n, meaning in enumerate(means, 1) if meaning not in given.labels[n - 1]]
    assert wrong == [right["wrong_line"]]


@SEEDS
def test_a_lazier_interval_of_08_8_loses_a_hundredth_more(seed):
    given, right = expected("08.8", seed)
    at = [first_order_goodput(given.run, 60 * right[name]) for name in ("interval_min", "lazy_min")]
    assert at[0] - at[1] == pytest.approx(0.01)


@SEEDS
def test_the_goodput_of_08_8_is_nearly_that_of_the_planner_and_of_dice(seed):
    given, right = expected("08.8", seed)
    run = Reliability(
        mtbf_s=3600 * right["mtbf_h"], checkpoint_s=right["checkpoint_s"], restart_s=60 * given.restart_min
    )
    tau = 60 * right["interval_min"]
    assert planner.young_interval_s(run) == pytest.approx(tau)
    assert planner.goodput(run, tau) == pytest.approx(right["goodput"], abs=0.005)
    played = planner.play_run(run, tau, elapsed_s=3000 * run.mtbf_s, seed=1).shares.training
    assert played == pytest.approx(right["goodput"], abs=0.01)


def test_08_8_asks_about_meta_s_own_stops():
    given, right = expected("08.8", 0)
    assert (given.gpus, given.days, given.stops) == (16_384, 54, 419)
    assert right["mtbf_h"] == pytest.approx(planner.LLAMA_3_STOPS.mtbf_s / 3600)
    assert right["goodput"] > planner.LLAMA_3_STOPS.least_goodput
