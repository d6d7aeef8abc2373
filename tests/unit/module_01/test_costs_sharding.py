"""The formulas of sharded data parallelism: the famous shorthand follows from the table of calls."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from course_lib.config import load_model
from course_lib.costs.comm.ddp import ddp_step
from course_lib.costs.comm.sharding import sent_numbers, sharding_rows, sharding_step
from course_lib.costs.model.parameters import model_parameters
from course_lib.costs.model.strategies import DataParallel
from course_lib.costs.model.units import UnitShapes, decoder_units
from course_lib.hardware import INFINIBAND, NVLINK

UNITS = tuple(  # 24 divides by every number of ranks below, and so does what is left to one of them
    UnitShapes(label=label, trained=((24, size),)) for label, size in [("a", 6), ("b", 4), ("c", 12), ("root", 2)]
)
P = sum(unit.numbers(trained=True) for unit in UNITS)
ROOT_NUMBERS = UNITS[-1].numbers(trained=True)


def sent(strategy, p, **options):
    """Numbers that each rank sends, where all send as many."""
    rows = sharding_rows(UNITS, strategy=strategy, world_size=p, itemsize=1, **options)
    (numbers,) = set(sharding_step(rows).sent_bytes)
    return numbers


@pytest.mark.parametrize("p", [2, 3, 4, 6])
def test_the_shorthand_follows_from_the_table(p):
    share = (p - 1) / p
    for strategy in ("DDP", "NO_SHARD", "ZeRO-1", "ZeRO-2", "SHARD_GRAD_OP"):
        assert sent(strategy, p) == pytest.approx(2 * P * share)
    assert sent("FULL_SHARD", p) == pytest.approx((3 * P - ROOT_NUMBERS) * share)
    for strategy in get_args(DataParallel):
        shards = p // 2 if strategy == "HYBRID_SHARD" and p % 2 == 0 else 1
        options = {"shards": shards} if strategy == "HYBRID_SHARD" else {}
        for m in (1, 3):
            found = sent_numbers(strategy, P, world_size=p, root=ROOT_NUMBERS, microbatches=m, **options)
            assert sent(strategy, p, microbatches=m, **options) == pytest.approx(sum(found))


def test_hybrid_shard_sends_inside_a_run_and_across_the_runs():
    s, r = 3, 2
    found = sent_numbers("HYBRID_SHARD", P, world_size=6, shards=s)
    assert found == pytest.approx((3 * P * (s - 1) / s, 2 * P / s * (r - 1) / r))
    everywhere = sent_numbers("FULL_SHARD", P, world_size=6)
    assert everywhere.across == 0 and found.across < everywhere.inside / 5


def test_bf16_gathers_and_fp32_reduction_are_8_bytes_a_parameter():
    """Llama 3.1 8B on 8 ranks: two gathers at 2 bytes, a reduction at 4, and of the root's row one gather less."""
    config = load_model("llama3_1_8b")
    units, numbers = decoder_units(config), model_parameters(config)
    rows = sharding_rows(units, strategy="FULL_SHARD", world_size=8, itemsize=2, reduce_itemsize=4)
    root = units[-1].numbers(trained=True)
    assert max(sharding_step(rows).sent_bytes) == pytest.approx((8 * numbers - 2 * root) * 7 / 8, rel=1e-9)
    assert 0.96 < sum(row.numbers * row.itemsize for row in rows) / (8 * numbers) < 0.97
    assert len(rows) == 3 * config.n_layers + 2


def test_what_is_accumulated_is_sent_again_or_not():
    def times(strategy, **options):
        rows = sharding_rows(UNITS, strategy=strategy, world_size=4, microbatches=5, **options)
        return {(row.when, row.operation): row.times for row in rows if row.unit == "a"}

    assert times("DDP") == {("step", "all_reduce"): 1}
    assert times("NO_SHARD") == {("backward", "all_reduce"): 5}
    assert times("ZeRO-1") == {("step", "reduce_scatter"): 1, ("step", "all_gather"): 1}
    assert times("ZeRO-2") == {("backward", "reduce_scatter"): 5, ("step", "all_gather"): 1}
    assert times("SHARD_GRAD_OP") == {("forward", "all_gather"): 5, ("backward", "reduce_scatter"): 5}
    full = {("forward", "all_gather"): 5, ("backward", "all_gather"): 5, ("backward", "reduce_scatter"): 5}
    assert times("FULL_SHARD") == full
    assert times("HYBRID_SHARD", shards=2) == full | {("backward", "all_reduce"): 5}


