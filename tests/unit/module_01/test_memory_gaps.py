"""The published formulas beside real tensors: by how much each is off, and that the exact column is measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from course_lib.config import LLAMA_3_1_8B, ModelConfig, load_model
from course_lib.costs import Gap, find_convention, model_parameters, published_gaps, state_bytes
from course_lib.gauges.allocated import saved_bytes
from course_lib.models.decoder import Decoder, rotary_angles
from course_lib.savers.checkpointing import checkpoint_layers

SMALL = ModelConfig(
    name="small", hidden_size=256, n_layers=4, n_heads=8, n_kv_heads=2, ffn_size=704, vocab_size=1000, tied=False
)
BATCH, SEQUENCE = 2, 64
COUNTS = (
    "parameters",
    "states",
    "activations of a layer",
    "activations of a recomputed layer",
    "activations of all",
)


def gaps(model=SMALL, *, batch=BATCH, sequence=SEQUENCE):
    return published_gaps(model, batch=batch, sequence=sequence)


def exact(counts, model=SMALL):
    """The one exact value of all rows that count the same."""
    (value,) = {gap.exact for gap in gaps(model) if gap.counts == counts}
    return value


def off(model=SMALL, **sizes):
    """Per cent, by what is counted and the first word of the name."""
    return {(gap.counts, gap.name): round(100 * gap.off, 1) for gap in gaps(model, **sizes)}


def decoder(model=SMALL):
    torch.manual_seed(0)
    return Decoder(model).bfloat16()


def test_every_row_says_what_it_counts_and_why_it_is_off():
    rows = gaps()
    assert {gap.counts for gap in rows} == set(COUNTS)
    assert len({(gap.counts, gap.name) for gap in rows}) == len(rows)
    assert all(gap.because and "\n" not in gap.because and gap.unit in ("parameters", "bytes") for gap in rows)
    assert Gap(name="", counts="", unit="bytes", formula=3.0, exact=4, because="").off == -0.25


@pytest.mark.parametrize("tied", [False, True])
def test_the_exact_parameters_and_states_are_those_of_real_tensors(tied):
    model = replace(SMALL, tied=tied)
    weights = list(decoder(model).parameters())
    assert exact("parameters", model) == sum(p.numel() for p in weights)
    fp32 = [torch.zeros(p.shape) for p in weights]  # the copy, and each of the two moments
    tensors = [*weights, *(torch.zeros_like(p) for p in weights), *fp32 * 3]
    assert exact("states", model) == sum(x.nbytes for x in tensors)


def test_the_exact_activations_are_those_of_real_tensors():
    model = decoder()
    x = torch.randn(BATCH, SEQUENCE, SMALL.hidden_size, dtype=torch.bfloat16)
    angles = rotary_angles(SEQUENCE, SMALL.head_size, torch.device("cpu"))
    layer = model.layers[0]
    assert exact("activations of a layer") == saved_bytes(layer, lambda: layer(x.requires_grad_(), angles))
    tokens, targets = torch.randint(1000, (2, BATCH, SEQUENCE))
    tokens, targets = tokens.clone(), targets.clone()
    found = saved_bytes(model, lambda: F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()))
    assert exact("activations of all") == found - 2  # cross-entropy's divisor
    checkpoint_layers(model.layers)
    kept = saved_bytes(model, lambda: model.layers[0](x, angles))
    assert exact("activations of a recomputed layer") == kept - angles.nbytes


def test_how_far_off_they_are_on_the_measured_model():
    assert list(off().values()) == [10.6, 3.0, -0.1, -12.5, -50, 12.4, -7.7, -28.7, -31.8, 0, -63.7, -24.9, -18.9]


def test_how_far_off_they_are_on_llama_8b():
    found = list(off(LLAMA_3_1_8B, batch=1, sequence=4096).values())
    assert found == [-6.5, -13.0, 0, -12.5, -50, 12.5, 264.1, -36.2, -30.6, 0, 40.5, -31.5, -15.8]


def test_layers_with_experts_are_refused():
    with pytest.raises(ValueError, match=r"^layer_activations: .*; the tensors are those of one block, and experts"):
        gaps(load_model("deepseek_v3"))


def test_each_rank_has_its_own_share_of_what_does_not_divide():
    zero, parameters = find_convention("zero"), model_parameters(SMALL) + 2
    given = {"zero_stage": 3, "shards": 4}
    found = [state_bytes(parameters, zero, **given, rank=rank) for rank in range(4)]
    assert found[0] == found[1] == state_bytes(parameters, zero, **given)
    assert found[0].total - found[2].total == 16
    assert sum(states.total for states in found) == 16 * parameters


@pytest.mark.parametrize("rank", [-1, 4])
def test_a_rank_that_is_not_there_is_refused(rank):
    rule = rf"^state_bytes: rank={rank}, shards=4; ranks count from 0; choose rank in 0..3$"
    with pytest.raises(ValueError, match=rule):
        state_bytes(8, find_convention("zero"), zero_stage=1, shards=4, rank=rank)
