"""The decoder against its formula, against an independent implementation, and against what it must not see."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from course_lib.config import ModelConfig
from course_lib.costs.parameters import model_parameters
from course_lib.models.decoder import NORM_EPS, ROTARY_BASE, Decoder, rotary_angles, rotate
from course_lib.training.step import compute_gradients, next_token_loss, sgd_update, state_bytes

SMALL = ModelConfig(
    name="small", hidden_size=24, n_layers=2, n_heads=6, n_kv_heads=2, ffn_size=40, vocab_size=50, tied=False
)
NAMES = {  # ours -> theirs
    "embedding.": "model.embed_tokens.",
    "layers.": "model.layers.",
    "attention_norm.": "input_layernorm.",
    "attention.": "self_attn.",
    "ffn_norm.": "post_attention_layernorm.",
    "ffn.": "mlp.",
    "head.": "lm_head.",
}


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


def theirs_of(name):
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs) if ours in name else name
    return "model.norm.weight" if name == "norm.weight" else name


@pytest.mark.parametrize("n_kv_heads", [1, 2, 6])
def test_logits_and_gradients_equal_transformers_llama(n_kv_heads):
    config = replace(SMALL, n_kv_heads=n_kv_heads)
    ours = decoder(config)
    theirs = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=config.hidden_size,
            intermediate_size=config.ffn_size,
            num_hidden_layers=config.n_layers,
            num_attention_heads=config.n_heads,
            num_key_value_heads=config.n_kv_heads,
            vocab_size=config.vocab_size,
            rms_norm_eps=NORM_EPS,
            rope_parameters={"rope_type": "default", "rope_theta": ROTARY_BASE},
            tie_word_embeddings=False,
        )
    ).double()
    theirs.load_state_dict({theirs_of(name): value for name, value in ours.state_dict().items()})
    x = tokens(config)
    expected, found = theirs(x).logits, ours(x)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)  # both turn by float32 angles
    expected.square().mean().backward()
    found.square().mean().backward()
    gradients = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[theirs_of(name)].grad, rtol=1e-5, atol=1e-9)


def test_no_position_sees_a_later_one():
    model, x = decoder(), tokens()
    later = x.clone()
    later[:, 6:] = (later[:, 6:] + 1) % SMALL.vocab_size
    before, after = model(x), model(later)
    assert torch.equal(before[:, :6], after[:, :6])
    assert not torch.equal(before[:, 6:], after[:, 6:])


def test_a_tied_head_is_the_embedding():
    model = decoder(replace(SMALL, tied=True))
    assert model.head.weight is model.embedding.weight
    assert not decoder().head.weight.equal(decoder().embedding.weight)


def test_heads_follow_from_the_projections_width():
    """Half of the heads, cut out of the whole layer, give that half's part of the output."""
    whole = decoder(replace(SMALL, n_kv_heads=2)).layers[0].attention
    x, angles = torch.randn(2, 5, 24, dtype=torch.float64), rotary_angles(5, SMALL.head_size, torch.device("cpu"))
    expected = whole(x, angles)
    partial = []
    for half in range(2):
        part = decoder().layers[0].attention
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


def test_bfloat16_stays_bfloat16():
    assert decoder(dtype=torch.bfloat16)(tokens()).dtype == torch.bfloat16


def test_odd_heads_are_refused():
    with pytest.raises(
        ValueError, match=r"^Decoder: head_size=3; rotary positions turn pairs of numbers; choose n_heads"
    ):
        Decoder(replace(SMALL, n_heads=8, n_kv_heads=2))


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
    assert state_bytes(model) == weights
    compute_gradients(model, (tokens(), tokens()))
    assert state_bytes(model) == 2 * weights
