"""A chain of matrices under every partition on real ranks: one device's numbers, and the bytes of the formula."""

from __future__ import annotations

from itertools import pairwise, product
from typing import get_args

import pytest
import torch

from course_lib import comm
from course_lib.comm import EmulatedClock
from course_lib.comm.ledger import current
from course_lib.costs import chain_partition
from course_lib.hardware import Link
from course_lib.parallel.pipelines.chain import Chain
from course_lib.ranks import ledger, run_ranks
from course_lib.split import MatrixCut

WIDTHS, SAMPLES = (7, 5, 6, 3), 2  # odd and even
LINK = Link(name="toy", alpha_s=20e-6, bandwidth_bytes_per_s=1e9, source="a test", date="2026-11")
EVERY = list(product(get_args(MatrixCut), repeat=3))
FOUR_OPERATIONS = [("out", "in", "in"), ("in", "out", "out"), ("out", "out", "in")]


def problem():
    """Matrices, x, and the gradient of y."""
    torch.manual_seed(0)
    weights = [torch.randn(outputs, inputs, dtype=torch.float64) for inputs, outputs in pairwise(WIDTHS)]
    return weights, *(torch.randn(width, SAMPLES, dtype=torch.float64) for width in (WIDTHS[0], WIDTHS[-1]))


def one_device():
    """y, the gradient of x, and those of the matrices, by autograd."""
    weights, x, gradient = problem()
    leaves = [tensor.requires_grad_() for tensor in (x, *weights)]
    y = x
    for weight in weights:
        y = weight @ y
    return y.detach(), *torch.autograd.grad(y, leaves, gradient)


def sent_since(start):
    """Bytes and messages of this rank, and where its ledger ends."""
    sizes = [event.nbytes for event in current()[start:] if event.kind == "send"]
    return (sum(sizes), len(sizes)), len(current())


def run(partitions):
    """For each the largest deviation from one device, what is held, and sent in forward and both backwards."""
    weights, x, gradient = problem()
    y, of_x, *of_weights = one_device()
    found = []
    for cuts in partitions:
        chain = Chain(weights, cuts)
        start = len(current())
        pairs = [(chain.forward(x), y)]
        forward, start = sent_since(start)
        assert chain.backward(gradient) is None
        short, start = sent_since(start)
        pairs.append((chain.backward(gradient, input_gradient=True), of_x))
        backward, _ = sent_since(start)
        pairs += zip(chain.gradients, map(chain.part, of_weights, cuts), strict=True)
        deviation = max((mine - theirs).abs().max().item() for mine, theirs in pairs)
        held = sum(weight.numel() for weight in chain.weights)
        found.append((deviation, held, [forward, short, backward]))
    return found


def timed(widths, cuts, clock):
    chain = Chain([torch.ones(outputs, inputs) for inputs, outputs in pairwise(widths)], cuts)
    with comm.emulated(clock):
        chain.forward(torch.ones(widths[0], 64))
        chain.backward(torch.ones(widths[-1], 64))


def test_of_two_partitions_the_one_that_sends_the_narrow_product_is_faster():
    widths, seconds = (64, 256, 64, 64), []
    for cuts in (("out", "in", "in"), ("out", "out", "in")):
        run_ranks(timed, 2, widths, cuts, EmulatedClock(inside=LINK, slowdown=200))
        partition = chain_partition(widths, cuts, tp=2, samples=64)
        seconds.append(ledger().span_s)
        assert seconds[-1] == pytest.approx((partition.forward + partition.backward).time_s(LINK), rel=0.01)
    assert seconds == pytest.approx([4 * 20e-6 + 512 * 64e-9, 4 * 20e-6 + 1280 * 64e-9], rel=0.01)


@pytest.mark.parametrize(("ranks", "partitions"), [(2, EVERY), (3, FOUR_OPERATIONS)], ids=["all 27", "three ranks"])
def test_a_partition_computes_what_one_device_does_and_sends_what_the_formula_says(ranks, partitions):
    results = run_ranks(run, ranks, partitions)
    for number, cuts in enumerate(partitions):
        data, inside = (
            chain_partition(WIDTHS, cuts, tp=ranks, samples=SAMPLES, itemsize=8, input_gradient=wanted)
            for wanted in (False, True)
        )
        for rank, found in enumerate(results):
            deviation, held, sent = found[number]
            assert deviation < 1e-12, cuts
            assert held == data.weights[rank], cuts
            expected = data.forward, data.backward, inside.backward
            assert sent == [(cost.sent_bytes[rank], cost.messages[rank]) for cost in expected], cuts


@pytest.mark.parametrize("cuts", [("out",), ("out", "in", "rows")])
def test_each_matrix_has_a_cut(cuts):
    with pytest.raises(
        ValueError, match="^Chain: 3 matrices, cuts=.*; each matrix has a cut; choose from replicated, "
    ):
        Chain(problem()[0], cuts)
