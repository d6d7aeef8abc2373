"""The sheets of module 07 expect what the cost formulas say of the same models."""

from __future__ import annotations

from dataclasses import replace

import pytest

from course_lib import costs
from course_lib.checks.kit.registry import find
from course_lib.checks.kit.sheet import value
from course_lib.config import ParallelConfig, load_model
from course_lib.costs.comm.sharding import sharding_rows, sharding_step
from course_lib.costs.comm.tensor import rows_traffic, tensor_rows
from course_lib.costs.model.units import decoder_units
from course_lib.hardware import load_cluster, wires
from course_lib.units import GB

SEEDS = pytest.mark.parametrize("seed", [0, 1, 5])
ZERO = costs.find_convention("zero")


def expected(exercise, seed):
    """What is given, and the right number for each name."""
    sheet, given = find(exercise), find(exercise).given(seed)
    return given, {ask.name: value(ask.answer, given) for group in sheet.levels.values() for ask in group.asks}


def on_gpu(model, dp, tp, tokens, sequence_parallel=False):
    parallel = ParallelConfig(dp=dp, tp=tp, zero_stage=3, sequence_parallel=sequence_parallel)
    return costs.tensor_memory(load_model(model), parallel, costs.Work(sequence=tokens, microbatch=1), ZERO)


@SEEDS
def test_memory_of_07_2_is_that_of_the_gpu_s_formula(seed):
    """The root's norm, which the sheet leaves out of what is gathered, is a millionth of it."""
    given, right = expected("07.2", seed)
    plain, shared = (on_gpu("llama3_1_8b", given.dp, given.tp, given.S, how) for how in (False, True))
    states = plain.weights + plain.gradients + plain.optimizer
    assert states / GB == pytest.approx(right["states_gb"], rel=1e-9)
    assert plain.gathered / GB == pytest.approx(right["unit_gb"], rel=1e-4)
    assert (plain.activations + plain.head) / GB == pytest.approx(right["plain_gb"], rel=1e-9)
    assert (shared.activations + shared.head) / GB == pytest.approx(right["sequence_gb"], rel=1e-9)


@SEEDS
def test_the_longest_texts_of_07_2_fit_and_a_little_longer_ones_do_not(seed):
    given, right = expected("07.2", seed)
    layouts = {
        "longest_fsdp": (given.dp * given.tp, 1, False),
        "longest_plain": (given.dp, given.tp, False),
        "longest": (given.dp, given.tp, True),
    }
    for name, (dp, tp, how) in layouts.items():
        tokens, more = right[name], given.tp * 4
        assert on_gpu("llama3_1_8b", dp, tp, tokens, how).total <= (given.budget + 1e-4) * GB
        assert on_gpu("llama3_1_8b", dp, tp, tokens // given.tp * given.tp + more, how).total > given.budget * GB


@SEEDS
def test_what_07_5_sends_is_in_the_tables_of_both_axes(seed):
    """Norms are on every rank along tp; the sheet leaves them out of a layer."""
    given, right = expected("07.5", seed)
    model = load_model("llama3_1_70b")

    def along_tp(layers):
        rows = tensor_rows(
            replace(model, n_layers=layers), tp=given.g, batch=1, sequence=given.S, sequence_parallel="regather"
        )
        return max(rows_traffic([one for one in rows if one.when != "step"], tp=given.g, itemsize=2).sent_bytes)

    layer, *_ = decoder_units(model, tp=given.g)
    rows = sharding_rows([layer], strategy="FULL_SHARD", world_size=given.nodes, itemsize=2)
    assert right["tp_bytes"] == pytest.approx(along_tp(2) - along_tp(1))
    assert right["dp_bytes"] == pytest.approx(max(sharding_step(rows).sent_bytes), rel=1e-3)


@SEEDS
def test_the_times_of_07_5_are_those_of_rings_on_the_cluster_s_wires_but_for_latency(seed):
    given, right = expected("07.5", seed)
    real = next(
        one
        for one in (load_cluster("dgx_h200"), load_cluster("dgx_b200"))
        if one.device.memory_bytes() // GB == given.budget
    )
    free = replace(real, inside=replace(real.inside, alpha_s=0.0), card=replace(real.card, alpha_s=0.0))

    def gathers_ms(times, nbytes, ranks, stride):
        return (
            1e3
            * times
            * costs.collective_s("all_gather", "ring", nbytes=nbytes, ranks=ranks, wires=wires(free), stride=stride)
        )

    activation, part = 2 * given.S * given.H, 2 * given.layer // given.g
    assert right["tp_inside_ms"] == pytest.approx(gathers_ms(10, activation, given.g, 1))
    assert right["dp_between_ms"] == pytest.approx(gathers_ms(3, part, given.nodes, given.g))
    assert right["tp_between_ms"] == pytest.approx(gathers_ms(10, activation, given.g, given.nodes))


@SEEDS
def test_no_seed_of_07_5_has_a_ring_along_tp_that_one_card_explains(seed):
    given, right = expected("07.5", seed)
    assert right["tp_between_ms"] != pytest.approx(1e3 * right["tp_bytes"] / given.card)


@SEEDS
def test_the_tp_of_07_5_is_the_first_that_fits(seed):
    given, right = expected("07.5", seed)

    def total(tp):
        found = on_gpu("llama3_1_70b", given.nodes * given.g // tp, tp, given.S, tp > 1)
        return (found.total - found.gathered) / GB

    fitting = [tp for tp in (1, 2, 4, 8) if total(tp) <= given.budget - given.free]
    assert right["tp"] == fitting[0]
    assert right["rounds"] * right["sequences"] == given.batch
