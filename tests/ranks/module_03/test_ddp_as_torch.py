"""Habits of people who come from torch's DDP: what works there works here, with the same numbers."""

from __future__ import annotations

import copy
import gc
import math
import weakref
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from ddp_models import TOLERANCE, Counting, Perceptron, deviation, inputs
from torch import Tensor, nn

from course_lib.parallel.data.ddp import DistributedDataParallel
from course_lib.ranks import RankError, ledger, run_ranks


def both(make_model, **options):
    """Ours and torch's around equal models."""
    torch.manual_seed(0)
    model = make_model()
    theirs = nn.parallel.DistributedDataParallel(copy.deepcopy(model), process_group=dist.new_group(), **options)
    return DistributedDataParallel(model, **options), theirs


def gradients(model):
    return [p.grad for p in model.parameters()]


class Smooth(nn.Module):
    """Something to take second derivatives of."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))

    def forward(self, x):
        return self.layers(x)


def penalised(model, x):
    """A saliency map, a loss with a gradient penalty, then a backward into the input alone."""
    x = x.clone().requires_grad_()
    (saliency,) = torch.autograd.grad(model(x).sum(), x)
    output = model(x)
    (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
    (output.square().mean() + (slope.norm(dim=1) - 1).square().mean()).backward()
    kept = [g.clone() for g in gradients(model)]
    model(x).sum().backward(inputs=[x])
    weights = list(model.parameters())
    local = torch.autograd.grad(model(x).sum(), weights)
    return saliency, [*kept, *gradients(model), x.grad, *local]


def gradient_penalty():
    x = inputs(Perceptron, dist.get_rank())
    ours, theirs = both(lambda: Smooth().double())
    (mine, found), (other, wanted) = penalised(ours, x), penalised(theirs, x)
    return deviation([mine, *found], [other, *wanted])


@pytest.mark.parametrize("world_size", [1, 3], scope="module")
def test_autograd_grad_asks_for_no_reduction(world_size):
    assert max(run_ranks(gradient_penalty, world_size)) <= TOLERANCE


def test_a_rank_that_only_looks_at_its_input_takes_no_part():
    def unreached():
        model = DistributedDataParallel(Ways(), find_unused_parameters=True)
        x = torch.zeros(1, 3, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x)
        model(x + dist.get_rank()).sum().backward()
        return slope.tolist(), model.module.way.weight.grad.sum().item()

    assert run_ranks(unreached, 2) == [([[1.0] * 3], 4.5)] * 2
    assert len(ledger().of("all_reduce").calls()) == 2  # a bucket, and which parameters are used


class Ways(nn.Module):
    """One matrix, which an input of zero does not reach."""

    def __init__(self):
        super().__init__()
        self.way = nn.Linear(3, 3, bias=False)

    def forward(self, x):
        return x + self.way(x) if x.any() else x * 1


def buffers_by_turns(ours):
    """The buffers after each forward: training, evaluating and neither, with and without gradients."""
    model, seen = both(Counting)[0 if ours else 1], []
    x = torch.full((2, 7), 1.0 + dist.get_rank())
    for alone, quiet in ((0, 0), (0, 1), (0, 1), (0, 0), (1, 0), (0, 0), (0, 1)):
        with torch.set_grad_enabled(not quiet):
            if alone:
                with model.no_sync():
                    model(x).sum().backward()
            else:
                output = model(x).sum()
                output.backward() if not quiet else None
        seen += [buffer.clone() for buffer in model.buffers()]
    return seen


def test_buffers_are_sent_when_torch_sends_them():
    for mine, other in zip(run_ranks(buffers_by_turns, 2, True), run_ranks(buffers_by_turns, 2, False), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))


def evaluated():
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    model(torch.randn(5, 3)).sum().backward()
    model.eval()
    with torch.no_grad():
        return model(torch.ones(2, 3))


def test_ranks_evaluate_one_model_after_training():
    first, *others = run_ranks(evaluated, 3)
    assert all(torch.equal(first, other) for other in others)


def kept_gradients(options):
    """Of ours and torch's: whether gradients that were kept of the second step outlive the third."""
    result = []
    for model in both(Perceptron, **options):
        for _ in range(2):  # only then torch's buckets are what they will be
            model.zero_grad()
            model(torch.ones(2, 7)).square().sum().backward()
        kept = [g for g in gradients(model) if g is not None]
        before = [g.clone() for g in kept]
        model.zero_grad()
        model(torch.ones(2, 7) * 3).square().sum().backward()
        result.append([torch.equal(a, b) for a, b in zip(kept, before, strict=True)])
    return result


def test_kept_gradients_live_on_unless_they_are_views_of_buckets():
    for ours, theirs in run_ranks(kept_gradients, 2, {}):
        assert ours == theirs == [True] * len(ours)
    for ours, theirs in run_ranks(kept_gradients, 2, {"gradient_as_bucket_view": True}):
        assert not any(ours) and not any(theirs)


class Complex(nn.Module):
    """A complex weight between real ones."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.randn(3, 5))
        self.phase = nn.Parameter(torch.randn(5, dtype=torch.complex64))

    def forward(self, x):
        return (x @ self.first * self.phase).abs()


def complex_step(options):
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(dist.get_rank()))
    found = []
    for model in both(Complex, **options):
        model(x).square().mean().backward()
        found.append(gradients(model))
    return deviation(*found)


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}], ids=["copies", "views"])
def test_complex_parameters(options):
    assert max(run_ranks(complex_step, 2, options)) <= 1e-6


def test_torch_s_own_words():
    def wrapped():
        group = dist.new_group()
        model = DistributedDataParallel(
            Perceptron(),
            process_group=group,
            device_ids=[0],
            output_device=0,
            bucket_cap_mb=math.inf,
            init_sync=True,
        )
        each = DistributedDataParallel(Perceptron(), bucket_cap_mb=0)
        for one in (model, each):
            one(torch.ones(2, 7)).sum().backward()
        return model.plan.group is group, [len(one._reducer.buckets) for one in (model, each)]

    assert run_ranks(wrapped, 2) == [(True, [1, 5])] * 2


@dataclass
class Answer:
    """What some libraries' models return."""

    logits: Tensor


