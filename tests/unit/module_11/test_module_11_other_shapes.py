"""Adapters beside layers that are no Llama's: what is counted is what the model, made on meta, trains and holds."""

from __future__ import annotations

import pytest
import torch
import transformers

from course_lib.cli import train_model
from course_lib.cli.doctor import asked_of
from course_lib.cli.train_config import read_train
from course_lib.costs.sweep.gpu_memory import gpu_memory
from course_lib.savers.adapted import merge_adapters
from course_lib.savers.lora import LoRALinear, add_lora

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "vocab_size": 64, "head_dim": 8, "pad_token_id": None, "eos_token_id": 1}
LATENT = {"q_lora_rank": 6, "kv_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 4}
LATENT |= {"moe_intermediate_size": 10, "n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
FOLDERS = {  # the last three have no formula: their shape is read from the model
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "eos_token_id": 1},
    "olmo": SIZES,
    "qwen3": SIZES | {"num_key_value_heads": 2},
    "phi3": SIZES,
    "mixtral": SIZES | {"num_local_experts": 4},
    "deepseek_v2": SIZES | LATENT | {"n_shared_experts": 1, "num_key_value_heads": 4, "head_dim": None},
    "gpt_neox": SIZES,
    "qwen2_moe": SIZES | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12},
    "opt": {"hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64},
}
EACH = [(name, "lora rank=3") for name in ("tiny_gpt", "tiny_olmo", "tiny_mixtral", *FOLDERS)]
EACH += [(name, "qlora") for name in ("tiny_mixtral", "phi3", "deepseek_v2", "gpt_neox")]
EACH += [(name, "ia3") for name in ("tiny_gpt", "mixtral", "qwen3")]


def words_of(name, tmp_path):
    if name in FOLDERS:
        transformers.AutoConfig.for_model(name, **FOLDERS[name]).save_pretrained(tmp_path / name)
        name = tmp_path / name
    return [f"model={name}", "batch=2", "sequence=16"]


@pytest.mark.parametrize(("name", "adapter"), EACH, ids=str)
def test_what_lasts_is_counted_of_every_shape(name, adapter, tmp_path):
    run = read_train([*words_of(name, tmp_path), *f"adapter={adapter}".split()])
    model = train_model.on_meta(run)
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    counted = gpu_memory(asked_of(run).counted)
    assert counted.weights == sum(p.nbytes for p in model.parameters()) > trained > 0
    assert (counted.gradients, counted.optimizer) == (trained, 2 * trained)


@pytest.mark.parametrize(
    ("name", "adapter", "said"),
    [
        (
            "gpt2",
            "qlora",
            "its matrices lie transposed, and codes are those of a plain map's rows; choose adapter=lora",
        ),
        ("phi3", "ia3", "factors stand at keys and values, as k_proj and v_proj; choose adapter=lora"),
    ],
)
def test_what_cannot_stand_there_is_refused(name, adapter, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        train_model.on_meta(read_train([*words_of(name, tmp_path), f"adapter={adapter}"]))


def test_beside_a_transposed_map_training_starts_as_it_is_and_merges_into_a_plain_one():
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**FOLDERS["gpt2"])).double().eval()
    tokens = torch.arange(10)[None]
    with torch.no_grad():
        before = model(tokens).logits
        add_lora(model, 4, targets=("transformer.h.*.attn.c_attn", "transformer.h.*.mlp.c_proj"))
        assert torch.equal(model(tokens).logits, before)
        for module in model.modules():
            if isinstance(module, LoRALinear):
                module.B.normal_()
        adapted = model(tokens).logits
        torch.testing.assert_close(merge_adapters(model)(tokens).logits, adapted, rtol=1e-11, atol=1e-11)
    assert not torch.allclose(adapted, before, atol=0.01)
