"""What DDP sends, to the byte and the message, and how long its step takes on the emulated clock."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from course_lib import comm
from course_lib.comm import EmulatedClock
from course_lib.costs.comm.ddp import ddp_settling, ddp_step, ddp_time, ddp_wrapping
from course_lib.hardware import ETHERNET, INFINIBAND, NVLINK, Link
from course_lib.parallel.data.ddp import DistributedDataParallel
from course_lib.ranks import ledger, run_ranks
from course_lib.training.pacing import pace
from course_lib.units import MiB

TOY = Link(name="toy", alpha_s=20e-6, bandwidth_bytes_per_s=1e9, source="a test", date="2026-11")
SLOW = Link(name="slow toy", alpha_s=40e-6, bandwidth_bytes_per_s=2e8, source="a test", date="2026-11")


class Model(nn.Module):
    """Prime sizes, a frozen layer, buffers of two dtypes."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3), nn.Linear(3, 11))
        self.layers[1].requires_grad_(False)
        self.register_buffer("mean", torch.zeros(7))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x):
        return self.layers(x - self.mean)


STATE = [([35, 5, 15, 3, 33, 11, 7], 4), ([1], 8)]  # all that wrapping copies, by dtype
BUFFERS = [([7], 4), ([1], 8)]
TRAINED = [35, 5, 33, 11]


def run(steps, accumulation, options):
    model = DistributedDataParallel(Model(), **options)
    rows = torch.ones(2, 7)
    for _ in range(steps):
        with model.no_sync():
            for _ in range(accumulation - 1):
                model(rows).sum().backward()
        model(rows).sum().backward()


def total(costs, world_size):
    """Bytes and messages of each rank."""
    return (
        [sum(cost.sent_bytes[rank] for cost in costs) for rank in range(world_size)],
        [sum(cost.messages[rank] for cost in costs) for rank in range(world_size)],
    )


def measured(world_size):
    ranks = range(world_size)
    return [ledger().bytes_sent(rank) for rank in ranks], [ledger().messages(rank) for rank in ranks]


@pytest.mark.parametrize("bucket_bytes", [1, 150, 10**6])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4], scope="module")
def test_bytes_and_messages_equal_the_formula(world_size, overlap, bucket_bytes):
    run_ranks(run, world_size, 2, 3, {"overlap": overlap, "bucket_cap_mb": bucket_bytes / MiB})
    step = ddp_step(TRAINED, world_size=world_size, bucket_bytes=bucket_bytes)
    buffers = ddp_wrapping(BUFFERS, world_size=world_size)
    wrapping = ddp_wrapping(STATE, world_size=world_size)
    assert measured(world_size) == total([wrapping, step, step, buffers, buffers], world_size)


@pytest.mark.parametrize("algorithm", ["naive", "tree", "recursive_doubling", "halving_doubling"])
def test_any_algorithm_sends_what_its_formula_says(algorithm):
    options = {"algorithm": algorithm, "bucket_cap_mb": 150 / MiB, "broadcast_buffers": False, "init_sync": False}
    torch.manual_seed(0)
    run_ranks(seeded, 3, options)
    step = ddp_step(TRAINED, world_size=3, bucket_bytes=150, algorithm=algorithm)
    assert measured(3) == total([step], 3)


def seeded(options):
    torch.manual_seed(0)
    run(1, 1, options)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4], scope="module")
def test_unused_parameters_and_a_static_graph_cost_what_the_formula_says(world_size):
    plain = {"world_size": world_size, "bucket_bytes": 150}
    fixed = [ddp_wrapping(STATE, world_size=world_size)] + [ddp_wrapping(BUFFERS, world_size=world_size)] * 2
    run_ranks(run, world_size, 2, 1, {"find_unused_parameters": True, "bucket_cap_mb": 150 / MiB})
    assert measured(world_size) == total(
        [*fixed, *[ddp_step(TRAINED, **plain, find_unused_parameters=True)] * 2], world_size
    )
    run_ranks(run, world_size, 2, 1, {"static_graph": True, "bucket_cap_mb": 150 / MiB})
    settling = ddp_settling(len(TRAINED), world_size=world_size)
    assert measured(world_size) == total(
        [*fixed, ddp_step(TRAINED, **plain), settling, ddp_step(TRAINED, **plain)], world_size
    )


