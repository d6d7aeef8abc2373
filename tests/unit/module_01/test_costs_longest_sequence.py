"""The longest sequence that fits, and a thesis' claim of one: by formula, under each assumption."""

from __future__ import annotations

from dataclasses import replace

import pytest

from course_lib.config import load_model
from course_lib.costs.model.conventions import find_convention
from course_lib.costs.model.longest_sequence import Room, longest_sequence, most_bytes_per_parameter, state_bytes_of
from course_lib.costs.model.parameters import model_parameters
from course_lib.costs.model.step_memory import peak
from course_lib.costs.model.two_axes import TwoAxes, two_axes_moments
from course_lib.costs.published.claimed_sequence import (
    CLAIMED_FACTOR,
    CLAIMED_SEQUENCE,
    HOST_BYTES,
    claim_rows,
    claimed_model,
    host_rows,
)
from course_lib.units import GB

LLAMA = load_model("llama3_1_8b")
RUN = TwoAxes(dp=2, tp=4, checkpointing=True)


def most(run, sequence):
    return peak([*two_axes_moments(LLAMA, run, sequence=sequence).values()]).total


@pytest.mark.parametrize("run", [RUN, replace(RUN, offload=True), replace(RUN, score_bytes=6, computing=4)])
def test_one_step_longer_does_not_fit(run):
    room = Room(device=80 * GB, reserved=2 * GB, hosts=384 * GB)
    found = longest_sequence(LLAMA, run, room)
    assert found.sequence % run.tp == 0 and found.states_fit
    assert most(run, found.sequence) <= 78 * GB < most(run, found.sequence + run.tp)


def test_a_model_too_large_for_the_device_has_no_sequence():
    found = longest_sequence(LLAMA, TwoAxes(dp=1), Room(device=32 * GB))
    assert found.sequence == 0


def test_offload_leaves_nothing_that_lasts_on_the_device():
    here, there = (two_axes_moments(LLAMA, replace(RUN, offload=offload), sequence=4096) for offload in (False, True))
    assert there["start"].total == there["gradients"].total == 0
    for name, moment in there.items():
        lasting = here[name].weights + here[name].optimizer + here[name].gradient_pieces
        assert here[name].total == moment.total + lasting


@pytest.mark.parametrize(
    "change",
    [
        {"score_bytes": 6},
        {"sequence_parallel": False},
        {"loss_parallel": False},
        {"logit_copies": 1},
        {"checkpointing": False},
        {"computing": 4},
    ],
    ids=str,
)
def test_whatever_is_kept_besides_shortens_the_sequence(change):
    room = Room(device=80 * GB)
    assert longest_sequence(LLAMA, replace(RUN, **change), room).sequence < longest_sequence(LLAMA, RUN, room).sequence


def test_a_block_at_a_time_leaves_more_room():
    room, run = Room(device=32 * GB), TwoAxes(dp=8, checkpointing=True, offload=True, computing=4)
    in_turn = replace(run, overlap=False)
    assert (
        longest_sequence(claimed_model(), in_turn, room).sequence
        > longest_sequence(claimed_model(), run, room).sequence
    )


def test_a_reserve_of_all_memory_is_refused():
    with pytest.raises(ValueError, match=r"longest_sequence: device=5, reserved=5.*reserve less"):
        longest_sequence(LLAMA, RUN, Room(device=5, reserved=5))


def test_the_claim_needs_an_optimizer_of_at_most_ten_bytes():
    """Full Adam's 1,129 GB are more than both hosts and all eight GPUs have."""
    fits = {row.convention.bytes_per_parameter: row.fits for row in host_rows()}
    assert fits == {6: True, 8: True, 10: True, 12: False, 14: False, 16: False, 18: False, 20: False}
    assert most_bytes_per_parameter(claimed_model(), Room(device=1, hosts=HOST_BYTES)) == pytest.approx(
        10.885, abs=1e-3
    )
    full = state_bytes_of(claimed_model(), TwoAxes(dp=2, tp=4, states=find_convention("fp32")))
    assert full == 16 * model_parameters(claimed_model()) == 1_128_859_303_936
    assert full > HOST_BYTES + 8 * 32 * GB


def lengths(rows):
    return [(row.alone.sequence, row.both.sequence, round(row.factor, 2)) for row in rows]


def test_the_claim_s_lengths_under_each_assumption():
    assert lengths(claim_rows()) == [
        (8798, 33132, 3.77),
        (8798, 15236, 1.73),
        (8798, 9872, 1.12),
        (3575, 8020, 2.24),
        (1726, 6548, 3.79),
        (1726, 5844, 3.39),
        (3604, 5844, 1.62),
        (2390, 5844, 2.45),
    ]
    assert all(row.alone.states_fit and row.both.states_fit for row in claim_rows())


def test_two_gigabytes_that_nobody_counts_move_the_claim_s_factor():
    """FSDP alone has whole blocks and the whole root on each device, and less room for anything else."""
    by_reserve = {gigabytes: lengths(claim_rows(gigabytes * GB))[6] for gigabytes in (0, 4)}
    assert by_reserve == {0: (4157, 6264, 1.51), 4: (3050, 5424, 1.78)}


def test_the_claim_lies_between_two_rows_and_is_none_of_them():
    """With 16-bit numbers both reach far more than is claimed; in fp32 an eighth more, and kept scores decide how often
    that is FSDP's own length."""
    rows = claim_rows()
    assert min(row.both.sequence for row in rows[:4]) > 1.5 * CLAIMED_SEQUENCE
    without, with_scores = rows[-2:]
    assert without.factor < CLAIMED_FACTOR < with_scores.factor
    assert without.both.sequence == with_scores.both.sequence == pytest.approx(CLAIMED_SEQUENCE, rel=0.13)
