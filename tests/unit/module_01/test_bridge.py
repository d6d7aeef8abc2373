"""Given the same weights, transformers' Llama, OLMo and GPT-2 and our decoder give the same logits."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, OlmoConfig, OlmoForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo.modeling_olmo import OlmoLayerNorm

from course_lib.config import ModelConfig
from course_lib.models.bridge import (
    from_transformers,
    to_transformers,
    weights_from_transformers,
    weights_to_transformers,
)
from course_lib.models.bridge_config import computed_config, transformers_model
from course_lib.models.decoder import Decoder
from tools.paths import ROOT

LLAMA = ModelConfig(
    name="transformers llama",
    hidden_size=24,
    n_layers=2,
    n_heads=6,
    n_kv_heads=2,
    ffn_size=40,
    vocab_size=50,
    tied=False,
    max_sequence=32,
)
OLMO = replace(LLAMA, name="transformers olmo", norm="layer_unweighted")
GPT2 = replace(
    LLAMA,
    name="transformers gpt2",
    n_kv_heads=6,
    tied=True,
    positions="learned",
    gated_ffn=False,
    norm="layer",
    biases=("qkv", "attention_output", "ffn"),
)
CONFIGS = {
    "Llama": LLAMA,
    "Llama, one kv head": replace(LLAMA, n_kv_heads=1),
    "Llama, wide heads": replace(LLAMA, head_dim=8),
    "Llama, tied": replace(LLAMA, n_kv_heads=6, tied=True),
    "Llama, other base and eps": replace(LLAMA, rotary_base=500_000.0, norm_eps=1e-2),
    "OLMo": OLMO,
    "OLMo, clipped, tied": replace(OLMO, clip_qkv=0.5, tied=True),
    "GPT-2": GPT2,
    "GPT-2, untied, other eps": replace(GPT2, tied=False, norm_eps=1e-2),
}
shapes = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
TOKENS = torch.randint(50, (3, 19), generator=torch.Generator().manual_seed(5))


def scatter(model, dtype):
    """Weights large enough that every part of the model matters, norms and biases included."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4 + (parameter.dim() == 1))
    return model.to(dtype)


def deviation(found, expected):
    assert found.dtype == expected.dtype and expected.std() > 0.5
    return ((found - expected).abs().max() / expected.abs().max()).item()


@pytest.fixture
def unrounded_norms(monkeypatch):
    """Theirs compute in float32 whatever the model's dtype; here they stay in float64."""
    weighted = lambda self, x: F.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)  # noqa: E731
    unweighted = lambda self, x: F.layer_norm(x, self.normalized_shape, eps=1e-5)  # noqa: E731
    monkeypatch.setattr(LlamaRMSNorm, "forward", weighted)
    monkeypatch.setattr(OlmoLayerNorm, "forward", unweighted)


@shapes
def test_our_weights_give_their_model_our_logits_in_float32(config):
    ours = scatter(Decoder(config), torch.float32)
    assert deviation(ours(TOKENS), to_transformers(ours)(TOKENS).logits) < 1e-5


@shapes
def test_our_weights_give_their_model_our_logits_in_float64(config, unrounded_norms):
    ours = scatter(Decoder(config), torch.float64)
    assert deviation(ours(TOKENS), to_transformers(ours)(TOKENS).logits) < 1e-12


@shapes
def test_their_weights_give_our_model_their_logits(config, unrounded_norms):
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        theirs = scatter(transformers_model(config), dtype)
        assert deviation(from_transformers(theirs)(TOKENS), theirs(TOKENS).logits) < tolerance


@pytest.mark.parametrize("name", ["Llama, one kv head", "OLMo", "GPT-2"])
def test_gradients_are_equal_too(name, unrounded_norms):
    ours = scatter(Decoder(CONFIGS[name]), torch.float64)
    theirs = to_transformers(ours)
    ours(TOKENS).square().mean().backward()
    theirs(TOKENS).logits.square().mean().backward()
    gradients = {name: p.grad for name, p in theirs.named_parameters()}
    found = weights_from_transformers(gradients, ours.config)
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, found[name], rtol=1e-10, atol=1e-12)


@shapes
def test_there_and_back_changes_nothing(config):
    ours = scatter(Decoder(config), torch.float32)
    back = from_transformers(to_transformers(ours))
    assert back.config == config
    assert {name: p.shape for name, p in back.named_parameters()} == {n: p.shape for n, p in ours.named_parameters()}
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, back.state_dict()[name])
        assert tensor.data_ptr() != back.state_dict()[name].data_ptr()


def test_a_tied_head_stays_tied():
    theirs = to_transformers(scatter(Decoder(CONFIGS["Llama, tied"]), torch.float32))
    assert theirs.lm_head.weight is theirs.model.embed_tokens.weight
    ours = from_transformers(theirs)
    assert ours.head.weight is ours.embedding.weight


