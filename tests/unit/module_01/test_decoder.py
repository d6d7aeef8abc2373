"""The decoder against its formula and against what it must not see; `test_bridge.py` holds it against transformers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from course_lib.config import ModelConfig, load_model, model_names
from course_lib.costs.model.parameters import model_parameters
from course_lib.models.decoder import Decoder, rotary_angles, rotate
from course_lib.training.step import compute_gradients, next_token_loss, sgd_update, state_bytes

SMALL = ModelConfig(
    name="small", hidden_size=24, n_layers=2, n_heads=6, n_kv_heads=2, ffn_size=40, vocab_size=50, tied=False
)
OLMO = replace(SMALL, name="small OLMo", norm="layer_unweighted")
GPT = replace(
    SMALL,
    name="small GPT",
    n_kv_heads=6,
    max_sequence=11,
    positions="learned",
    gated_ffn=False,
    norm="layer",
    biases=("qkv", "attention_output", "ffn", "head"),
)
shapes = pytest.mark.parametrize("config", [SMALL, OLMO, GPT], ids=lambda config: config.name)
PRESETS = {name: load_model(name) for name in model_names()}
DENSE = [name for name, c in PRESETS.items() if (c.n_experts, c.norms_per_layer, c.qk_norm) == (1, 2, "none")]


def decoder(config=SMALL, seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return Decoder(config).to(dtype)


def tokens(config=SMALL, batch=3, sequence=11):
    return torch.randint(config.vocab_size, (batch, sequence), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 6])
def test_parameters_are_as_many_as_the_formula_says(tied, n_kv_heads):
    config = replace(SMALL, tied=tied, n_kv_heads=n_kv_heads)
    assert sum(parameter.numel() for parameter in Decoder(config).parameters()) == model_parameters(config)


@pytest.mark.parametrize("name", DENSE)
def test_every_dense_preset_is_built_with_the_parameters_of_the_formula(name):
    config = load_model(name)
    with torch.device("meta"):
        model = Decoder(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == model_parameters(config)


def test_all_three_shapes_are_among_the_dense_presets():
    assert {load_model(name).norm for name in DENSE} == {"rms", "layer", "layer_unweighted"}
    assert {load_model(name).biases for name in DENSE} > {(), ("qkv", "attention_output", "ffn")}


def test_weights_are_drawn_biases_are_zero_and_norms_one():
    for name, parameter in decoder(GPT).named_parameters():
        if parameter.dim() > 1:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.1)
        else:
            assert torch.equal(parameter, torch.full_like(parameter, float("norm.weight" in name)))


@shapes
def test_no_position_sees_a_later_one(config):
    model, x = decoder(config), tokens()
    later = x.clone()
    later[:, 6:] = (later[:, 6:] + 1) % SMALL.vocab_size
    before, after = model(x), model(later)
    assert torch.equal(before[:, :6], after[:, :6])
    assert not torch.equal(before[:, 6:], after[:, 6:])


def test_a_tied_head_is_the_embedding():
    model = decoder(replace(SMALL, tied=True))
    assert model.head.weight is model.embedding.weight
    assert not decoder().head.weight.equal(decoder().embedding.weight)


@shapes
def test_the_order_of_the_tokens_matters(config):
    model, x = decoder(config), tokens()
    swapped = x[:, [1, 0, *range(2, 11)]]
    assert not torch.allclose(model(x)[:, -1], model(swapped)[:, -1], rtol=1e-6)


@shapes
def test_heads_follow_from_the_projections_width(config):
    """Half of the heads, cut out of the whole layer, give that half's part of the output."""
    config = replace(config, biases=())
    whole = decoder(config).layers[0].attention
    angles = rotary_angles(5, SMALL.head_size, torch.device("cpu")) if config.positions == "rotary" else None
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    expected = whole(x, angles)
    partial = []
    for half in range(2):
        part = decoder(config).layers[0].attention
        for name in ("q_proj", "k_proj", "v_proj"):
            getattr(part, name).weight = torch.nn.Parameter(getattr(whole, name).weight.chunk(2)[half])
        part.o_proj.weight = torch.nn.Parameter(whole.o_proj.weight.chunk(2, dim=1)[half])
        partial.append(part(x, angles))
    torch.testing.assert_close(partial[0] + partial[1], expected)


