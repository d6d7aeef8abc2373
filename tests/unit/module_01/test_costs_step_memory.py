"""Memory of a step by formula, for a real model: what is the most, when, and of what."""

from __future__ import annotations

import pytest

from course_lib.config import load_model
from course_lib.costs.model.parameters import model_parameters
from course_lib.costs.model.step_memory import NumberBytes, peak, step_memory, unit_activations
from course_lib.costs.model.units import decoder_units

LLAMA = load_model("llama3_1_8b")
MIXED = NumberBytes(computing=2)  # pieces, their gradients and sums of gradients in fp32


def step(strategy, *wrapping, world_size=8, **options):
    units = decoder_units(LLAMA, *wrapping or ("by_block",))
    kept = unit_activations(LLAMA, units, batch=1, sequence=1024, itemsize=2)
    return units, step_memory(units, kept, strategy=strategy, world_size=world_size, numbers=MIXED, **options)


def test_each_strategy_needs_less_than_the_one_before():
    order = ["NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD"]
    most = [peak(step(strategy)[1]).total for strategy in order]
    assert most == sorted(most, reverse=True)
    grouped = [peak(step("FULL_SHARD", "by_block_group", size)[1]).total for size in (1, 4, 16)]
    assert grouped == sorted(grouped) and grouped[0] == most[2]


def test_overlap_costs_the_unit_that_is_gathered_ahead():
    (units, ahead), (_, in_turn) = step("FULL_SHARD"), step("FULL_SHARD", overlap=False)
    more = {one.name: one.total - other.total for one, other in zip(ahead, in_turn, strict=True)}
    block = 2 * units[0].numbers(trained=True)
    assert more["forward layers.7"] == more["backward layers.7"] == more["convert layers.7"] == block
    assert more["forward layers.31"] == more["loss"] == more["backward layers.0"] == 0


def test_embedding_and_head_as_units_of_their_own_move_the_peak():
    """They have 1.05 of the 8.03 billion numbers, which as the root's are whole while the blocks compute."""
    (_, by_block), (_, apart) = step("FULL_SHARD"), step("FULL_SHARD", "by_block_and_size")
    assert (peak(by_block).name, peak(apart).name) == ("convert layers.31", "convert head")
    assert peak(apart).total < peak(by_block).total


def test_between_steps_there_are_pieces_alone():
    units, moments = step("FULL_SHARD", world_size=64)
    start, end = moments[0], moments[-1]
    pieces = model_parameters(LLAMA) // 64
    assert (start.weights, start.optimizer, start.total) == (4 * pieces, 8 * pieces, 12 * pieces)
    assert end.total - start.total == end.gradient_pieces == 4 * pieces
    most = peak(moments)
    root, block = units[-1].numbers(trained=True), units[0].numbers(trained=True)
    assert most.gathered == 2 * (root + 2 * block) and most.total > 2 * start.total


def test_the_peak_is_no_sum_of_peaks():
    """Activations are most at the loss; gradients and rows come when those of the last block have gone."""
    _, moments = step("FULL_SHARD", world_size=64)
    most = peak(moments)
    kinds = ("gathered", "gradients", "reducing", "gradient_pieces", "activations")
    upper = sum(max(getattr(moment, kind) for moment in moments) for kind in kinds)
    assert sum(getattr(most, kind) for kind in kinds) < upper
    by_name = {moment.name: moment for moment in moments}
    assert max(moments, key=lambda moment: moment.activations).name == "loss"
    assert by_name["forward layers.31"].gathered < by_name["forward layers.30"].gathered  # nothing comes next
    assert by_name["convert layers.5"].reducing > by_name["flatten layers.5"].reducing


def test_what_earlier_micro_batches_left_is_whole_or_in_pieces():
    numbers = model_parameters(LLAMA)
    for strategy, whole, pieces in [
        ("DDP", 2 * numbers, 0),
        ("ZeRO-1", 2 * numbers, 0),
        ("ZeRO-2", 0, numbers // 2),
        ("FULL_SHARD", 0, numbers // 2),
    ]:
        start = step(strategy, accumulated=True)[1][0]
        assert (start.gradients, start.gradient_pieces) == (whole, pieces)


def test_units_within_a_block_are_refused():
    with pytest.raises(ValueError, match=r"^unit_activations: units .*; activations are counted by block; wrap whole"):
        step("FULL_SHARD", "size_based", 50_000_000)