def test_bfloat16_leaves_their_rotary_angles_alone():
    theirs = to_transformers(scatter(Decoder(LLAMA), torch.bfloat16))
    assert {parameter.dtype for parameter in theirs.parameters()} == {torch.bfloat16}
    assert {buffer.dtype for buffer in theirs.buffers()} == {torch.float32}
    assert from_transformers(theirs).embedding.weight.dtype == torch.bfloat16


def test_a_tied_head_may_be_left_out_of_a_file():
    config = CONFIGS["Llama, tied"]
    weights = transformers_model(config).state_dict()
    without = {name: tensor for name, tensor in weights.items() if name != "lm_head.weight"}
    assert weights_from_transformers(weights, config).keys() == weights_from_transformers(without, config).keys()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda weights: weights.pop("norm.weight"), "missing, norm.weight"),
        (lambda weights: weights.update(extra=weights["norm.weight"]), "too many, extra"),
    ],
)
def test_our_weights_must_be_complete(change, what):
    weights = Decoder(LLAMA).state_dict()
    change(weights)
    message = rf"^weights_to_transformers: 1 weights {what} among them; transformers llama has 21 weights .*; give the"
    with pytest.raises(ValueError, match=message):
        weights_to_transformers(weights, LLAMA)


def test_their_weights_must_be_complete():
    weights = transformers_model(LLAMA).state_dict()
    norms = [name for name in weights if "layernorm" in name]
    message = r"^weights_from_transformers: 4 weights missing, model.layers.0.input_layernorm.weight among them; "
    with pytest.raises(ValueError, match=message):
        weights_from_transformers({name: w for name, w in weights.items() if name not in norms}, LLAMA)
    with pytest.raises(ValueError, match=r"^weights_from_transformers: 4 weights too many, model.layers.0.input_l"):
        weights_from_transformers({name: weights[name] for name in weights if name != "model.norm.weight"}, OLMO)


@pytest.mark.parametrize(
    "change",
    [
        {"biases": ("head",)},
        {"norm": "layer"},
        {"norm_eps": 1e-6, "norm": "layer_unweighted"},
        {"clip_qkv": 8.0},
        {"head_dim": 8, "norm": "layer_unweighted"},
    ],
)
def test_a_shape_that_none_of_theirs_has_is_refused(change):
    with pytest.raises(ValueError, match=r"^bridge: norm=.*; the bridge knows the shapes of .*; change what none"):
        to_transformers(Decoder(replace(LLAMA, **change)))


@pytest.mark.parametrize("change", [{"window": 8, "windowed_layers": 1}, {"uncomputed": ("rope_type='llama3'",)}])
def test_what_our_decoder_does_not_compute_has_no_model_of_theirs(change):
    with pytest.raises(ValueError, match=r"^bridge: norm=.*, window=.*, uncomputed=.*; the bridge knows"):
        transformers_model(replace(LLAMA, **change))


SMALL = {"hidden_size": 24, "num_attention_heads": 6, "num_hidden_layers": 1, "vocab_size": 50}


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        (
            GPT2Config(activation_function="gelu"),
            "bridge: gpt2 with activation_function='gelu'; our decoder computes without that; choose an",
        ),
        (GPT2Config(scale_attn_by_inverse_layer_idx=True), "bridge: gpt2 with scale_attn_by_inverse_layer_idx=True; "),
        (
            LlamaConfig(**SMALL, attention_bias=True),
            "bridge: norm='rms', .*, biases=\\('qkv', 'attention_output'\\), .*; the bridge knows the sh",
        ),
        (
            LlamaConfig(**SMALL, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}),
            "bridge: llama with rope_type='linear'; our decoder computes without that; choose another model$",
        ),
    ],
)
def test_a_setting_that_our_decoder_lacks_is_refused(theirs, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        computed_config(theirs)


def test_another_kind_of_model_is_refused():
    class Other:
        model_type = "mamba"

    with pytest.raises(ValueError, match=r"^bridge: model_type='mamba'; .*; give a model of type llama, olmo, gpt2$"):
        computed_config(Other())


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (LlamaForCausalLM, LlamaConfig(**SMALL)),
        (OlmoForCausalLM, OlmoConfig(**SMALL)),
        (GPT2LMHeadModel, GPT2Config(n_embd=24, n_head=6, n_layer=1, vocab_size=50)),
    ],
)
def test_models_made_with_their_own_defaults_come_over(model, settings):
    theirs = model(settings).eval()
    torch.testing.assert_close(from_transformers(theirs)(TOKENS), theirs(TOKENS).logits, rtol=1e-4, atol=1e-6)


def test_transformers_is_not_imported_before_it_is_used():
    code = "import sys, course_lib.models.bridge; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
