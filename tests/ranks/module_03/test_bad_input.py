"""What the ladder refuses to climb with: one line for each, which says what to change."""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch
from ladder_models import EVEN, Toy

from course_lib.verify import RUNGS, NotEqual, assert_parallel_equals
from course_lib.verify.adapters.loop import Loop


def plain(config):
    return Loop(Toy(), config)


class Moody(Loop):
    """Draws from a generator that nobody seeds."""

    def step(self, batch):
        loss = super().step(batch)
        self.model.head.weight.data.mul_(1 + random.random())
        return loss


def born_anywhere(config):
    torch.seed()
    return plain(config)


@cache
def only_one():
    return Toy()


def shown_alone(config):
    """All trainers have one model, and show no gradients."""
    trainer = Hidden(config)
    trainer._loop = Loop(only_one(), config)
    return trainer


def born_otherwise(config):
    """Like one device's under SGD alone."""
    trainer = plain(config)
    trainer.model.head.weight.data.mul_(1 + (config.optimizer == "adamw"))
    return trainer


class Greedy(Loop):
    def step(self, batch):
        loss = super().step(batch)
        batch[1].fill_(0)
        return loss


class Hidden:
    """A trainer that shows its weights, and may not do what the configuration says."""

    def __init__(self, config, optimizer=None, scale=1.0):
        self._loop = Loop(Toy(), config)
        self._loop.optimizer = optimizer(self._loop.trained) if optimizer else self._loop.optimizer
        for parameter in self._loop.trained:
            parameter.data.mul_(scale)

    def parameters(self):
        return self._loop.parameters()

    def step(self, batch):
        self._loop.step(batch)


def with_adam(config):
    return Hidden(config, lambda weights: torch.optim.Adam(weights, lr=config.learning_rate))


def with_a_rate_of_its_own(config):
    return Hidden(config, lambda weights: torch.optim.SGD(weights, lr=0.3))


class Faster(Loop):
    """Shows its gradients, and moves three times as far."""

    def __init__(self, config):
        super().__init__(Toy(), config)
        self.optimizer.param_groups[0]["lr"] *= 3


class Half:
    def __init__(self, config):
        self.step = Loop(Toy(), config).step


def stored(step):
    return KEPT[step]


KEPT = {step: EVEN.batch(step) for step in range(6)}
SGD = "under optimizer='sgd' a step is w - learning_rate x gradient, and nothing else; let make"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (lambda c: Moody(Toy(), c), "not deterministic: its first step leaves another head.weight, head.weight off by"),
        (born_anywhere, "the reference is not deterministic: made twice, it begins with another embedding.weight, "),
        (lambda c: Loop(only_one(), c), "begins with the weights with which the first one ended; trainers share no"),
        (lambda c: Greedy(Toy(), c), "the reference changes the batch that it is given; .*; work on a copy$"),
        (with_adam, f"the reference has no SGD: its first step moves each weight by the learning rate, as .*; {SGD}"),
        (with_a_rate_of_its_own, "has no SGD: with half the learning rate, the first step moves .* by 1.0 x as much"),
        (Faster, "no SGD: where learning_rate x gradient is asked, the first step moves embedding.weight by 3.0 x as"),
        (
            lambda: plain(None),
            "make takes no configuration; the ladder trains with SGD first, .*; write make.config., a",
        ),
        (Half, r"make\(config\) gives a Half without parameters; a trainer has parameters\(\) and step\(batch\); wri"),
    ],
)
def test_a_reference_that_proves_nothing_is_refused(reference, message):
    with pytest.raises(ValueError, match=f"^assert_parallel_equals: .*{message}"):
        assert_parallel_equals(reference, plain, stored, world_size=1)
    KEPT.update({step: EVEN.batch(step) for step in range(6)})


def test_batches_that_are_drawn_anew_are_refused():
    def batches(step):
        return torch.full((2, 5), random.randrange(16)), torch.full((2, 5), random.randrange(16))

    with pytest.raises(ValueError, match=r"batches\(0\) gives other numbers when it is asked again; both sides train"):
        assert_parallel_equals(plain, plain, batches, world_size=1)


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        (lambda c: Greedy(Toy(), c), "the parallel side, on rank 0, changes the batch that it is given; "),
        (with_a_rate_of_its_own, f"the parallel side has no SGD: with half the learning rate, .*; {SGD}"),
        (lambda c: Loop(only_one(), c), "the second trainer that the parallel side, on rank 0, makes begins with the"),
        (shown_alone, "the second trainer that the parallel side, on rank 0, makes begins with the weights with which"),
        (born_otherwise, "the parallel side, on rank 0, is not deterministic: made twice, it begins with another head"),
        (lambda c: Loop(Toy().float(), c), "embedding.weight is float64 on one device and float32 on the ranks; both"),
    ],
)
def test_a_parallel_side_that_proves_nothing_is_refused(parallel, message):
    with pytest.raises(ValueError, match=f"^assert_parallel_equals: {message}"):
        assert_parallel_equals(plain, parallel, EVEN, world_size=1)


class Float32(Loop):
    """Computes in float32 whatever the run is in, and shows no output by which that could be seen."""

    output = property()

    def step(self, batch):
        model = self.wrapped
        self.wrapped = lambda inputs: model(inputs).float()
        loss = super().step(batch)
        self.wrapped = model
        return loss


def test_float32_inside_a_float64_run_is_seen_in_the_step_and_said():
    report = assert_parallel_equals(
        lambda c: Float32(Toy(), c), lambda c: Float32(Toy(), c), EVEN, world_size=1, rungs=RUNGS[:5]
    )
    assert str(report).startswith("1 rank against one device, float64 (float32 inside), tolerance 1e-05\n")
    with pytest.raises(NotEqual, match="about float32's rounding|rounded to float32|more than rounding|near one dev"):
        assert_parallel_equals(plain, lambda c: Float32(Toy(), c), EVEN, world_size=1)
