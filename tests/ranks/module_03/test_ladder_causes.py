"""What the ladder says of planted errors: first rung, parameter, rank, ratio, cause. One error for each cause."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from ladder_models import EVEN, UNEVEN, Replicated, Toy, alone

from course_lib.training import trainer as trainers
from course_lib.verify import NotEqual, assert_parallel_equals

WORLD_SIZE = 4


class Spoiled(Replicated):
    """A trainer whose gradients are changed before anybody sees them."""

    def __init__(self, config, spoil, name=None, **model):
        self.spoil, self.name, self.calls = spoil, name, 0
        super().__init__(Toy(**model), config)

    def compute_gradients(self, batch):
        loss = super().compute_gradients(batch)
        self.calls += 1
        for name, gradient in self.gradients().items():
            if self.name in (None, name):
                gradient.copy_(self.spoil(gradient, self.calls))
        return loss


def shards(gradient):
    return gradient.tensor_split(WORLD_SIZE)


def transposed_shard(gradient, _):
    """Of the head (16, 6): shards of (4, 6), the second one written column by column."""
    parts = [part.clone() for part in shards(gradient)]
    parts[1] = parts[1].T.reshape(parts[1].shape)
    return torch.cat(parts)


def on_rank_2(change):
    return lambda gradient, calls: change(gradient) if dist.get_rank() == 2 else gradient


GRADIENTS = "gradients, head.weight on rank 0: "
SPOILS = {
    "summed": (
        lambda g, _: g * 4,
        4.0,
        "ratio",
        "4.0 x one device's.* head.weight alone: divide the sum over the ranks by their number$",
    ),
    "twice": (lambda g, _: g / 4, 0.25, "ratio", "1/4 of one device's.* was divided by the number of ranks once more$"),
    "sign": (lambda g, _: -g, -1.0, "ratio", "-1.0 x one device's.* its sign is turned round"),
    "zero": (lambda g, _: g * 0, 0.0, "zero", "zero, deviation 1;.* nothing wrote into it$"),
    "transposed": (
        transposed_shard,
        None,
        "transposed",
        r"one device's with a transposed shard \(dim 0\).* compare its layout with torch's",
    ),
    "permuted": (
        lambda g, _: torch.cat(shards(g)[1:] + shards(g)[:1]),
        None,
        "permuted",
        r"one device's with its shards of dim 0 in the order 1, 2, 3, 0.* put the shards together in rank order$",
    ),
    "rounded": (
        lambda g, _: g.bfloat16().double(),
        1.0,
        "rounded",
        "one device's rounded to bfloat16.* in the gradient's own dtype$",
    ),
    "another": (
        lambda g, _: g.abs(),
        None,
        "other",
        "wrong, and not by a constant factor.* wrong is only head.weight: what is",
    ),
}


@pytest.mark.parametrize("name", SPOILS)
def test_each_cause_is_named(name):
    spoil, ratio, kind, message = SPOILS[name]
    with pytest.raises(NotEqual, match=GRADIENTS + message) as caught:
        climb(lambda config: Spoiled(config, spoil, "head.weight"))
    error = caught.value
    assert (error.rung, error.name, error.rank, error.kind) == ("gradients", "head.weight", 0, kind)
    assert error.ratio == (None if ratio is None else pytest.approx(ratio, abs=1e-6))


def climb(parallel, reference=alone, batches=UNEVEN):
    return assert_parallel_equals(reference, parallel, batches, world_size=WORLD_SIZE)


def test_the_message_has_four_parts():
    message = (
        r"^assert_parallel_equals: gradients, embedding.weight on rank 0: 4.0 x one device's, deviation 3; "
        r"4 ranks together equal one device on the same batch within 1e-11; "
        r"divide the sum over the ranks by their number$"
    )
    with pytest.raises(NotEqual, match=message):
        climb(lambda config: Spoiled(config, lambda g, _: g * 4))


def test_one_rank_alone_is_named():
    with pytest.raises(NotEqual, match=r"gradients, inner.bias on rank 2: 3.0 x") as caught:
        climb(lambda config: Spoiled(config, on_rank_2(lambda g: g * 3), "inner.bias"))
    assert caught.value.rank == 2


def test_ranks_that_do_not_agree_are_told_to_average():
    with pytest.raises(NotEqual, match="on rank 2: wrong, .* only rank 2 holds a wrong one: it was changed there"):
        climb(lambda config: Spoiled(config, on_rank_2(torch.abs), "inner.bias"))


def test_a_ratio_with_two_causes_names_both():
    message = (
        "4.0 x .* divide the sum over the ranks by their number; or divide each micro-batch's loss by their number$"
    )
    with pytest.raises(NotEqual, match=message):
        climb(lambda config: Spoiled(replace(config, accumulation=4), lambda g, _: g * 4), batches=EVEN)


def test_what_goes_wrong_later_is_found_on_a_later_rung():
    with pytest.raises(
        NotEqual,
        match="parameters, embedding.weight .* wrong is only inner.weight, exactly 2.0 x one device's: its gradient",
    ) as e:
        climb(lambda config: Spoiled(config, lambda g, calls: g * (2 if calls > 1 else 1), "inner.weight"))
    assert e.value.rung == "parameters"
    with pytest.raises(NotEqual, match="parameters, .* the first step's gradients are right: look at the update") as e:
        climb(lambda config: Spoiled(config, lambda g, calls: g * (2 if calls > 2 else 1), "inner.weight"))
    assert e.value.rung == "parameters"


def test_what_is_right_in_the_first_step_was_not_rounded():
    """Errors of rounding's size alone: whatever rounds, rounds from the first step on."""

    def jitter(gradient, calls):
        signs = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(0)).sign()
        return gradient * (1 + 1e-3 * signs * (calls > 1))

    with pytest.raises(NotEqual, match="the first step is right, but not the second's gradients") as e:
        climb(lambda config: Spoiled(config, jitter))
    assert "precision" not in e.value.causes


