"""The sheets of module 06 expect what the cost formulas say of the same model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from course_lib.checks.kit.registry import find
from course_lib.checks.kit.sheet import value
from course_lib.checks.kit.spec import BF16
from course_lib.checks.module_06.llama import LARGE, LLAMA
from course_lib.costs.comm.sharding import sharding_rows, sharding_step
from course_lib.costs.model.conventions import find_convention
from course_lib.costs.model.states import state_bytes
from course_lib.costs.model.step_memory import NumberBytes, UnitActivations, step_memory
from course_lib.costs.model.units import UnitShapes, decoder_units
from course_lib.units import GB

SEEDS = pytest.mark.parametrize("seed", [0, 1])


def expected(exercise, seed):
    """What is given, and the right number for each name."""
    sheet, given = find(exercise), find(exercise).given(seed)
    return given, {ask.name: value(ask.answer, given) for group in sheet.levels.values() for ask in group.asks}


def test_the_paper_s_table_is_in_the_sheet():
    _, right = expected("06.4", 0)
    table = [round(right[name], 1) for name in ("ddp_gb", "zero_1_gb", "zero_2_gb", "zero_3_gb")]
    assert table == [120.0, 31.4, 16.6, 1.9]


@SEEDS
def test_the_floor_of_06_4_is_what_very_many_gpus_come_near(seed):
    given, right = expected("06.4", seed)
    near = state_bytes(given.Q, find_convention("zero"), zero_stage=2, shards=100_000).total / GB
    assert right["floor_gb"] < near == pytest.approx(right["floor_gb"], rel=1e-4)


def calls(rows, operation):
    return sum(row.times for row in rows if row.operation == operation)


@SEEDS
def test_calls_and_bytes_of_06_7_are_those_of_the_table_by_unit(seed):
    given, right = expected("06.7", seed)
    units = decoder_units(replace(LLAMA, n_layers=given.L))

    def table(strategy, m=1, shards=None):
        return sharding_rows(units, strategy=strategy, world_size=given.p, shards=shards, itemsize=BF16, microbatches=m)

    def sent(rows, among=None):
        return max(sharding_step(row for row in rows if among in (None, row.among)).sent_bytes)

    full, zero_2, hybrid = table("FULL_SHARD"), table("ZeRO-2"), table("HYBRID_SHARD", shards=given.s)
    assert (right["full_gathers"], right["full_scatters"]) == (calls(full, "all_gather"), calls(full, "reduce_scatter"))
    assert right["zero_2_calls"] == len(zero_2)
    by_table = {
        "ddp_sends": sent(table("DDP")),
        "zero_2_sends": sent(zero_2),
        "full_sends": sent(full),
        "hybrid_inside": sent(hybrid, "shards"),
        "hybrid_across": sent(hybrid, "copies"),
        "ddp_accumulated": sent(table("DDP", given.m)),
        "full_accumulated": sent(table("FULL_SHARD", given.m)),
    }
    assert {name: right[name] for name in by_table} == pytest.approx(by_table)


def wholes(units, strategy="FULL_SHARD", *, overlap):
    """Bytes of whole weights and gradients at each instant of a step, one for each number, before what is averaged."""
    nothing = UnitActivations(units=(0,) * (len(units) - 1), root=0, stream=0)
    moments = step_memory(
        units,
        nothing,
        strategy=strategy,
        world_size=8,
        numbers=NumberBytes(lasting=1, computing=1, reducing=1),
        overlap=overlap,
    )
    return [(moment.name.split()[0], moment.gathered, moment.gathered + moment.gradients) for moment in moments]


def forward(*given, **options):
    return max(weights for name, weights, _ in wholes(*given, **options) if name in ("forward", "loss"))


@SEEDS
def test_the_worst_instants_of_06_8_are_those_of_a_step_s_memory(seed):
    given, right = expected("06.8", seed)
    blocks = [UnitShapes(label=f"layers.{place}", trained=((numbers,),)) for place, numbers in enumerate(given.sizes)]
    units = [*blocks, UnitShapes(label="root", opening=((given.root,),))]  # whole to the end; its gradients come last
    assert right["alone"] == forward(units, overlap=False)
    assert right["ahead"] == forward(units, overlap=True)
    assert right["kept"] == forward(units, "SHARD_GRAD_OP", overlap=True)
    assert right["with_gradients"] == max(both for _, _, both in wholes(units, overlap=False))


@SEEDS
def test_the_units_of_06_8_are_the_largest_that_fit(seed):
    given, right = expected("06.8", seed)
    model = next(one for one in (LLAMA, LARGE) if one.n_layers == given.L)
    sizes = [n for n in range(1, given.L + 1) if given.L % n == 0]
    units = {n: decoder_units(model, "by_block_group", n) for n in sizes}
    for name, overlap in (("group_ahead", True), ("group_alone", False)):
        assert right[name] == max(n for n in sizes if BF16 * forward(units[n], overlap=overlap) <= given.budget * GB)
    rows = sharding_rows(units[right["group_ahead"]], strategy="FULL_SHARD", world_size=8)
    assert right["gathers"] == calls(rows, "all_gather")