def test_frozen_rows_are_gathered_and_never_reduced():
    frozen = [replace(UNITS[0], trained=(), frozen=UNITS[0].trained), *UNITS[1:]]

    def calls(units, strategy):
        rows = sharding_rows(units, strategy=strategy, world_size=4)
        return [(row.when, row.operation) for row in rows if row.unit == "a"]

    assert calls(frozen, "FULL_SHARD") == [("forward", "all_gather")]  # backward does not come there
    behind = [frozen[1], frozen[0], *frozen[2:]]
    assert calls(behind, "FULL_SHARD") == [("forward", "all_gather"), ("backward", "all_gather")]
    opening = [*frozen[:-1], replace(UNITS[-1], opening=((2, 2),))]
    assert calls(opening, "FULL_SHARD") == calls(behind, "FULL_SHARD")
    assert calls(behind, "ZeRO-1") == calls(behind, "NO_SHARD") == []


def test_padding_sends_more():
    units = (UnitShapes(label="root", trained=((5, 3), (2,))),)

    def sent_bytes(padding):
        rows = sharding_rows(units, strategy="SHARD_GRAD_OP", world_size=4, padding=padding)
        return sharding_step(rows).sent_bytes

    assert sent_bytes("none") == (100, 104, 104, 100)  # pieces of 5, 4, 4, 4 of 17 numbers
    assert sent_bytes("row") == (2 * 3 * 5 * 4,) * 4
    assert sent_bytes("tensor") == (2 * 3 * 7 * 4,) * 4


def test_ddp_of_one_bucket_is_what_its_own_formula_says():
    (unit,) = units = (UnitShapes(label="root", trained=((7, 3), (5,))),)
    rows = sharding_rows(units, strategy="DDP", world_size=3)
    assert sharding_step(rows) == ddp_step([21, 5], world_size=3)
    assert unit.numbers(trained=True) == 26


def test_runs_within_a_node_leave_it_only_for_the_sum_over_copies():
    def seconds(strategy, **options):
        rows = sharding_rows(UNITS, strategy=strategy, world_size=8, **options)
        step = sharding_step(rows, node_size=4)
        return step.time_s(NVLINK, INFINIBAND), sum(one.between for one in step.path), step.steps

    hybrid, between, steps = seconds("HYBRID_SHARD", shards=4)
    assert between == 2 * len(UNITS) and steps == between + 3 * (3 * len(UNITS) - 1)
    full, everywhere, steps = seconds("FULL_SHARD")
    assert everywhere == steps and full > hybrid


def test_a_single_rank_sends_nothing():
    step = sharding_step(sharding_rows(UNITS, strategy="FULL_SHARD", world_size=1))
    assert (step.sent_bytes, step.messages, step.path) == ((0,), (0,), ())


def test_it_prints_as_a_table():
    rows = sharding_rows(UNITS, strategy="HYBRID_SHARD", world_size=4, shards=2)
    assert " ".join(str(rows[-1]).split()) == "root backward 1 x all_reduce 48 x 4 B among copies"


@pytest.mark.parametrize(
    ("strategy", "p", "shards"),
    [("ZeRO-3", 4, None), ("FULL_SHARD", 4, 2), ("HYBRID_SHARD", 4, None), ("HYBRID_SHARD", 4, 0)],
)
def test_what_is_no_strategy_is_refused(strategy, p, shards):
    with pytest.raises(ValueError, match="^data parallelism: strategy="):
        sharding_rows(UNITS, strategy=strategy, world_size=p, shards=shards)
    with pytest.raises(ValueError, match=r"choose shards from \[1, 2, 3, 6\]"):
        sent_numbers("HYBRID_SHARD", P, world_size=6, shards=4)
