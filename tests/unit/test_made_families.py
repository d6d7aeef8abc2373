"""Any decoder of transformers with its default configuration: counted exactly, or refused in a line that says why."""

from __future__ import annotations

import re
import shlex

import pytest
import torch
import transformers

from course_lib.cli.main import main
from course_lib.costs import active_parameters, layer_weights, model_parameters, outer_weights
from course_lib.models.made import made_config
from course_lib.training.pretrained import Pretrained

EXACT = shlex.split("""
    llama mistral mixtral qwen2 qwen3 gemma2 phi3 olmo olmo2 olmoe gpt2 qwen3_moe qwen2_moe deepseek_v3 gpt_oss gemma
    gemma3_text olmo3 granite granitemoe cohere cohere2 smollm3 glm glm4 glm4_moe phi phimoe gpt_neox gpt_neo gptj opt
    bloom falcon mpt starcoder2 stablelm codegen biogpt persimmon arcee jetmoe helium ernie4_5 ernie4_5_moe exaone4
    seed_oss minimax diffllama apertus flex_olmo bitnet afmoe lfm2
""")
REFUSED = {  # and what a line says has to be given
    "deepseek_v2": "give config.json num_experts_per_tok",
    "nemotron": "give config.json num_key_value_heads",
    "hunyuan_v1_dense": "give config.json head_dim",
    "hunyuan_v1_moe": "give config.json head_dim",
    "dots1": "give config.json num_experts_per_tok, num_local_experts, n_routed_experts",
    "dbrx": "give config.json rope_theta",
    "mamba": "choose a decoder",
}


def folder_of(tmp_path, family, **sizes):
    config = transformers.AutoConfig.for_model(family, **sizes)
    config.save_pretrained(tmp_path / family)
    return tmp_path / family


def theirs(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("family", EXACT)
def test_every_parameter_of_a_family_is_counted(tmp_path, family):
    folder = folder_of(tmp_path, family)
    assert model_parameters(Pretrained(folder).shape()) == sum(p.numel() for p in theirs(folder).parameters())


@pytest.mark.parametrize("family", REFUSED)
def test_what_cannot_be_built_or_counted_is_refused_with_what_to_give(tmp_path, family):
    folder = folder_of(tmp_path, family)
    with pytest.raises(ValueError, match=re.escape(REFUSED[family]) + "$") as refused:
        Pretrained(folder).shape()
    assert str(refused.value).count("\n") == 0


@pytest.mark.parametrize("family", [name for name in EXACT if name not in ("gpt2",)][:11])
def test_a_known_family_is_read_from_its_model_as_by_formula(tmp_path, family):
    folder = folder_of(tmp_path, family)
    known, made = Pretrained(folder).shape(), made_config(*((model := theirs(folder)).config, model))
    names = ("hidden_size", "n_layers", "n_heads", "n_kv_heads", "ffn_size", "vocab_size", "tied", "gated_ffn")
    names += ("n_experts", "experts_per_token", "shared_ffn_size", "head_size", "positions")
    assert {name: getattr(made, name) for name in names} == {name: getattr(known, name) for name in names}
    assert model_parameters(made) == model_parameters(known) and active_parameters(made) == active_parameters(known)
    for split in (0, 1):
        cut = [
            sum(weight.parameters for weight in weights(shape) if weight.split == split)
            for shape in (made, known)
            for weights in (layer_weights, outer_weights)
        ]
        assert cut[:2] == cut[2:], split


@pytest.mark.parametrize(
    ("family", "facts"),
    [
        ("qwen3_moe", {"n_experts": 128, "experts_per_token": 8, "ffn_size": 768, "shared_ffn_size": 0}),
        ("ernie4_5_moe", {"n_experts": 64, "shared_ffn_size": 3072, "ffn_size": 1536}),
        ("falcon", {"n_kv_heads": 1, "gated_ffn": False, "norm": "layer", "tied": True}),
        ("gemma3_text", {"window": 4096, "tied": True, "head_size": 256}),
        ("opt", {"positions": "learned", "gated_ffn": False}),
    ],
)
def test_experts_windows_and_tied_tables_are_told_apart(tmp_path, family, facts):
    shape = Pretrained(folder_of(tmp_path, family)).shape()
    assert {name: getattr(shape, name) for name in facts} == facts


def test_deepseek_v3_has_latent_attention_and_dense_first_layers(tmp_path):
    shape = Pretrained(folder_of(tmp_path, "deepseek_v3")).shape()
    assert shape.latent is not None and (shape.latent.kv_rank, shape.latent.query_rank) == (512, 1536)
    assert [(count, kind.n_experts, kind.ffn_size) for count, kind in shape.layer_kinds] == [
        (3, 1, 18432),
        (58, 256, 2048),
    ]
    assert 37e9 < active_parameters(shape) < 38e9  # published: 37 B


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_neox"])
def test_a_family_without_a_formula_is_swept_planned_and_doctored(tmp_path, family, capsys):
    folder = folder_of(tmp_path, family, vocab_size=4096, num_hidden_layers=4)
    for command, words in {
        "doctor": ["dp=2", "zero_stage=3", "batch=2", "sequence=64"],
        "sweep": ["gpus=8", "tp=1", "pp=1", "cp=1", "sequence=64"],
        "plan": ["cluster=dgx_h100", "sequence=64", "batch=16", "retime=0"],
    }.items():
        assert main([command, f"model={folder}", *words]) == 0, capsys.readouterr()
    assert "it would run" in capsys.readouterr().out


def test_what_no_plan_cuts_stays_whole_in_families_without_a_formula(tmp_path, capsys):
    folder = folder_of(tmp_path, "gpt_neox", vocab_size=4096, num_hidden_layers=4)
    needed = []
    for tp in (1, 2):
        main(["doctor", f"model={folder}", f"tp={tp}", "batch=1", "sequence=64"])
        (found,) = re.findall(r"\(weights ([\d.]+) GiB", capsys.readouterr().out)
        needed.append(float(found))
    assert 0.6 * needed[0] < needed[1] < 0.8 * needed[0]  # attention, a third, is not cut
