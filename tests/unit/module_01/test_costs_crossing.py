"""Where the lines of two algorithms cross: by hand, by both times being equal there, and never."""

from __future__ import annotations

import pytest

from course_lib.costs import comm_time, crossing_bytes
from course_lib.hardware import INFINIBAND, NVLINK
from course_lib.units import MiB


def test_on_16_ranks_by_hand():
    """The ring has 30 starts and 15/8 of the tensor, recursive doubling 4 starts and 4 tensors."""
    found = crossing_bytes("ring", "recursive_doubling", world_size=16, link=INFINIBAND)
    assert found == pytest.approx(26 * 14e-6 * 50e9 / (4 - 15 / 8)) == pytest.approx(8.17 * MiB, rel=1e-3)


@pytest.mark.parametrize("p", [4, 6, 1000])
@pytest.mark.parametrize("link", [NVLINK, INFINIBAND])
def test_both_take_equally_long_there(p, link):
    nbytes = crossing_bytes("tree", "ring", world_size=p, link=link)
    length = round(nbytes / p) * p
    times = [
        comm_time("all_reduce", name, world_size=p, length=length, itemsize=1).time_s(link) for name in ("tree", "ring")
    ]
    assert times[0] == pytest.approx(times[1], rel=1e-4)


def test_lines_that_never_meet():
    assert crossing_bytes("ring", "halving_doubling", world_size=64, link=INFINIBAND) is None  # the same bytes
    assert crossing_bytes("naive", "recursive_doubling", world_size=8, link=INFINIBAND) is None  # one is always better
