"""Buckets: what lies in them, in which order they are launched, and whose backward fills them."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from ddp_models import TOLERANCE, Perceptron, deviation, inputs
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_lib import comm
from course_lib.parallel.data.buckets import Reducer, average_gradients, average_gradients_in_buckets, trained
from course_lib.parallel.data.ddp import DistributedDataParallel
from course_lib.parallel.data.replicate import broadcast_state
from course_lib.ranks import RankError, ledger, run_ranks
from course_lib.units import MiB


def three_ways(bucket_bytes):
    """Naive, bucketed, overlapped by the plain reducer and by the wrapper: the same gradients, two steps long."""
    torch.manual_seed(dist.get_rank())
    naive = Perceptron().double()
    broadcast_state(naive)
    bucketed, overlapped, wrapped = (copy.deepcopy(naive) for _ in range(3))
    reducer = Reducer([*trained(overlapped).values()], bucket_bytes=bucket_bytes)
    wrapped = DistributedDataParallel(wrapped, bucket_cap_mb=bucket_bytes / MiB)
    rows = inputs(Perceptron, dist.get_rank())
    for _ in range(2):
        for model in (naive, bucketed, overlapped, wrapped):
            model.zero_grad()
            model(rows).square().mean().backward()
        average_gradients(naive)
        average_gradients_in_buckets(bucketed, bucket_bytes=bucket_bytes)
    models = (naive, bucketed, overlapped, wrapped)
    gradients = [[p.grad for p in model.parameters() if p.requires_grad] for model in models]
    assert len(reducer.buckets) == len(wrapped._reducer.buckets)
    return [deviation(gradients[0], other) for other in gradients[1:]]


@pytest.mark.parametrize("bucket_bytes", [1, 200, 10**6])
def test_naive_bucketed_and_overlapped_average_the_same(bucket_bytes):
    assert max(max(pair) for pair in run_ranks(three_ways, 3, bucket_bytes)) <= TOLERANCE


def seeded_apart():
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    model[1].running_mean.fill_(dist.get_rank() + 5)
    mine = [x.tolist() for x in model.state_dict().values()]
    broadcast_state(model)
    return mine, [x.tolist() for x in model.state_dict().values()]


def test_a_state_is_that_of_rank_0_unless_another_is_named():
    (first, _), (second, _), _ = found = run_ranks(seeded_apart, 3)
    assert first != second and [after for _, after in found] == [first] * 3


def wrapped_again():
    """Three steps: by a wrapper, by a second one around the same model, and by the bare model."""
    model = Perceptron()
    first = DistributedDataParallel(model, overlap=False)
    first(torch.ones(2, 7)).sum().backward()
    second = DistributedDataParallel(model, gradient_as_bucket_view=True)
    second(torch.ones(2, 7)).sum().backward()
    model(torch.ones(2, 7)).sum().backward()
    return all(
        p.grad is view
        for bucket in second._reducer.buckets
        for p, view in zip(bucket.parameters, bucket.views, strict=True)
    )


def test_only_the_wrapper_that_was_called_averages():
    assert run_ranks(wrapped_again, 2) == [True] * 2  # and gradients lie in its buckets
    assert len(ledger().of("all_reduce").calls()) == 2


def two_losses():
    """Two backwards of one forward: the average of the sums is the sum of the averages."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Perceptron().double())
    y = model(inputs(Perceptron, dist.get_rank()))
    y.square().mean().backward(retain_graph=True)
    y.mean().backward()
    torch.manual_seed(0)
    alone = Perceptron().double()
    for rank in range(dist.get_world_size()):
        y = alone(inputs(Perceptron, rank))
        ((y.square().mean() + y.mean()) / dist.get_world_size()).backward()
    return deviation([p.grad for p in model.parameters()], [p.grad for p in alone.parameters()])


def test_two_backwards_of_one_forward():
    assert max(run_ranks(two_losses, 3)) <= TOLERANCE


class Mixed(nn.Module):
    """Three parameters, the second one in double precision."""

    def __init__(self):
        super().__init__()
        sizes = {5: torch.float32, 7: torch.float64, 11: torch.float32}
        self.parts = nn.ParameterList(nn.Parameter(torch.ones(n, dtype=dtype)) for n, dtype in sizes.items())

    def forward(self, scale):
        return sum((part * scale).sum() for part in self.parts)


