"""The tensors that exercises start from: no zeros to hide behind, and sums that are exact in every order."""

from __future__ import annotations

import pytest
import torch

from course_lib.checks.kit.spec import Case


@pytest.mark.parametrize(("dtype", "largest"), [("float32", 999), ("int64", 999), ("bfloat16", 15)])
def test_every_number_is_whole_not_zero_and_of_either_sign(dtype, largest):
    case = Case(world_size=4, length=500, row=(3,), dtype=dtype)
    found = [case.whole(seed, rank) for seed in (0, 1) for rank in range(4)]
    together = torch.stack(found).double()
    assert {x.dtype for x in found} == {getattr(torch, dtype)} and found[0].shape == (500, 3)
    assert (together.abs().min(), together.abs().max()) == (1, largest - 1)
    assert together.min() == 1 - largest and torch.equal(together, together.round())
    assert 0.45 < (together > 0).double().mean() < 0.55
    assert len({tuple(x.flatten().tolist()) for x in together}) == len(found)


def test_a_case_names_what_is_not_usual():
    assert str(Case(world_size=1, length=5)) == "1 rank, 5 numbers"
    odd = Case(world_size=3, length=5, row=(2,), dtype="int64", root=1, node_size=2)
    assert str(odd) == "3 ranks, shape (5, 2), root 1, 2 per node, int64"
