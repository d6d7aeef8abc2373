"""The run book's table: what wrapping and sharding change, and how many units OLMo's own package makes."""

from __future__ import annotations

import pytest

from course_lib import planner, presets
from course_lib.config import ParallelConfig, load_model
from course_lib.costs import Job, Software, gpu_memory, model_parameters
from course_lib.hardware import load_cluster
from course_lib.units import GiB

MODELS = {"1B": load_model("olmo_1b_workshop"), "7B": load_model("olmo_7b_workshop")}
NODE = load_cluster("kempner_h100")


def table(model, microbatch):
    job = Job(
        model=model,
        cluster=NODE,
        batch=128,
        sequence=2048,
        microbatch=microbatch,
        parallel=ParallelConfig(dp=4),
        recompute="layers",
        software=Software(kind="eager", kernel="flash2"),  # what `train` and `doctor` count with
    )
    rows = planner.wrapping_rows(job, planner.olmo_wrappings(model))
    return job, {(row.wrapping, row.strategy): row for row in rows}


@pytest.mark.parametrize(("name", "model"), MODELS.items())
def test_units_are_as_many_as_olmos_own_package_makes(name, model):
    theirs = presets.read("wild", "olmo")["read"]["files"][name]["units"]
    ours = {policy: len(units) for policy, units in planner.olmo_wrappings(model).items()}
    # Theirs wraps both matrices of the vocabulary whatever their size; ours leaves those that are smaller than a block.
    assert theirs["by_block_and_size"] - ours["by_block_and_size"] == {"1B": 0, "7B": 2}[name]
    alike = {"no_wrap": "None", **{one: one for one in ("by_block", "by_block_group", "size_based")}}
    assert {one: ours[one] for one in alike} == {one: theirs[name] for one, name in alike.items()}


def test_without_wrapping_full_shard_is_shard_grad_op():
    """The root is never freed between forward and backward."""
    _, rows = table(MODELS["7B"], 8)
    full, half = rows["no_wrap", "FULL_SHARD"], rows["no_wrap", "SHARD_GRAD_OP"]
    assert (full.calls, full.sent_bytes, full.memory_bytes) == (half.calls, half.sent_bytes, half.memory_bytes)
    wrapped = rows["by_block", "FULL_SHARD"]
    assert full.memory_bytes - wrapped.memory_bytes > 40 * GiB and wrapped.sent_bytes > full.sent_bytes


def test_bytes_and_calls_follow_the_shorthand():
    job, rows = table(MODELS["7B"], 8)
    numbers, m = model_parameters(MODELS["7B"]), job.n_microbatches
    assert m == 4
    assert rows["by_block", "NO_SHARD"].sent_bytes == pytest.approx(m * 2 * 4 * numbers * 3 / 4, rel=1e-6)
    assert rows["by_block", "SHARD_GRAD_OP"].sent_bytes == pytest.approx(m * 6 * numbers * 3 / 4, rel=1e-6)
    assert rows["by_block", "FULL_SHARD"].calls == m * (33 + 32 + 33)  # the root is gathered once
    assert rows["by_block", "HYBRID_SHARD"].calls == m * (33 + 32 + 33 + 33)


def test_7b_fits_on_the_node_only_where_blocks_are_shared_out():
    assert not any(row.fits for row in table(MODELS["7B"], 32)[1].values())  # the workshop's micro-batch
    fitting = {pair for pair, row in table(MODELS["7B"], 16)[1].items() if row.fits}
    wrapped = planner.olmo_wrappings(MODELS["7B"]).keys() - {"no_wrap"}
    assert fitting == {(wrapping, strategy) for wrapping in wrapped for strategy in ("FULL_SHARD", "SHARD_GRAD_OP")}
    assert all(row.fits for row in table(MODELS["1B"], 32)[1].values())


def test_memory_is_near_what_the_planner_counts_for_the_same_run():
    """ZeRO-3 with fp32 weights; the planner has gathered units as two of equal size, this table moment by moment."""
    job, rows = table(MODELS["7B"], 8)
    own = Job(**{**vars(job), "convention": "fp32", "parallel": ParallelConfig(dp=4, zero_stage=3)})
    assert rows["by_block", "FULL_SHARD"].memory_bytes == pytest.approx(gpu_memory(own).total, rel=0.05)


def test_a_step_takes_at_least_the_longer_and_at_most_both():
    _, rows = table(MODELS["1B"], 32)
    row = rows["by_block", "FULL_SHARD"]
    assert row.step_s == (max(row.compute_s, row.messages_s), row.compute_s + row.messages_s)
    assert len({one.compute_s for one in rows.values()}) == 1 and row.messages_s < row.compute_s
