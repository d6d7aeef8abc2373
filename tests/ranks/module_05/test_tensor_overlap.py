"""Tensor parallelism in parts of a batch: on real ranks the same numbers, on the emulated clock the formula's time."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from course_lib import comm
from course_lib.comm import EmulatedClock
from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.tensor_overlap import tensor_overlap
from course_lib.hardware import Link
from course_lib.ranks import ledger, run_ranks

TOY = Link(name="toy", alpha_s=20e-6, bandwidth_bytes_per_s=1e9, source="a test", date="2026-11")
SLOWDOWN, LENGTH, BLOCKS = 200, 200_000, 3


def chain(x, parts, block):
    """Blocks one after the other, each part's sum under way while the next part is computed."""
    pieces = list(x.tensor_split(parts))
    sums = [None] * parts
    for number in range(BLOCKS):
        for part in range(parts):
            if sums[part] is not None:
                sums[part].wait()
            pieces[part] = block(number, pieces[part], parts)
            sums[part] = comm.all_reduce_(pieces[part], async_op=True)
    for work in sums:
        work.wait()
    return torch.cat(pieces)


def multiplied(parts):
    """Real blocks, whose first matrix is cut by columns and the second by rows."""
    rank, p, source = dist.get_rank(), dist.get_world_size(), torch.Generator().manual_seed(3)
    weights = [torch.randn(2, 8, 8, generator=source, dtype=torch.float64) / 3 for _ in range(BLOCKS)]
    x = torch.randn(6, 8, generator=source, dtype=torch.float64)

    def block(number, piece, _):
        first, second = weights[number]
        return torch.tanh(piece @ first.tensor_split(p, 1)[rank]) @ second.tensor_split(p, 0)[rank]

    whole = x
    for first, second in weights:
        whole = torch.tanh(whole @ first) @ second
    return (chain(x, parts, block) - whole).abs().max().item()


def timed(parts, compute_s):
    def block(_, piece, parts):
        comm.compute(compute_s / parts)
        return piece.clone()

    with comm.emulated(EmulatedClock(inside=TOY, slowdown=SLOWDOWN)):
        chain(torch.ones(LENGTH), parts, block)


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_parts_of_a_batch_make_the_whole_batch_s_numbers(parts):
    assert max(run_ranks(multiplied, 4, parts)) < 1e-12


@pytest.mark.parametrize("share", [0.5, 1.5], ids=["longer sums", "longer compute"])
@pytest.mark.parametrize("parts", [1, 2])
def test_the_emulated_chain_takes_as_long_as_the_formula_says(parts, share):
    bytes_s = (
        comm_time("all_reduce", "ring", world_size=4, length=LENGTH, itemsize=4).critical_bytes * TOY.beta_s_per_byte
    )
    compute_s, latency_s = share * bytes_s, 6 * TOY.alpha_s
    run_ranks(timed, 4, parts, compute_s)
    found = tensor_overlap([compute_s] * BLOCKS, [bytes_s] * BLOCKS, parts=parts, latency_s=latency_s)
    assert ledger().span_s == pytest.approx(found.overlapped_s, rel=0.08)