def test_rotation_keeps_lengths_and_depends_on_distance_alone():
    angles = rotary_angles(12, 8, torch.device("cpu")).double()
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64).expand(2, 1, 1, 12, 8)
    turned_q, turned_k = rotate(q, angles), rotate(k, angles)
    torch.testing.assert_close(turned_q.norm(dim=-1), q.norm(dim=-1))
    scores = (turned_q @ turned_k.transpose(-1, -2))[0, 0]
    torch.testing.assert_close(scores[5, 2], scores[9, 6], rtol=1e-5, atol=1e-5)
    assert not torch.isclose(scores[5, 2], scores[5, 3])


@shapes
def test_bfloat16_stays_bfloat16(config):
    assert decoder(config, dtype=torch.bfloat16)(tokens()).dtype == torch.bfloat16


def test_queries_keys_and_values_are_clipped():
    x = tokens()
    unclipped, far, near = (decoder(replace(SMALL, clip_qkv=clip))(x) for clip in (None, 1e3, 1e-2))
    assert torch.equal(unclipped, far)
    assert not torch.allclose(unclipped, near, rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_heads": 8}, r"^Decoder: head_size=3; rotary positions turn pairs of numbers; choose n_heads"),
        ({"n_experts": 4}, r"^Decoder: n_experts=4; this decoder has one feed-forward block .*; give n_experts=1$"),
        ({"norms_per_layer": 4}, r"^Decoder: norms_per_layer=4; .* a norm before each .*; give norms_per_layer=2$"),
    ],
)
def test_what_is_not_built_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Decoder(replace(SMALL, **change))


def test_odd_heads_may_have_learned_positions():
    assert Decoder(replace(GPT, n_heads=8, n_kv_heads=8))(tokens()).shape == (3, 11, 50)


def test_a_sequence_longer_than_the_table_of_positions_is_refused():
    with pytest.raises(ValueError, match=r"^ModelConfig 'small GPT': sequence=12; .*; give sequence <= 11$"):
        decoder(GPT)(tokens(sequence=12))
    assert decoder()(tokens(sequence=12)).shape == (3, 12, 50)


def test_a_larger_rotary_base_turns_slower():
    cpu = torch.device("cpu")
    slow, fast = (rotary_angles(9, 8, cpu, base) for base in (500_000.0, 10_000.0))
    assert torch.equal(slow[:, 0], fast[:, 0])
    assert bool((slow[1:, 1:] < fast[1:, 1:]).all())
    assert not torch.allclose(decoder()(tokens()), decoder(replace(SMALL, rotary_base=5e5))(tokens()), rtol=1e-6)


def test_our_sgd_steps_are_pytorchs_and_learn():
    ours, theirs = decoder(), decoder()
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    batch = (tokens(), tokens().roll(-1, dims=1))
    losses = []
    for _ in range(3):
        losses.append(compute_gradients(ours, batch))
        sgd_update(ours, 0.1)
        optimizer.zero_grad()
        next_token_loss(theirs, batch).backward()
        optimizer.step()
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    assert losses == sorted(losses, reverse=True) and losses[0] > losses[2]


def test_state_bytes_count_what_exists_and_shared_memory_once():
    model = decoder(replace(SMALL, tied=True))
    weights = 8 * model_parameters(replace(SMALL, tied=True))
    assert state_bytes(model.parameters()) == weights
    compute_gradients(model, (tokens(), tokens()))
    assert state_bytes(model.parameters()) == 2 * weights
