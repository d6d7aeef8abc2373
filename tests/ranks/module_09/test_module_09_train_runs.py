"""Training runs that share sequences and experts: the losses of one device, also when a run goes on elsewhere."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from sequence_models import alone as one_device
from sequence_models import batches, spread
from test_train_resume import losses, run, run_stopped

from course_lib.cli import train_run
from course_lib.verify.outputs import compare_outputs
from tests.ranks.module_03.test_train_command import weights

TEXT = bytes(range(32, 127)) * 20
ASKED = ["precision=fp64", "model=tiny_mixtral", "batch=4", "sequence=18", "optimizer=adamw", "max_norm=1.0"]
LAYOUTS = {
    "cp": ["cp=3", "context=ring"],
    "cp, weights shared": ["cp=2", "dp=2", "context=ulysses", "zero_stage=3"],
    "ep": ["dp=3", "ep=3"],  # of 8 experts two ranks have three
    "ep, states shared": ["dp=4", "ep=2", "zero_stage=1"],
    "all five": ["pp=2", "dp=2", "ep=2", "cp=2"],
    "cp x ep x tp": ["dp=2", "ep=2", "cp=2", "tp=2", "order=contiguous", "zero_stage=3", "recompute=layers"],
}


@pytest.fixture(autouse=True)
def short_text(monkeypatch):
    monkeypatch.setattr(train_run, "load_text", lambda: TEXT)
    monkeypatch.delenv("RANK", raising=False)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The losses and weights of one device."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_run, "load_text", lambda: TEXT)
        assert run(*ASKED, f"out={folder}") == 0
    return losses(folder), weights(folder / "step-5")


@pytest.mark.parametrize("layout", ["cp", "cp x ep x tp"])  # on the others runs begin or go on below
def test_every_layout_has_the_losses_of_one_device(tmp_path, alone, layout):
    assert run(*ASKED, *LAYOUTS[layout], f"out={tmp_path}/run") == 0
    assert losses(tmp_path / "run") == pytest.approx(alone[0], rel=1e-11)


@pytest.mark.parametrize("then", ["cp, weights shared", "ep", "all five"])
def test_a_run_goes_on_at_another_layout(tmp_path, monkeypatch, alone, then):
    out = f"out={tmp_path}/run"
    assert run_stopped(monkeypatch, *ASKED, *LAYOUTS["ep, states shared"], "checkpoint_every=2", out) == 1
    assert run(*ASKED, *LAYOUTS[then], out) == 0
    found = weights(tmp_path / "run" / "step-5")
    assert losses(tmp_path / "run") == pytest.approx(alone[0], rel=1e-11)
    assert found.keys() == alone[1].keys()
    for name, want in alone[1].items():
        torch.testing.assert_close(found[name], want, rtol=1e-9, atol=1e-11)


def test_the_balance_loss_is_the_same_on_every_layout(tmp_path):
    asked = [*ASKED, "balance=0.1"]
    assert run(*asked, f"out={tmp_path}/whole") == 0
    assert run(*asked, "dp=2", "ep=2", "cp=2", f"out={tmp_path}/shared") == 0
    assert losses(tmp_path / "shared") == pytest.approx(losses(tmp_path / "whole"), rel=1e-11)


@pytest.mark.parametrize("order", ["zigzag", "contiguous"])
def test_every_module_gives_what_one_device_s_gives(order):
    of_experts = {"shape": "deepseek"}
    many = partial(spread, shape="deepseek", method="ring", order=order, spread_experts=True, data="ddp", cp=2, ep=2)
    made = compare_outputs(partial(one_device, **of_experts), many, batches(rows=8).batch(0), world_size=4)
    found = {one.name: one for one in made}
    assert max(one.deviation for one in found.values()) <= 1e-11
    assert {found[name].part for name in ("embedding", "layers.1.ffn", "head")} == {"positions"}
    assert "layers.1.ffn.router" not in found  # its tokens are in no sequence


def test_the_first_module_whose_positions_are_wrong_is_named():
    many = partial(rolled, method="all_gather", cp=2)
    made = compare_outputs(one_device, many, batches(rows=2).batch(0), world_size=2)
    assert next(one.name for one in made if one.deviation > 1e-11) == "layers.1.ffn_norm"


def rolled(config, **case):
    """A bug: a block reads other positions than its own."""
    trainer = spread(config, **case)
    trainer.model.get_submodule("layers.1.ffn_norm").register_forward_hook(lambda module, _, y: y.roll(1, 1))
    return trainer
