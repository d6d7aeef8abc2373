"""The DDP wrapper equals one device on the whole batch, and torch's own, whatever its options."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from ddp_models import TOLERANCE, Counting, Perceptron, adamw, decoder, deviation, sgd, step, train
from torch import nn

from course_lib.parallel.data.ddp import DistributedDataParallel
from course_lib.ranks import ledger, run_ranks
from course_lib.units import MiB


def against_both(make_model, make_optimizer, wrapping, options, one_device=True):
    """Deviations from one device and from torch's DDP, on this rank."""
    torch.set_default_dtype(torch.float64)
    try:
        rank, p = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(0)
        first = make_model()
        torch.manual_seed(100 + rank)
        theirs, alone = copy.deepcopy(first), copy.deepcopy(first)
        ours = DistributedDataParallel(first if rank == 0 else make_model(), **wrapping)
        peer = nn.parallel.DistributedDataParallel(
            theirs,
            process_group=dist.new_group(),
            gradient_as_bucket_view=True,
            find_unused_parameters=wrapping.get("find_unused_parameters", False),
        )

        def share(rows):  # of each micro-batch, so that accumulating cuts the same ones on one device
            parts = rows.tensor_split(options.get("accumulation", 1))
            return torch.cat([part.tensor_split(p)[rank] for part in parts])

        found = train(ours, make_model, make_optimizer, share, **options)
        other = train(peer, make_model, make_optimizer, share, **options)
        whole = train(alone, make_model, make_optimizer, lambda rows: rows, **options) if one_device else found
        return deviation(found, other), deviation(found, whole)
    finally:
        torch.set_default_dtype(torch.float32)


WRAPPINGS = {
    "default": {},
    "one gradient a bucket": {"bucket_cap_mb": 0},
    "small buckets, views": {"bucket_cap_mb": 300 / MiB, "gradient_as_bucket_view": True},
    "no overlap": {"overlap": False, "bucket_cap_mb": 300 / MiB},
    "static graph": {"static_graph": True, "bucket_cap_mb": 300 / MiB},
    "unused": {"find_unused_parameters": True, "bucket_cap_mb": 300 / MiB},
    "native": {"algorithm": "native", "bucket_cap_mb": 300 / MiB},
    "doubling": {"algorithm": "recursive_doubling", "bucket_cap_mb": 300 / MiB},
}


# Half of the product, chosen so that any three of ranks, wrapping, model and accumulation meet in every combination.
HALVES = (
    ((Perceptron, {}), (decoder, {"accumulation": 3})),
    ((Perceptron, {"accumulation": 3}), (decoder, {})),
)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4], scope="module")
@pytest.mark.parametrize("name", WRAPPINGS)
def test_equal_to_one_device_and_to_torch(world_size, name):
    for make_model, options in HALVES[(world_size + list(WRAPPINGS).index(name)) % 2]:
        for peer, whole in run_ranks(against_both, world_size, make_model, sgd, WRAPPINGS[name], options):
            assert peer <= TOLERANCE and whole <= TOLERANCE


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4], scope="module")
def test_adamw_and_both_ways_to_clear_gradients(world_size, set_to_none):
    options = {"accumulation": 2, "set_to_none": set_to_none}
    for wrapping in ({"bucket_cap_mb": 300 / MiB}, {"static_graph": True, "gradient_as_bucket_view": True}):
        for peer, whole in run_ranks(against_both, world_size, Perceptron, adamw, wrapping, options):
            assert peer <= TOLERANCE and whole <= TOLERANCE


@pytest.mark.parametrize("options", [{}, {"accumulation": 2}], ids=["", "accumulation"])
@pytest.mark.parametrize("world_size", [2, 3], scope="module")
def test_buffers_follow_the_first_rank_as_in_torch(world_size, options):
    for peer, _ in run_ranks(against_both, world_size, Counting, sgd, {}, options, False):
        assert peer <= TOLERANCE


def buffers_after_two_forwards(broadcast_buffers):
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(Counting(), broadcast_buffers=broadcast_buffers)
    seen = []
    for _ in range(2):
        model(torch.full((2, 7), float(dist.get_rank()))).sum().backward()
        seen.append(model.module.mean.clone())
    with torch.no_grad():
        for _ in range(2):  # only the first evaluation after a step can find buffers that differ
            model(torch.ones(2, 7))
    return seen


def test_buffers_are_sent_unless_told_not_to():
    run_ranks(buffers_after_two_forwards, 2, True)
    assert len(ledger().of("broadcast").calls()) == 2 + 3 * 2  # both dtypes at wrapping and after each step
    alone = run_ranks(buffers_after_two_forwards, 2, False)
    assert len(ledger().of("broadcast").calls()) == 2
    assert torch.allclose(alone[0][0] * 0.9, alone[0][1], atol=1e-6)  # rank 0 sees zeros only
    assert not torch.allclose(alone[0][1], alone[1][1])


def test_wrapping_copies_the_first_rank():
    def state():
        torch.manual_seed(dist.get_rank())
        before = Counting()
        kept = copy.deepcopy(before.state_dict())
        after = DistributedDataParallel(before)
        assert dict(after.module.named_parameters()).keys() == dict(Counting().named_parameters()).keys()
        return kept, after.module.state_dict()

    results = run_ranks(state, 3)
    first = results[0][0]
    assert any(not torch.equal(first[name], results[1][0][name]) for name in first)
    for _, state_after in results:
        assert all(torch.equal(first[name], state_after[name]) for name in first)


class TwoWays(nn.Module):
    """Odd ranks take one matrix, even ranks another, nobody the third."""

    def __init__(self):
        super().__init__()
        self.ways = nn.ModuleList(nn.Linear(3, 3, bias=False) for _ in range(3))

    def forward(self, x):
        return self.ways[int(x[0, 0] > 0)](x)


def gradients_of_two_ways(wrapping, accumulation=1, steps=3):
    """Ours and torch's after each step; `None` where no rank used a matrix."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    first = TwoWays()
    ours = DistributedDataParallel(copy.deepcopy(first), bucket_cap_mb=0, **wrapping)
    peer = nn.parallel.DistributedDataParallel(
        copy.deepcopy(first), process_group=dist.new_group(), bucket_cap_mb=1e-6, find_unused_parameters=True
    )
    found = []
    for _ in range(steps):
        rows = torch.full((accumulation, 3), 1.0 if rank % 2 else -1.0)
        found.append([step(m, sgd(m.parameters()), rows, accumulation=accumulation) for m in (ours, peer)])
    return found


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("wrapping", [{"find_unused_parameters": True}, {"static_graph": True}], ids=str)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4], scope="module")
def test_unused_parameters_as_in_torch(world_size, wrapping, accumulation):
    for steps in run_ranks(gradients_of_two_ways, world_size, wrapping, accumulation):
        assert len(steps) == 3
        for ours, theirs in steps:
            assert ours[2] is None and theirs[2] is None
            assert deviation(ours, theirs) <= 1e-6


def test_a_parameter_used_only_under_no_sync_counts():
    def first_way_alone():
        model = DistributedDataParallel(TwoWays(), bucket_cap_mb=0, find_unused_parameters=True)
        with model.no_sync():
            model(torch.full((1, 3), -1.0)).sum().backward()
        assert model.module.ways[0].weight.grad is not None and model.module.ways[1].weight.grad is None
        mine = model.module.ways[0].weight.grad.sum().item()
        model(torch.ones(1, 3)).sum().backward()
        return mine, model.module.ways[0].weight.grad.sum().item(), model.module.ways[2].weight.grad

    assert run_ranks(first_way_alone, 2) == [(-9.0, -9.0, None)] * 2