def test_a_lower_rung_that_was_left_out_is_said_to_be_wrong_already():
    def summed(config):
        return Spoiled(config, lambda g, _: g * 4)

    for rung in ("AdamW", "parameters"):
        with pytest.raises(NotEqual, match=f"{rung}, .* the rung below, gradients, was left out and fails") as e:
            assert_parallel_equals(alone, summed, EVEN, world_size=2, rungs=(rung,))
        assert e.value.causes == ("a rung below",)


class OtherNorm(Replicated):
    def clip(self):
        return super().clip() * WORLD_SIZE**0.5


class LocalLoss(Replicated):
    def compute_gradients(self, batch):
        return super().compute_gradients(batch) + 0.01 * self.local.rank("dp")


class WrongDecay(Replicated):
    def update(self):
        for group in self.optimizer.param_groups:
            group["weight_decay"] = 0.0
        super().update()


class Forgetful(Replicated):
    def load(self, folder):
        super().load(folder)
        self.optimizer = trainers.make_optimizer([*self.model.parameters()], self.config)


class OtherBuffer(Replicated):
    def update(self):
        super().update()
        self.local.buffers["positions"].add_(1e-3)


class Backwards(Replicated):
    def output(self, inputs):
        return super().output(inputs).flip(0)


@pytest.mark.parametrize(
    ("trainer", "rung", "message"),
    [
        (
            OtherNorm,
            "gradient norm",
            "gradient norm, norm on rank 0: 2.0 x .* do not add their squares over the ranks$",
        ),
        (OtherBuffer, "parameters", "parameters, embedding.weight on rank 0: near one .* right and positions wrong"),
        (LocalLoss, "loss curve", "loss curve, loss on rank 1: .* report the mean over the targets of all ranks"),
        (WrongDecay, "AdamW", "AdamW, embedding.weight on rank 0: .* weight decay"),
        (Forgetful, "save and load", "save and load, .* on rank 0: .* loses the optimizer's state half-way ends up"),
        (Backwards, "output", "output on rank 0: .* in the order 6, 5, 4, 3, 2, 1, 0: put the shares together in rank"),
    ],
)
def test_each_rung_has_its_way_out(trainer, rung, message):
    with pytest.raises(NotEqual, match=message) as caught:
        climb(lambda config: trainer(Toy(), config))
    assert caught.value.rung == rung


def without_sync(config):
    """Every rank keeps the weights that it was born with."""
    trainer = Replicated(Toy(), config)
    torch.manual_seed(dist.get_rank())
    own = Toy()
    trainer.model.module.load_state_dict(own.state_dict())
    return trainer


def test_weights_that_differ_from_the_beginning_are_named():
    message = "output on rank 0: .* embedding.weight on rank 1 was not rank 0's before the first step: broadcast it"
    with pytest.raises(NotEqual, match=message):
        climb(without_sync)


class Thaws(Replicated):
    """Gives a frozen parameter a gradient, or changes it."""

    def __init__(self, config, gradient):
        super().__init__(Toy(frozen=True), config)
        self.gradient = gradient

    def compute_gradients(self, batch):
        loss = super().compute_gradients(batch)
        if self.gradient:
            bias = self.local.parameters["inner.bias"]
            bias.grad = torch.zeros_like(bias)
        return loss

    def update(self):
        super().update()
        if not self.gradient:
            self.local.parameters["inner.bias"].data.mul_(1 - 1e-15)


def test_frozen_parameters_have_no_gradient_and_do_not_change_by_a_bit():
    def frozen(config):
        return alone(config, frozen=True)

    with pytest.raises(NotEqual, match="gradients, inner.bias on rank 0: exists, but not on one device.* a frozen"):
        climb(lambda config: Thaws(config, gradient=True), frozen)
    message = (
        "parameters, inner.bias on rank 0: .* to the last bit; a frozen parameter has no gradient and never changes"
    )
    with pytest.raises(NotEqual, match=message):
        climb(lambda config: Thaws(config, gradient=False), frozen)


class Nudged(Replicated):
    """One rank's copy drifts by the last bit."""

    def update(self):
        super().update()
        if dist.get_rank() == 2:
            bias = self.local.parameters["inner.bias"].data
            bias[0] = torch.nextafter(bias[0], bias.new_tensor(9.0))


def test_copies_are_compared_bit_by_bit():
    message = (
        r"parameters, inner.bias on rank 2: not the first rank's copy to the last bit, deviation \d.*e-1[567]; "
        "all copies of a parameter are equal to the last bit; copies of one parameter .* else they drift apart"
    )
    with pytest.raises(NotEqual, match=message) as caught:
        climb(lambda config: Nudged(Toy(), config))
    assert caught.value.causes == ("replicas",) and caught.value.kind == "replica"


class OtherNames(Replicated):
    """Names of its own for other tensors."""

    def parameters(self):
        found = super().parameters()
        return {n.replace("inner", "hidden"): x * (1 + ("inner" in n)) for n, x in found.items()}


class OtherShape(Replicated):
    def output(self, inputs):
        return super().output(inputs)[:1]


def test_missing_names_and_other_shapes_are_said():
    with pytest.raises(NotEqual, match="parameters, inner.weight on rank 0: does not exist; "):
        climb(lambda config: OtherNames(Toy(), config))
    message = r"output on rank 0: shape \(1, 5, 16\), one device's is \(7, 5, 16\); "
    with pytest.raises(NotEqual, match=message):
        climb(lambda config: OtherShape(Toy(), config))
