"""What the ladder says where it has seen no cause, without ranks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from course_lib.verify.step_facts import any_update_ratio, how_ranks_share, right_up_to_a_position

SHARES, BLOCKS = "give each rank its own share of the batch", "add up a block's terms over the ranks once"
STAGES = "let each stage take what the one before it gives"


@pytest.mark.parametrize(
    ("n_shares", "place", "words"),
    [
        (1, "whole", []),
        (2, "whole", [SHARES]),
        (1, "tp: Shard(0)", [BLOCKS]),
        (1, "pp: rank 1", [STAGES]),
        (2, "tp: Shard(1), pp: rank 0", [SHARES, BLOCKS, STAGES]),
    ],
)
def test_only_what_these_ranks_share_is_spoken_of(n_shares, place, words):
    said = how_ranks_share(SimpleNamespace(n_shares=n_shares, ranks=[SimpleNamespace(places={"weight": place})]))
    assert [one for one in (SHARES, BLOCKS, STAGES) if one in said] == words
    assert said.endswith("and ") == bool(words)


@pytest.mark.parametrize(("factors", "told"), [((2, 2), True), ((2, 3), False), ((3, 2), False)])
def test_a_factor_of_the_update_is_told_if_all_parameters_have_it(factors, told):
    should = {"a": torch.tensor([1.0, -2.0]), "b": torch.tensor([0.5])}
    start = {name: torch.zeros_like(x) for name, x in should.items()}
    did = {name: factor * x for factor, (name, x) in zip(factors, should.items(), strict=True)}
    facts = {"frozen": set(), "gradients": should, "narrow": None, "is_read": False}
    alone = SimpleNamespace(parameter_names=list(should), start=start, after_first=should, **facts)
    one = SimpleNamespace(start=start, after_first=did)
    said = any_update_ratio(SimpleNamespace(alone=alone, ranks=[one], n_ranks=1, tolerance=1e-9))
    assert (said is not None) == told


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ([2, 3], "2"),
        ([3], "3"),
        ([0, 1, 2, 3], None),  # as rounding is
        ([1, 3], None),
        ([], None),
    ],
)
def test_right_up_to_a_position_is_told_if_all_later_ones_are_wrong(wrong, told):
    want = torch.arange(2 * 4 * 3.0).view(2, 4, 3) + 1
    got = want.clone()
    got[1, wrong, 0] *= 1.001  # in one of the rows, one of the numbers
    evidence = SimpleNamespace(first=SimpleNamespace(got=got, want=want), tolerance=1e-9)
    assert right_up_to_a_position(evidence) == told


def test_an_output_without_positions_has_none_of_them_right():
    want = torch.ones(4, 3)
    evidence = SimpleNamespace(first=SimpleNamespace(got=want.tril(), want=want), tolerance=1e-9)
    assert right_up_to_a_position(evidence) is None
