"""The acceptance sweep: rows that all ranks agree on, the bus bandwidth of the formulas, and numbers that are wrong."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from course_lib.costs import least_bytes
from course_lib.gauges import SweepRow, busbw, sweep_all_reduce, sweep_table
from course_lib.ranks import run_ranks

SIZES = [1024, 1027, 1 << 16]


def test_a_row_for_each_size_alike_on_all_ranks():
    rows = run_ranks(sweep_all_reduce, 3, SIZES, 3)
    assert rows[0] == rows[1] == rows[2]
    assert [row.bytes for row in rows[0]] == [1024, 1024, 1 << 16] and not any(row.wrong for row in rows[0])
    assert all(row.algbw == row.bytes / row.seconds and row.busbw == busbw(row.algbw, 3) for row in rows[0])


def broken_sweep(size, repeats):
    """On the last rank one number changes after each sum."""
    really = dist.all_reduce

    def all_reduce(x, *args, **kwargs):
        really(x, *args, **kwargs)
        if dist.get_rank() == dist.get_world_size() - 1 and x.dtype == torch.float32:
            x[5] += 1

    dist.all_reduce = all_reduce
    try:
        return sweep_all_reduce([size], repeats)
    finally:
        dist.all_reduce = really


def test_wrong_numbers_are_counted_on_all_ranks():
    first, second = run_ranks(broken_sweep, 2, 4096, 3)
    assert first[0].wrong == second[0].wrong == 3 + 2
    assert sweep_table(first).splitlines()[-2] == "# Out of bounds values : 5 FAILED"


@pytest.mark.parametrize("ranks", [1, 2, 3, 16])
def test_bus_bandwidth_is_what_the_formulas_say_that_the_wire_carries(ranks):
    assert busbw(100.0, ranks) == pytest.approx(least_bytes("all_reduce", world_size=ranks, nbytes=100.0))


def test_the_table_is_that_of_nccl_tests():
    assert sweep_table([SweepRow(1 << 20, 2e-3, 524288000.0, 786432000.0, 0)]).splitlines() == [
        "#       size        count     type   redop       time    algbw    busbw  #wrong",
        "#        (B)   (elements)                        (us)   (GB/s)   (GB/s)",
        "     1048576       262144    float     sum     2000.0    0.524    0.786       0",
        "# Out of bounds values : 0 OK",
        "# Avg bus bandwidth    : 0.7864",
    ]


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ValueError, match="^sweep_all_reduce: a size of 3 bytes; a number has 4 bytes; give larger"):
        sweep_all_reduce([1024, 3])
    with pytest.raises(ValueError, match="^sweep_all_reduce: repeats=0; a time is the median of its rounds; give"):
        sweep_all_reduce([1024], repeats=0)