def mixed_dtypes(bucket_bytes):
    model, scale = DistributedDataParallel(Mixed(), bucket_cap_mb=bucket_bytes / MiB), dist.get_rank() + 1.0
    model(scale).backward()
    dtypes = [{parameter.dtype for parameter in bucket.parameters} for bucket in model._reducer.buckets]
    assert all(len(kinds) == 1 for kinds in dtypes)
    return len(dtypes), [set(part.grad.tolist()) for part in model.module.parts]


@pytest.mark.parametrize(("bucket_bytes", "buckets"), [(1, 3), (10**6, 2)])
def test_a_bucket_has_one_dtype(bucket_bytes, buckets):
    assert run_ranks(mixed_dtypes, 2, bucket_bytes) == [(buckets, [{1.5}] * 3)] * 2


def launched_order(wrapping, steps):
    """The lengths of all-reduced buckets, step by step."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Backwards(), **wrapping)
    for _ in range(steps):
        model.zero_grad()
        model(torch.ones(2, 4)).sum().backward()


class Backwards(nn.Module):
    """Registered in the order 0, 1, 2, and used in the order 1, 2, 0."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(3))
        self.layers[0] = nn.Linear(5, 2, bias=False)
        self.layers[1] = nn.Linear(4, 4, bias=False)
        self.layers[2] = nn.Linear(4, 5, bias=False)

    def forward(self, x):
        return self.layers[0](self.layers[2](self.layers[1](x)))


@pytest.mark.parametrize(
    ("wrapping", "orders"),
    [
        ({"bucket_cap_mb": 0}, [[20, 16, 10]] * 2),  # from the last registered to the first
        ({"bucket_cap_mb": 0, "overlap": False}, [[20, 16, 10]] * 2),
        ({"bucket_cap_mb": 100 / MiB}, [[36, 10]] * 2),  # 80 bytes leave room for 64 more
        ({"bucket_cap_mb": 1}, [[46]] * 2),
        ({"bucket_cap_mb": 0, "static_graph": True}, [[20, 16, 10, None], [10, 20, 16]]),  # then as backward goes
    ],
)
def test_buckets_are_launched_in_order(wrapping, orders):
    run_ranks(launched_order, 2, wrapping, 2)
    calls = ledger().of("all_reduce")
    numbers = [number for number, _, _ in calls.calls()]
    lengths = [
        sum(e.nbytes for e in calls.events if (e.call, e.rank, e.kind) == (number, 0, "send")) // 4
        for number in numbers
    ]
    expected = [length for order in orders for length in order]
    assert len(lengths) == len(expected)
    for length, wanted in zip(lengths, expected, strict=True):
        assert wanted is None or length == wanted  # two ranks: each sends half of the sum, and half of the result


class Reentrant(nn.Module):
    """One layer used in two checkpointed segments: its gradient comes twice."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        for _ in range(2):
            x = checkpoint(self.layer, x, use_reentrant=True)
        return x


def checkpointed(wrapping):
    torch.manual_seed(0)
    model = DistributedDataParallel(Reentrant(), **wrapping)
    rows = torch.full((1, 3), 1.0 + dist.get_rank(), requires_grad=True)
    model(rows).square().sum().backward()
    return model.module.layer.weight.grad


def test_a_gradient_that_comes_twice():
    with pytest.raises(
        RankError,
        match=r"all ranks failed .*ValueError: DistributedDataParallel: the gradient of layer\.\w+ came after its "
        r"bucket was sent; a launched bucket is complete; pass overlap=False",
    ):
        run_ranks(checkpointed, 2, {})
    ours = run_ranks(checkpointed, 2, {"overlap": False})
    torch.manual_seed(0)
    alone = Reentrant()
    for value in (1.0, 2.0):
        (alone(torch.full((1, 3), value, requires_grad=True)).square().sum() / 2).backward()
    for gradient in ours:
        assert torch.allclose(gradient, alone.layer.weight.grad)


def test_overlap_is_real():
    """The first bucket's all-reduce is launched before the last gradient exists."""

    def watch():
        model = DistributedDataParallel(nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))), bucket_cap_mb=0)
        launched = []
        model.module[0].weight.register_hook(lambda _: launched.append(model._reducer.launched))
        with comm.settings(guard=False):
            model(torch.ones(1, 4)).sum().backward()
        return launched

    assert run_ranks(watch, 2) == [[5]] * 2  # all but its own weight: its bias comes first
