"""What DDP refuses: the same clear error on all ranks, no hang, and the same processes go on working."""

from __future__ import annotations

import os
import re
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib import comm
from course_lib.parallel.data.ddp import DistributedDataParallel
from course_lib.ranks import RankError, RankTimeout, run_ranks


def refused(fn, world_size, *args):
    """The one message that all ranks raise; the same processes must go on working."""
    pids = run_ranks(os.getpid, world_size)
    with pytest.raises(RankError) as caught:
        run_ranks(fn, world_size, *args)
    message = str(caught.value)
    assert message.startswith("all ranks failed" if world_size > 1 else "rank 0 failed"), message
    assert run_ranks(os.getpid, world_size) == pids
    assert run_ranks(works, world_size) == [0.0] * world_size
    text = message.split("ValueError: ")[1]
    assert text.count("; ") == 2 and "\n" not in text, text
    return text


def works():
    """How far this rank's gradient is from the first rank's."""
    model = DistributedDataParallel(nn.Linear(3, 2), bucket_cap_mb=0)
    model(torch.full((1, 3), float(dist.get_rank()))).sum().backward()
    gradient = model.module.weight.grad
    return (gradient - comm.broadcast(gradient)).abs().max().item()


class Layers(nn.Module):
    """One layer, changed on one rank by `change`."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x):
        return self.first(x)


def wrap(change, odd_rank, options):
    torch.manual_seed(0)
    model = Layers()
    if dist.get_rank() == odd_rank:
        changed = change(model)
        model = changed if isinstance(changed, Layers) else model
    DistributedDataParallel(model, **options)


def rename(model):
    model.second = model.first
    del model.first


def in_another_order(_):
    torch.manual_seed(0)
    model = Layers()
    model.first.register_parameter("last", model.first.weight)
    del model.first.weight
    model.first.weight = model.first.last
    del model.first.last
    return model


WEIGHT = r"parameter of shape \(2, 3\) and dtype float32"
DIFFERENCES = {
    "name": (rename, rf"first.weight is a trained {WEIGHT} on rank 0 and nothing of that name on rank 1"),
    "more": (
        lambda model: model.register_parameter("extra", nn.Parameter(torch.ones(1))),
        r"extra is nothing of that name on rank 0 and a trained parameter of shape \(1,\) and dtype float32 on rank 1",
    ),
    "shape": (
        lambda model: setattr(model, "first", nn.Linear(3, 4)),
        rf"first.weight is a trained {WEIGHT} on rank 0 and a trained parameter of shape \(4, 3\) and dtype float32 on",
    ),
    "dtype": (
        lambda model: model.double(),
        rf"first.weight is a trained {WEIGHT} on rank 0 and .* and dtype float64 on rank 1",
    ),
    "requires_grad": (
        lambda model: model.first.weight.requires_grad_(False),
        rf"first.weight is a trained {WEIGHT} on rank 0 and a frozen {WEIGHT} on rank 1",
    ),
    "order": (in_another_order, r"entry \d of the model is first.weight on rank 0 and first.bias on rank 1"),
    "buffer": (
        lambda model: model.register_buffer("seen", torch.zeros(3)),
        r"seen is a buffer of shape \(2,\) and dtype float32 on rank 0 and a buffer of shape \(3,\) and dtype",
    ),
}


@pytest.mark.parametrize("init_sync", [True, False])
@pytest.mark.parametrize(("change", "text"), DIFFERENCES.values(), ids=DIFFERENCES.keys())
def test_models_that_differ(change, text, init_sync):
    found = refused(wrap, 3, change, 1, {"init_sync": init_sync})
    assert re.match(rf"DistributedDataParallel: {text}", found), found
    assert found.endswith("; all ranks wrap the same model in the same way; build it from one configuration")


def test_values_that_differ_are_named_only_without_sync():
    def other_bias(model):
        with torch.no_grad():
            model.first.bias[1] += 1e-6

    found = refused(wrap, 3, other_bias, 2, {"init_sync": False})
    assert re.fullmatch(
        r"DistributedDataParallel: first.bias has the hash [0-9a-f]{12} on rank 0 and [0-9a-f]{12} on rank 2; "
        r"with init_sync=False every rank brings the same values; "
        r"pass init_sync=True, or load the same weights on every rank",
        found,
    )
    run_ranks(wrap, 3, other_bias, 2, {})
    run_ranks(wrap, 3, lambda model: None, 2, {"init_sync": False})


def test_buffers_that_differ_without_sync():
    found = refused(wrap, 2, lambda model: model.seen.add_(1), 1, {"init_sync": False})
    assert found.startswith("DistributedDataParallel: seen has the hash ")


def test_options_that_differ():
    def differently():
        DistributedDataParallel(Layers(), bucket_cap_mb=100 + dist.get_rank())

    assert refused(differently, 2).startswith(
        "DistributedDataParallel: bucket_cap_mb is 100 on rank 0 and 101 on rank 1; "
    )


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: DistributedDataParallel(Layers().requires_grad_(False)),
            "no trained parameter; there must be a gradient to average; leave a frozen model unwrapped",
        ),
    ],
)
def test_a_wrapping_that_cannot_work(make, text):
    assert refused(make, 2).startswith(f"DistributedDataParallel: {text}")


def test_no_process_group():
    with pytest.raises(ValueError, match="DistributedDataParallel: no process group; ranks talk within an initialised"):
        DistributedDataParallel(Layers())


class Ways(nn.Module):
    """Three matrices; bit i of the number in the input says whether matrix i is used."""

    def __init__(self):
        super().__init__()
        self.ways = nn.ModuleList(nn.Linear(3, 3, bias=False) for _ in range(3))

    def forward(self, x):
        return x + sum(way(x) for i, way in enumerate(self.ways) if int(x[0, 0]) >> i & 1)


def reach(steps, options, guard=True):
    """In each step, rank r goes the ways `step[r]`."""
    model = DistributedDataParallel(Ways(), bucket_cap_mb=0, **options)
    with comm.settings(guard=guard):
        for step in steps:
            model(torch.full((1, 3), float(step[dist.get_rank()]), requires_grad=True)).sum().backward()
    return [way.weight.grad for way in model.module.ways]


RULE = "; every backward brings a gradient of every trained parameter on every rank; "
WAY_OUT = "freeze it before wrapping, or pass find_unused_parameters=True"


@pytest.mark.parametrize("overlap", [True, False])
def test_a_parameter_without_gradient_on_one_rank(overlap):
    found = refused(reach, 3, [(7, 7, 7), (7, 7, 6)], {"overlap": overlap})
    assert found == f"DistributedDataParallel: no gradient of ways.0.weight on rank 2{RULE}{WAY_OUT}"


def test_parameters_without_gradient_on_several_ranks():
    found = refused(reach, 3, [(4, 7, 3)], {})
    lacking = "no gradient of ways.1.weight, ways.0.weight on rank 0 and no gradient of ways.2.weight on rank 2"
    assert found == f"DistributedDataParallel: {lacking}{RULE}{WAY_OUT}"


def test_a_parameter_that_nobody_uses():
    found = refused(reach, 2, [(3, 3)], {})
    assert "no gradient of ways.2.weight on rank 0 and no gradient of ways.2.weight on rank 1; every" in found


def test_a_rank_whose_batch_reaches_no_parameter():
    found = refused(reach, 3, [(7, 0, 7)], {})
    assert "no gradient of ways.2.weight, ways.1.weight, ways.0.weight on rank 1; every" in found
    gradients = run_ranks(reach, 3, [(7, 0, 7)], {"find_unused_parameters": True})
    for way in range(3):
        assert gradients[1][way].sum().item() == pytest.approx(2 * 7 * 9 / 3)
        assert all(torch.equal(gradients[rank][way], gradients[0][way]) for rank in range(3))


def test_one_device_refuses_alike():
    assert "no gradient of ways.1.weight on rank 0; every" in refused(reach, 1, [(5,)], {})


def test_without_the_guard_the_rank_itself_refuses_and_nobody_hangs():
    with pytest.raises(RankError, match=rf"^rank 1 failed .*no gradient of ways.2.weight on rank 1{RULE}"):
        run_ranks(reach, 2, [(7, 3)], {}, False)
    run_ranks(reach, 2, [(7, 7)], {}, False)


CHANGED = (
    "; a static graph's gradients are always those of its first backward; pass static_graph=False, pass find_unused"
)


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([(7, 7), (7, 5)], f"no gradient of ways.1.weight on rank 1{CHANGED}"),
        ([(3, 3), (3, 7)], f"a gradient of ways.2.weight on rank 1{CHANGED}"),
        (
            [(7, 3), (7, 5)],
            f"no gradient of ways.1.weight on rank 1 and a gradient of ways.2.weight on rank 1{CHANGED}",
        ),
    ],
)
def test_a_static_graph_that_changes(steps, text):
    assert refused(reach, 2, steps, {"static_graph": True, "overlap": False}).startswith(
        f"DistributedDataParallel: {text}"
    )


def raise_in_backward(step):
    """An exception in one backward; the next one averages as if nothing had been."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), bucket_cap_mb=0)

    def fail(_):
        raise KeyError("in backward")

    rows = torch.full((1, 3), float(dist.get_rank() + step))
    hook = model.module[0].weight.register_hook(fail)
    with pytest.raises(KeyError, match="in backward"):
        model(rows).sum().backward()
    hook.remove()
    model.zero_grad()
    model(rows).sum().backward()
    gradient = model.module[0].weight.grad
    return (gradient - comm.broadcast(gradient)).abs().max().item(), gradient.abs().max().item() > 0


def test_an_exception_in_backward_leaves_nothing_behind():
    assert run_ranks(raise_in_backward, 3, 1) == [(0.0, True)] * 3


def test_a_rank_that_never_comes_to_backward():
    def one_leaves():
        model = DistributedDataParallel(nn.Linear(3, 3))
        loss = model(torch.ones(1, 3)).sum()
        with comm.settings(guard=False):
            if dist.get_rank() != 1:
                loss.backward()
            else:
                time.sleep(60)

    expected = r"ranks 0, 2 wait in all_reduce_ #\d, line \d+ of test_ddp_errors.py; rank 1 still runs at line \d+"
    with pytest.raises(RankTimeout, match=expected):
        run_ranks(one_leaves, 3, timeout=2)