WIDTH, LAYERS, SLOWDOWN = 100, 4, 100
LENGTHS = [[WIDTH * WIDTH, WIDTH]] * LAYERS


def paced(forward_s, backward_s, clock, options):
    """One step of a deep model on the clock."""
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))), **options)
    rows = torch.ones(1, WIDTH)
    comm.ledger.clear()
    with comm.emulated(clock), pace([*model.module], forward_s, backward_s):
        model(rows).sum().backward()


CASES = {
    "compute bound": (100e-6, 400e-6, {"inside": TOY}),
    "communication bound": (20e-6, 40e-6, {"inside": TOY}),
    "slow between nodes": (100e-6, 400e-6, {"inside": TOY, "between": SLOW, "node_size": 2}),
}


@pytest.mark.parametrize("bucket_bytes", [1, 50_000, 10**6])
@pytest.mark.parametrize(("forward_s", "backward_s", "links"), CASES.values(), ids=CASES.keys())
def test_overlapped_and_in_turn_take_the_time_of_the_model(forward_s, backward_s, links, bucket_bytes):
    clock = EmulatedClock(**links, slowdown=SLOWDOWN)
    expected = ddp_time(
        LENGTHS, forward_s=forward_s, backward_s=backward_s, world_size=4, bucket_bytes=bucket_bytes, **links
    )
    for overlap, seconds in ((True, expected.overlapped_s), (False, expected.in_turn_s)):
        run_ranks(paced, 4, forward_s, backward_s, clock, {"overlap": overlap, "bucket_cap_mb": bucket_bytes / MiB})
        assert ledger().span_s == pytest.approx(seconds, rel=0.1)
        assert len([event for event in ledger().events if event.kind == "compute"]) == 4 * 2 * LAYERS


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("link", [NVLINK, INFINIBAND, ETHERNET], ids=lambda link: link.name)
def test_scaling_efficiency_on_the_clock_is_the_formula_s(link, overlap):
    expected = ddp_time(LENGTHS, forward_s=2e-5, backward_s=4e-5, world_size=4, inside=link, bucket_bytes=40_000)
    options = {"overlap": overlap, "bucket_cap_mb": 40_000 / MiB}
    run_ranks(paced, 4, 2e-5, 4e-5, EmulatedClock(inside=link, slowdown=1000), options)
    assert expected.compute_s / ledger().span_s == pytest.approx(expected.efficiency(overlap=overlap), rel=0.02)


def test_overlap_is_seen_in_the_ledger():
    run_ranks(paced, 4, 100e-6, 400e-6, EmulatedClock(inside=TOY, slowdown=SLOWDOWN), {"bucket_cap_mb": 40_000 / MiB})
    for rank in range(4):
        mine = [event for event in ledger().events if event.rank == rank]
        end = max(event.end_s for event in mine if event.kind == "compute")
        sent = [event for event in mine if event.kind == "send"]
        early = [event for event in sent if event.start_s < end]
        assert len(sent) == LAYERS * 6 and len(early) == (LAYERS - 1) * 6


def test_pace_ends_with_its_block_and_refuses_a_negative_time():
    def leaves_nothing():
        model = nn.Linear(3, 3)
        with pace([model], 0.0, 0.0):
            model(torch.ones(1, 3)).sum().backward()
        model(torch.ones(1, 3)).sum().backward()

    run_ranks(leaves_nothing, 2)
    assert [event.operation for event in ledger().events if event.rank == 0] == ["forward", "backward"]
    text = "pace: forward_s=1, backward_s=-1; time does not run backwards; give seconds"
    with pytest.raises(ValueError, match=text), pace([], 1, -1):
        raise AssertionError("not reached")
