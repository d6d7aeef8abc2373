"""Activations in files and in bf16: fewer bytes in memory, and what the gradients then are."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from course_lib.config import ModelConfig
from course_lib.gauges.allocated import allocated_bytes
from course_lib.models.decoder import Decoder
from course_lib.savers.checkpointing import checkpoint_layers
from course_lib.savers.stored import in_bf16, in_files

SMALL = ModelConfig(
    name="small", hidden_size=64, n_layers=3, n_heads=4, n_kv_heads=2, ffn_size=172, vocab_size=256, tied=False
)


def model_and_loss():
    torch.manual_seed(0)
    model = Decoder(SMALL)
    x, y = torch.randint(256, (2, 4, 128))
    return model, lambda: F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def kept_and_gradients(way):
    model, loss = model_and_loss()

    def forward():
        with way(list(model.parameters())):
            return loss()

    kept = allocated_bytes(forward)
    forward().backward()
    return kept, [p.grad for p in model.parameters()]


def test_in_files_and_in_bf16(tmp_path):
    everything, exact = kept_and_gradients(lambda weights: torch.enable_grad())
    on_disk, same = kept_and_gradients(lambda weights: in_files(tmp_path, weights))
    halves, near = kept_and_gradients(in_bf16)
    assert all(torch.equal(*pair) for pair in zip(exact, same, strict=True))
    assert not list(tmp_path.iterdir())
    assert on_disk < 0.1 * everything and 0.5 * everything < halves < 0.75 * everything
    off = [((a - b).norm() / a.norm()).item() for a, b in zip(exact, near, strict=True)]
    assert 1e-4 < max(off) < 3e-2


@pytest.mark.parametrize("group", [1, 2])
def test_inputs_of_layers_that_are_recomputed_lie_in_files(tmp_path, group):
    gradients = []
    for stored in ({}, {"stored": in_files(tmp_path)}):
        model, loss = model_and_loss()
        checkpoint_layers(model.layers, group=group, **stored)
        value = loss()
        assert len(list(tmp_path.iterdir())) == (-(-3 // group) if stored else 0)
        value.backward()
        del value
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True)) and not list(tmp_path.iterdir())