class Answering(Perceptron):
    def forward(self, x):
        return Answer(super().forward(x))


class Wrapped:
    """An output that nobody can look into."""

    def __init__(self, logits):
        self.logits = logits


class Opaque(Perceptron):
    def forward(self, x):
        return Wrapped(super().forward(x))


def answered(kind, backwards):
    """How far a model with such an output is from one that returns a tensor, and its gradients."""
    x, found = inputs(Perceptron, dist.get_rank()), []
    for make_model in (kind, Perceptron):
        torch.manual_seed(0)
        model = DistributedDataParallel(make_model().double())
        output = model(x)
        for _ in range(backwards):
            getattr(output, "logits", output).square().mean().backward(retain_graph=True)
        found.append([g for g in gradients(model) if g is not None])
    return deviation(*found), found[0]


@pytest.mark.parametrize(("kind", "backwards"), [(Answering, 1), (Answering, 2), (Opaque, 1)])
def test_gradients_are_averaged_whatever_the_model_returns(kind, backwards):
    (first, mine), (second, theirs) = run_ranks(answered, 2, kind, backwards)
    assert max(first, second) <= TOLERANCE
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def copied():
    """A copy on one rank alone, which sends nothing; then a copy on both, trained like its original."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Perceptron(), bucket_cap_mb=0, algorithm="tree")
    if dist.get_rank() == 0:
        copy.deepcopy(model)
    twin = copy.deepcopy(model)
    for one in (model, twin):
        one(torch.full((2, 7), 1.0 + dist.get_rank())).sum().backward()
    apart = all(p is not q for p, q in zip(model.parameters(), twin.parameters(), strict=True))
    same = [torch.equal(a, b) for a, b in zip(gradients(model), gradients(twin), strict=True) if a is not None]
    return apart, len(same), all(same), twin.plan is model.plan


def test_a_copy_of_the_wrapper_averages_on_its_own():
    assert run_ranks(copied, 2) == [(True, 5, True, True)] * 2


def refused(make):
    with pytest.raises(RankError) as caught:
        run_ranks(make, 2)
    assert str(caught.value).startswith("all ranks failed")
    text = str(caught.value).split("ValueError: ")[1]
    assert text.count("; ") == 2
    return text


@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_are_refused_at_wrapping(layer):
    text = refused(lambda: DistributedDataParallel(nn.Sequential(layer(4, 3, sparse=True), nn.Linear(3, 2))))
    assert text == (
        "DistributedDataParallel: 0.weight with sparse=True; a bucket has room for every number of a gradient; "
        "pass sparse=False"
    )


def test_a_sparse_gradient_that_nobody_could_foresee():
    class Looking(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.ones(4, 3))

        def forward(self, x):
            return nn.functional.embedding(x, self.table, sparse=True)

    def step():
        DistributedDataParallel(Looking())(torch.tensor([1])).sum().backward()

    text = refused(step)
    assert text.startswith("DistributedDataParallel: a sparse gradient of table; a bucket has room for every number")


def test_a_parameter_that_was_frozen_after_wrapping():
    def frozen_late():
        model = DistributedDataParallel(Perceptron())
        model.module.scale.requires_grad_(False)
        model(torch.ones(2, 7)).sum().backward()

    text = refused(frozen_late)
    assert text.startswith("DistributedDataParallel: no gradient of scale on rank 0 and no gradient of scale on rank 1")
    assert text.endswith("; freeze it before wrapping, or pass find_unused_parameters=True")


@pytest.mark.parametrize("cap", [-1, math.nan])
def test_a_bucket_of_no_size(cap):
    text = refused(lambda: DistributedDataParallel(Perceptron(), bucket_cap_mb=cap))
    assert text.startswith(f"DistributedDataParallel: bucket_cap_mb={cap}; a bucket has a size in MiB; 0 gives each")


class Saved:
    """Holds what a forward saves for its backward."""

    def __init__(self, tensor):
        self.tensor = tensor


def left_of_a_forward(wrap):
    """How much of what a forward saved is there without its output, before anybody tidies up."""
    saved = []

    def save(tensor):
        found = Saved(tensor)
        saved.append(weakref.ref(found))
        return found

    model = wrap(Smooth())
    gc.disable()
    try:
        with torch.autograd.graph.saved_tensors_hooks(save, lambda found: found.tensor):
            output = model(torch.ones(2, 7))
        held = sum(found() is not None for found in saved)
        del output
        return held, sum(found() is not None for found in saved)
    finally:
        gc.enable()


def test_a_forward_without_backward_keeps_what_a_bare_model_s_does():
    (held, left), bare = (run_ranks(left_of_a_forward, 1, wrap)[0] for wrap in (DistributedDataParallel, nn.Sequential))
    assert (held, left) == bare and left < held


def test_a_wrapper_that_is_gone_leaves_nothing_behind():
    def gone():
        wrapped = DistributedDataParallel(Smooth())
        wrapped(torch.ones(2, 7)).sum().backward()
        weight, reducer = (weakref.ref(x) for x in (wrapped.module.layers[0].weight, wrapped._reducer))
        del wrapped
        gc.collect()
        return weight() is None, reducer() is None

    assert run_ranks(gone, 1) == [(True, True)]
