"""The DDP wrapper equals one device on the whole batch, and torch's own, whatever its buckets and options."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_lib import comm
from course_lib.config import ModelConfig
from course_lib.models.decoder import Decoder
from course_lib.parallel.buckets import average_gradients_in_buckets
from course_lib.parallel.ddp import DistributedDataParallel
from course_lib.parallel.replicate import average_gradients, broadcast_state
from course_lib.ranks import RankError, ledger, run_ranks

TINY = ModelConfig(
    name="tiny", hidden_size=12, n_layers=1, n_heads=2, n_kv_heads=1, ffn_size=20, vocab_size=32, tied=True
)
ROWS, STEPS, TOLERANCE = 72, 3, 1e-12


class Perceptron(nn.Module):
    """Uneven prime sizes, one frozen layer, a scalar parameter."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(7, 5), nn.GELU(), nn.Linear(5, 5), nn.GELU(), nn.Linear(5, 3))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.layers[2].requires_grad_(False)

    def forward(self, x):
        return self.layers(x) * self.scale


class Counting(Perceptron):
    """Buffers of two dtypes that every forward changes, and that every output depends on."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.randn(7))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        shifted = x - self.mean
        self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        self.calls += 1
        return super().forward(shifted)


def decoder():
    return Decoder(TINY)


def inputs(make_model, step):
    generator = torch.Generator().manual_seed(step)
    if make_model is decoder:
        return torch.randint(32, (ROWS, 4), generator=generator)
    return torch.randn(ROWS, 7, generator=generator, dtype=torch.float64)


def step(model, optimizer, rows, *, accumulation=1, set_to_none=True):
    """One step by micro-batches; under no_sync all but the last, where there is such a thing."""
    optimizer.zero_grad(set_to_none=set_to_none)
    parts = rows.tensor_split(accumulation)
    for number, part in enumerate(parts, start=1):
        alone = number < accumulation and hasattr(model, "no_sync")
        with model.no_sync() if alone else nullcontext():
            (model(part).square().mean() / accumulation).backward()
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    optimizer.step()
    return gradients


def train(model, make_model, make_optimizer, share, **options):
    """All gradients of all steps, then parameters and buffers."""
    optimizer = make_optimizer(model.parameters())
    found = []
    for number in range(STEPS):
        found += step(model, optimizer, share(inputs(make_model, number)), **options)
    return found + [x.detach().clone() for x in (*model.parameters(), *model.buffers())]


def deviation(ours, theirs):
    """The largest difference, relative to the largest number of its tensor."""
    assert len(ours) == len(theirs)
    worst = 0.0
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            worst = max(worst, ((mine - other).abs().max() / other.abs().max().clamp(min=1e-30)).item())
    return worst


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.3)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


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
    "one gradient a bucket": {"bucket_bytes": 1},
    "small buckets": {"bucket_bytes": 300},
    "no overlap": {"overlap": False, "bucket_bytes": 300},
    "static graph": {"static_graph": True, "bucket_bytes": 300},
    "unused": {"find_unused_parameters": True, "bucket_bytes": 300},
    "native": {"algorithm": "native", "bucket_bytes": 300},
    "doubling": {"algorithm": "recursive_doubling", "bucket_bytes": 300},
}


@pytest.mark.parametrize("world_size", [1, 2, 3, 4], scope="module")
@pytest.mark.parametrize("wrapping", WRAPPINGS.values(), ids=WRAPPINGS.keys())
def test_equal_to_one_device_and_to_torch(world_size, wrapping):
    for make_model in (Perceptron, decoder):
        for options in ({}, {"accumulation": 3}):
            for peer, whole in run_ranks(against_both, world_size, make_model, sgd, wrapping, options):
                assert peer <= TOLERANCE and whole <= TOLERANCE


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4], scope="module")
def test_adamw_and_both_ways_to_clear_gradients(world_size, set_to_none):
    options = {"accumulation": 2, "set_to_none": set_to_none}
    for wrapping in ({"bucket_bytes": 300}, {"bucket_bytes": 300, "static_graph": True}):
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
        model(torch.ones(2, 7))  # an evaluation, which one rank may do alone, sends nothing
    return seen


def test_buffers_are_sent_unless_told_not_to():
    run_ranks(buffers_after_two_forwards, 2, True)
    assert len(ledger().of("broadcast").calls()) == 2 + 2 * 2  # both dtypes at wrapping, and before each forward
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


def three_ways(bucket_bytes):
    """Naive, bucketed and wrapped: the same gradients."""
    torch.manual_seed(dist.get_rank())
    naive = Perceptron().double()
    broadcast_state(naive)
    bucketed, wrapped = copy.deepcopy(naive), copy.deepcopy(naive)
    wrapped = DistributedDataParallel(wrapped, bucket_bytes=bucket_bytes)
    rows = inputs(Perceptron, dist.get_rank())
    for model in (naive, bucketed, wrapped):
        model(rows).square().mean().backward()
    average_gradients(naive)
    average_gradients_in_buckets(bucketed, bucket_bytes=bucket_bytes)
    gradients = [[p.grad for p in model.parameters() if p.requires_grad] for model in (naive, bucketed, wrapped)]
    return [deviation(gradients[0], other) for other in gradients[1:]]


@pytest.mark.parametrize("bucket_bytes", [1, 200, 10**6])
def test_naive_bucketed_and_overlapped_average_the_same(bucket_bytes):
    assert max(max(pair) for pair in run_ranks(three_ways, 3, bucket_bytes)) <= TOLERANCE


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
    ours = DistributedDataParallel(copy.deepcopy(first), bucket_bytes=1, **wrapping)
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
        model = DistributedDataParallel(TwoWays(), bucket_bytes=1, find_unused_parameters=True)
        with model.no_sync():
            model(torch.full((1, 3), -1.0)).sum().backward()
        assert model.module.ways[0].weight.grad is not None and model.module.ways[1].weight.grad is None
        mine = model.module.ways[0].weight.grad.sum().item()
        model(torch.ones(1, 3)).sum().backward()
        return mine, model.module.ways[0].weight.grad.sum().item(), model.module.ways[2].weight.grad

    assert run_ranks(first_way_alone, 2) == [(-9.0, -9.0, None)] * 2


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
        ({"bucket_bytes": 1}, [[20, 16, 10]] * 2),  # from the last registered to the first
        ({"bucket_bytes": 1, "overlap": False}, [[20, 16, 10]] * 2),
        ({"bucket_bytes": 100}, [[36, 10]] * 2),  # 80 bytes leave room for 64 more
        ({"bucket_bytes": 10**6}, [[46]] * 2),
        ({"bucket_bytes": 1, "static_graph": True}, [[20, 16, 10, None], [10, 20, 16]]),  # then as backward goes
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
        model = DistributedDataParallel(nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))), bucket_bytes=1)
        launched = []
        model.module[0].weight.register_hook(lambda _: launched.append(model._reducer.launched))
        with comm.settings(guard=False):
            model(torch.ones(1, 4)).sum().backward()
        return launched

    assert run_ranks(watch, 2) == [[5]] * 2  # all but its own weight: its bias comes first
