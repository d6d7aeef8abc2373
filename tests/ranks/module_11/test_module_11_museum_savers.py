"""Every bug of memory savers passes for training by its loss curve, and the ladder tells them apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest
import torch
from museum_data import BATCHES, LETTERS, tight
from torch import nn

from course_lib.config import ModelConfig
from course_lib.models.decoder import Decoder
from course_lib.parallel.table.mesh import make_mesh
from course_lib.savers.adapted import merge_adapters
from course_lib.savers.lora import LoRALinear, add_lora
from course_lib.savers.loss_scaler import LossScaler
from course_lib.savers.quantised_linear import quantise
from course_lib.training.recompute_technique import recompute
from course_lib.training.scaling_technique import scaled_loss
from course_lib.training.sharding import fully_shard
from course_lib.training.techniques import replicate
from course_lib.training.trainer import Trainer
from course_lib.verify import RUNGS, NotEqual, assert_parallel_equals
from course_lib.verify.museum import SAVER_BUGS, curve_alone, curve_on_ranks, loss_curve_looks_right

MODEL = ModelConfig(
    name="writer", hidden_size=16, n_layers=2, n_heads=2, n_kv_heads=1, ffn_size=32, vocab_size=LETTERS, tied=False
)
STEPS = 40


def dropping():
    model = Decoder(MODEL)
    for layer in model.layers:
        layer.ffn = nn.Sequential(layer.ffn, nn.Dropout(0.2))
    return model


def merged():
    """Adapters that stand for trained ones, beside codes, and no longer apart."""
    model = add_lora(quantise(Decoder(MODEL)), 4)
    for module in model.modules():
        if isinstance(module, LoRALinear):
            nn.init.normal_(module.B, std=0.05)
    return merge_adapters(model).requires_grad_(True)


class Overflow:
    """In the second step one number of those that the first rank holds is infinite, until the scaler has seen it."""

    def __init__(self) -> None:
        self.steps, self.planted = count(1), list[tuple[torch.Tensor, float]]()

    def techniques(self):
        return self.around(self.plant), scaled_loss(LossScaler(2.0**10)), self.around(self.put_back)

    def around(self, work):
        """A technique: what happens when the gradients are there."""

        def apply(setup):
            ends, before = setup.engine.ends, setup.engine.ends.around

            @contextmanager
            def around() -> Iterator[None]:
                with before():
                    yield
                work(setup)

            ends.around = around

        return apply

    def plant(self, setup) -> None:
        if next(self.steps) == 2 and setup.local.rank("dp") == 0:
            one = next(one for one in setup.local.gradients().values() if one.numel()).view(-1)
            self.planted.append((one, one[0].item() / 2.0**10))
            one[0] = torch.inf

    def put_back(self, _) -> None:
        """The ladder compares norms, too, and an infinite one with nothing."""
        for one, number in self.planted:
            one[0] = number
        self.planted.clear()


MAKERS = {  # by bug: ranks, one device, and the ranks' trainer
    "fresh_masks": (
        1,  # ranks would draw masks of their own
        lambda config: Trainer(dropping(), tight(config)),
        lambda config: Trainer(dropping(), tight(config), mesh=make_mesh(dp=1), apply=[recompute()]),
    ),
    "scaler_not_shared": (
        2,
        lambda config: Trainer(Decoder(MODEL), config, apply=Overflow().techniques()),
        lambda config: Trainer(
            Decoder(MODEL), config, mesh=make_mesh(dp=2), apply=[fully_shard(), *Overflow().techniques()]
        ),
    ),
    "merged_before_codes": (
        2,
        lambda config: Trainer(merged(), tight(config)),
        lambda config: Trainer(merged(), tight(config), mesh=make_mesh(dp=2), apply=[replicate()]),
    ),
}


@pytest.fixture(params=SAVER_BUGS.values(), ids=lambda bug: bug.name)
def bug(request):
    return request.param


def test_without_a_bug_the_same_training_climbs(bug):
    ranks, alone, sound = MAKERS[bug.name]
    begins_anew = bug.name != "merged_before_codes"  # random numbers, and when a number overflows, are in no checkpoint
    rungs = RUNGS[:-1] if begins_anew else RUNGS
    assert_parallel_equals(alone, sound, BATCHES.batch, world_size=ranks, rungs=rungs)


def test_it_is_caught_on_its_own_rung(bug):
    ranks, alone, sound = MAKERS[bug.name]
    with pytest.raises(NotEqual) as caught:
        assert_parallel_equals(alone, bug.planted(sound), BATCHES.batch, world_size=ranks)
    assert caught.value.rung == bug.first_rung


def test_its_loss_curve_looks_right(bug):
    ranks, alone, sound = MAKERS[bug.name]
    curve = curve_on_ranks(bug.planted(sound), BATCHES.batch, world_size=ranks, steps=STEPS)
    assert loss_curve_looks_right(curve.losses, curve_alone(alone, BATCHES.batch, STEPS).losses)


def test_no_two_show_on_the_same_rung():
    assert len({bug.first_rung for bug in SAVER_BUGS.values()}) == len(SAVER_BUGS) == len(MAKERS)
