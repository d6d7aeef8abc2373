"""Checkpoints in pieces by plain PyTorch, and ours read by it: `get_state_dict`, `dcp.save` and `dcp.load` alone."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed.checkpoint as dcp
from sharded_models import LLAMA, TOKENS
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard as torch_shard

from course_lib.config import TrainConfig
from course_lib.models.decoder import Decoder
from course_lib.models.mlp import MLP
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import run_ranks
from course_lib.training.sharded_checkpoint import load_pieces, save_pieces
from course_lib.training.sharding import fully_shard
from course_lib.training.step import next_token_loss
from course_lib.training.trainer import Trainer

TIED = replace(LLAMA, tied=True)
ADAMW = TrainConfig(optimizer="adamw", learning_rate=0.01)
THEIRS = {"lr": 0.02, "weight_decay": 0.3, "eps": 1e-7}


def stepped(model, optimizer, step):
    """What plain PyTorch makes of a batch that all ranks have; the weights, whole."""
    next_token_loss(model, TOKENS.batch(step)).backward()
    optimizer.step()
    optimizer.zero_grad()
    return whole(model)


def whole(model):
    return {name: x.full_tensor().detach() for name, x in model.named_parameters()}


def handed_over(folder):
    """PyTorch trains and saves, ours goes on and saves, PyTorch goes on; the weights of both after each."""
    torch.manual_seed(0)
    model = Decoder(TIED).double()
    for layer in model.layers:
        torch_shard(layer, mesh=init_device_mesh("cpu", (2,)))
    torch_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(model.parameters(), **THEIRS)
    weights = [stepped(model, optimizer, 0)]
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.save(state, checkpoint_id=folder / "theirs")
    with torch.device("meta"):
        empty = Decoder(TIED).double()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        init = partial(load_pieces, folder=folder / "theirs")
        trainer = Trainer(empty, ADAMW, mesh=make_mesh(dp=2), apply=(fully_shard(),), init=init)
    ours = [trainer.parameters()]
    for step in (1, 2):
        trainer.step(TOKENS.batch(step))
        ours.append(trainer.parameters())
        save_pieces(trainer, folder / f"ours-{step}")
    weights.append(stepped(model, optimizer, 1))
    dcp.load(state, checkpoint_id=folder / "ours-2")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    weights.append(whole(model))
    trainer.step(TOKENS.batch(3))
    return weights + [stepped(model, optimizer, 3)], ours + [trainer.parameters()], [str(one.message) for one in said]


def test_a_state_goes_from_plain_pytorch_to_ours_and_back(tmp_path):
    (theirs, ours, said), (_, _, said_by_second) = run_ranks(handed_over, 2, tmp_path)
    unproven = f"load_pieces: {tmp_path / 'theirs'} has no checksums.json: nothing proves its files whole"
    assert unproven in said and unproven not in said_by_second
    for point, (by_them, by_us) in enumerate(zip(theirs, ours, strict=True)):
        for name, weight in by_us.items():
            assert point in (1, 3) or torch.equal(by_them[name], weight)
            torch.testing.assert_close(by_them[name], weight, rtol=1e-9, atol=1e-12)
    alone = Trainer(Decoder(TIED).double(), ADAMW)
    with pytest.warns(UserWarning, match="nothing proves its files whole"):
        load_pieces(alone, tmp_path / "theirs")
    assert {name: alone.options[name] for name in THEIRS} == THEIRS
    alone.step(TOKENS.batch(1))
    for name, weight in alone.parameters().items():
        torch.testing.assert_close(weight, ours[1][name], rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_cannot_be_taken_over_is_refused(tmp_path):
    model = MLP()
    one, two = torch.optim.AdamW(model.parameters()), torch.optim.AdamW([{"params": [p]} for p in model.parameters()])
    for x in model.parameters():
        x.grad = torch.ones_like(x)
    for name, optimizer in (("numbered", one), ("groups", two)):
        optimizer.step()
        state = optimizer.state_dict() if name == "numbered" else get_state_dict(model, optimizer)[1]
        dcp.save({"model": model.state_dict(), "optimizer": state}, checkpoint_id=tmp_path / name, no_dist=True)
    dcp.save({"model": model.state_dict()}, checkpoint_id=tmp_path / "model", no_dist=True)
    load_pieces(trainer := Trainer(MLP(), ADAMW), tmp_path / "model")  # its optimizer begins
    assert all(torch.equal(x, trainer.parameters()[name]) for name, x in model.named_parameters())
    (tmp_path / "model" / ".metadata").write_bytes(b"no table")
    for name, said in (
        ("numbered", "optimizer.state.0; an optimizer's states are named after the trained parameters; save what "),
        ("groups", f"{len(two.param_groups)} groups of parameters; here all have one learning rate and one weight "),
        (
            "model",
            f"{tmp_path}/model/.metadata; it cannot be read (UnpicklingError: invalid load key, 'n'.); take another ",
        ),
    ):
        with pytest.raises(ValueError) as error:
            load_pieces(Trainer(MLP(), ADAMW), tmp_path / name)
        assert str(error.value).startswith(f"load_pieces: {said}")
