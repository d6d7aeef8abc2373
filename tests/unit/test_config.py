"""A model's shape is checked when it is made."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from course_lib.config import LLAMA_3_1_8B
from course_lib.config.model import LatentAttention


def test_derived_sizes():
    assert LLAMA_3_1_8B.head_size == 128
    assert LLAMA_3_1_8B.kv_size == 1024


def test_a_shape_cannot_be_changed_in_place():
    with pytest.raises(FrozenInstanceError):
        LLAMA_3_1_8B.n_layers = 2  # type: ignore[misc]


@pytest.mark.parametrize("field", ["hidden_size", "n_layers", "n_heads", "n_kv_heads", "ffn_size", "vocab_size"])
def test_sizes_are_positive(field):
    with pytest.raises(ValueError, match=rf"^ModelConfig 'Llama 3.1 8B': {field}=0; sizes are positive; give {field}"):
        replace(LLAMA_3_1_8B, **{field: 0})


def test_heads_divide_the_hidden_size():
    # GPT-3 13B as it is often printed: 5140 does not divide by 40.
    with pytest.raises(
        ValueError, match=r"n_heads=40; n_heads divides hidden_size=5140; choose n_heads in \[1, 2, 4, "
    ):
        replace(LLAMA_3_1_8B, hidden_size=5140, n_heads=40)


def test_kv_heads_divide_the_heads():
    with pytest.raises(ValueError, match=r"n_kv_heads=5; n_kv_heads divides n_heads=32; choose n_kv_heads in \[1, 2,"):
        replace(LLAMA_3_1_8B, n_kv_heads=5)


@pytest.mark.parametrize("field", ["norms_per_layer", "n_experts", "experts_per_token", "max_sequence"])
def test_other_sizes_are_positive(field):
    with pytest.raises(ValueError, match=rf"{field}=0; sizes are positive; give {field} >= 1"):
        replace(LLAMA_3_1_8B, **{field: 0})


@pytest.mark.parametrize(
    ("field", "value", "choices"),
    [
        ("positions", "sinusoidal", "rotary, learned"),
        ("norm", "batch", "rms, layer, layer_unweighted"),
        ("biases", ("query",), "qkv, attention_output, ffn, head"),
    ],
)
def test_kinds_are_known(field, value, choices):
    shown = value if isinstance(value, str) else value[0]
    with pytest.raises(ValueError, match=rf"{field}='{shown}'; not a known kind; choose from {choices}$"):
        replace(LLAMA_3_1_8B, **{field: value})


def test_learned_positions_need_a_number():
    assert LLAMA_3_1_8B.max_sequence == 131_072
    with pytest.raises(ValueError, match=r"max_sequence=None; a table of learned positions .*; give max_sequence$"):
        replace(LLAMA_3_1_8B, positions="learned", max_sequence=None)


def test_a_table_of_learned_positions_ends_and_rotary_ones_do_not():
    learned = replace(LLAMA_3_1_8B, positions="learned", max_sequence=2048)
    learned.check_sequence(2048)
    LLAMA_3_1_8B.check_sequence(2 * 131_072)
    message = r"^ModelConfig 'Llama 3.1 8B': sequence=2049; its table of .* has 2048 rows; give sequence <= 2048$"
    with pytest.raises(ValueError, match=message):
        learned.check_sequence(2049)


@pytest.mark.parametrize("field", ["rotary_base", "norm_eps", "clip_qkv"])
def test_what_scales_is_positive(field):
    with pytest.raises(ValueError, match=rf"^ModelConfig 'Llama 3.1 8B': {field}=0.0; {field} is positive; give"):
        replace(LLAMA_3_1_8B, **{field: 0.0})


def test_a_token_passes_an_expert_once():
    with pytest.raises(ValueError, match=r"experts_per_token=3, n_experts=2; .* at most once; choose .* in 1\.\.2$"):
        replace(LLAMA_3_1_8B, n_experts=2, experts_per_token=3)


LATENT = LatentAttention(kv_rank=512, query_rank=None, plain_size=128, rotary_size=64, value_size=128)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": 0}, "head_dim=0; sizes are positive; "),
        ({"head_dim": 64, "latent": LATENT, "n_kv_heads": 32}, "head_dim=64; a head's size is positive, and said once"),
        ({"latent": LATENT}, "latent with n_kv_heads=8, qk_norm='none'; its heads share one .*; give n_kv_heads=32"),
        ({"qk_norm": "both"}, "qk_norm='both'; not a known kind; choose from none, head, full$"),
        ({"shared_ffn_size": 64}, "shared_ffn_size=64, n_experts=1; a shared block stands beside experts; "),
        ({"dense_layers": 1}, "dense_layers=1 of 32, dense_ffn_size=None; some first layers .*; give both, or neither"),
        ({"window": 8}, "window=8, windowed_layers=0 of 32; a window is that of some layers; give both, or neither"),
        ({"window": 8, "windowed_layers": 33}, "window=8, windowed_layers=33 of 32; "),
        ({"window": 0, "windowed_layers": 2}, "window=0; window is positive; give window > 0"),
        ({"dense_layers": 32, "dense_ffn_size": 8, "n_experts": 2}, "dense_layers=32 of 32, "),
        (
            {"dense_layers": 1, "dense_ffn_size": 8},
            "dense_layers=1, n_experts=1; without experts all layers are dense;",
        ),
    ],
)
def test_what_only_some_families_have_goes_with_the_rest(change, message):
    with pytest.raises(ValueError, match=f"^ModelConfig 'Llama 3.1 8B': {message}"):
        replace(LLAMA_3_1_8B, **change)


def test_a_latent_vector_has_numbers():
    with pytest.raises(ValueError, match=r"^LatentAttention: kv_rank=0; sizes are positive; give kv_rank >= 1$"):
        replace(LATENT, kv_rank=0)


def test_a_head_s_size_is_said_or_follows():
    wide = replace(LLAMA_3_1_8B, head_dim=256, hidden_size=4095)
    assert (wide.head_size, wide.query_size, wide.kv_size, wide.mixed_size) == (256, 8192, 2048, 8192)
    assert (LLAMA_3_1_8B.head_size, LLAMA_3_1_8B.query_size) == (128, 4096)
    latent = replace(LLAMA_3_1_8B, latent=LATENT, n_kv_heads=32)
    assert (latent.head_size, latent.query_size, latent.mixed_size) == (192, 32 * 192, 32 * 128)


def test_layers_that_are_alike_are_told_together():
    experts = replace(LLAMA_3_1_8B, n_experts=4, shared_ffn_size=64, dense_layers=2, dense_ffn_size=96)
    (n_dense, dense), (n_sparse, sparse) = experts.layer_kinds
    assert (n_dense, dense.ffn_size, dense.n_experts, dense.shared_ffn_size) == (2, 96, 1, 0)
    assert (n_sparse, sparse.n_experts, sparse.shared_ffn_size, sparse.dense_layers) == (30, 4, 64, 0)
    assert LLAMA_3_1_8B.layer_kinds == ((32, LLAMA_3_1_8B),)
