"""The published models: what is there, where it comes from, and which printed numbers cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from course_lib.config import LLAMA_3_1_8B, load_model, load_preset, model_names, parse_model
from course_lib.costs import LLAMA_TOKENS, model_parameters, workshop_parameters

BILLION = 10**9
LLAMA = {
    "name": "mine",
    "hidden_size": 64,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 2,
    "ffn_size": 128,
    "vocab_size": 100,
    "tied": False,
}


def test_every_published_model_is_there():
    gpt = {f"gpt3_{size}" for size in ("small", "medium", "large", "xl", "2_7b", "6_7b", "13b", "175b")}
    sizes = ["1_7b", "3_6b", "7_5b", "18_4b", "39_1b", "76_1b", "145_6b", "310_1b", "529_6b", "1008b"]
    others = [
        "llama3_2_1b",
        "llama3_1_8b",
        "llama3_1_70b",
        "llama3_1_405b",
        "llama_7b",
        "llama_13b",
        "llama_33b",
        "llama_65b",
    ]
    others += ["olmo_1b", "olmo_7b", "olmo_1b_workshop", "olmo_7b_workshop", "olmo_70b_workshop"]
    others += ["grok_1", "grok_1_explorer", "mixtral_8x7b", "deepseek_v2", "gemma2_9b", "olmo2_7b", "qwen3_8b"]
    others += ["deepseek_v3", "qwen3_30b_a3b"]
    assert set(model_names()) == gpt | {f"megatron_{size}" for size in sizes} | set(others)


@pytest.mark.parametrize("name", model_names())
def test_every_model_has_a_source_and_about_the_parameters_of_its_name(name):
    preset = load_preset(name)
    assert "20" in preset.source and preset.config.max_sequence
    if preset.printed_parameters is not None:
        # Names are round: 1.7 B is 1.652 B at the worst.
        assert model_parameters(preset.config) == pytest.approx(preset.printed_parameters, rel=0.03)


@pytest.mark.parametrize("name", [name for name in model_names() if name.startswith("megatron")])
def test_megatron_s_table_prints_one_decimal(name):
    preset = load_preset(name)
    printed = preset.printed_parameters / BILLION
    assert model_parameters(preset.config) / BILLION == pytest.approx(printed, abs=0.05)


# As the papers print them: parameters, layers, width, heads, and the width of a head or the tokens.
GPT3_TABLE_2_1 = {
    "small": (125e6, 12, 768, 12, 64),
    "medium": (350e6, 24, 1024, 16, 64),
    "large": (760e6, 24, 1536, 16, 96),
    "xl": (1.3e9, 24, 2048, 24, 128),
    "2_7b": (2.7e9, 32, 2560, 32, 80),
    "6_7b": (6.7e9, 32, 4096, 32, 128),
    "13b": (13.0e9, 40, 5140, 40, 128),
    "175b": (175.0e9, 96, 12288, 96, 128),
}
LLAMA_TABLE_2 = {
    "7b": (6.7e9, 32, 4096, 32, 1.0e12),
    "13b": (13.0e9, 40, 5120, 40, 1.0e12),
    "33b": (32.5e9, 60, 6656, 52, 1.4e12),
    "65b": (65.2e9, 80, 8192, 64, 1.4e12),
}
MEGATRON_TABLE_1 = {
    "1_7b": (1.7e9, 24, 2304, 24),
    "3_6b": (3.6e9, 30, 3072, 32),
    "7_5b": (7.5e9, 36, 4096, 32),
    "18_4b": (18.4e9, 40, 6144, 48),
    "39_1b": (39.1e9, 48, 8192, 64),
    "76_1b": (76.1e9, 60, 10240, 80),
    "145_6b": (145.6e9, 80, 12288, 96),
    "310_1b": (310.1e9, 96, 16384, 128),
    "529_6b": (529.6e9, 105, 20480, 128),
    "1008b": (1008e9, 128, 25600, 160),
}


def printed_shape(preset):
    """What the source prints, misprints included."""
    as_printed = {"hidden_size": preset.config.hidden_size, "n_heads": preset.config.n_heads, **preset.misprints}
    return preset.printed_parameters, preset.config.n_layers, as_printed["hidden_size"], as_printed["n_heads"]


@pytest.mark.parametrize("size", GPT3_TABLE_2_1)
def test_the_gpt_3_sizes_are_those_of_table_2_1(size):
    preset = load_preset(f"gpt3_{size}")
    assert (*printed_shape(preset), preset.config.head_size) == GPT3_TABLE_2_1[size]
    assert preset.config.ffn_size == 4 * preset.config.hidden_size and preset.config.max_sequence == 2048


@pytest.mark.parametrize("size", LLAMA_TABLE_2)
def test_the_llama_sizes_are_those_of_table_2(size):
    name = f"llama_{size}"
    assert (*printed_shape(load_preset(name)), LLAMA_TOKENS[name]) == LLAMA_TABLE_2[size]


@pytest.mark.parametrize("size", MEGATRON_TABLE_1)
def test_the_megatron_sizes_are_those_of_table_1(size):
    config = load_model(f"megatron_{size}")
    assert printed_shape(load_preset(f"megatron_{size}")) == MEGATRON_TABLE_1[size]
    assert (config.vocab_size, config.max_sequence) == (51_200, 2048)


def test_misprints_are_corrected_and_could_not_have_been():
    found = {name: dict(load_preset(name).misprints) for name in model_names() if load_preset(name).misprints}
    assert found == {
        "gpt3_13b": {"hidden_size": 5140},
        "gpt3_xl": {"n_heads": 24},
        "olmo_1b_workshop": {"hidden_size": 2046},
    }
    for name, printed in found.items():
        with pytest.raises(ValueError, match=r"n_heads divides hidden_size"):
            replace(load_model(name), **printed)
    assert load_model("gpt3_13b").head_size == load_model("gpt3_xl").head_size == 128


def test_no_reading_of_the_misprint_gives_the_workshop_s_0_944_billion():
    preset = load_preset("olmo_1b_workshop")
    read_as_2046 = replace(preset.config, hidden_size=2046, n_heads=1, n_kv_heads=1)
    for config in (preset.config, read_as_2046):
        assert round(workshop_parameters(config) / BILLION, 3) < preset.printed_parameters / BILLION == 0.944


def test_the_constant_is_the_preset():
    assert load_model("llama3_1_8b") is LLAMA_3_1_8B


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(
        ValueError, match=r"^load_model: name='gpt4'; there is no such model; choose one of deepseek_v2,"
    ):
        load_model("gpt4")


def test_a_model_from_one_s_own_file():
    preset = parse_model({**LLAMA, "biases": ["qkv"], "source": "mine, 2026"})
    assert preset.config.biases == ("qkv",) and preset.config.norm == "rms"
    assert (preset.source, preset.printed_parameters, preset.misprints) == ("mine, 2026", None, {})


def test_an_unknown_key_is_refused():
    with pytest.raises(ValueError, match=r"^model preset 'mine': key 'hiden_size'; not a field .*; choose from name, "):
        parse_model({**LLAMA, "hiden_size": 1})


def test_a_missing_key_is_refused():
    with pytest.raises(ValueError, match=r"^model preset 'mine': without n_heads, tied; these keys .*; add them to"):
        parse_model({key: value for key, value in LLAMA.items() if key not in ("n_heads", "tied")})


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("n_layers", "2", "a whole number"),
        ("max_sequence", 2.5, "a whole number"),
        ("tied", "no", "true or false"),
        ("norm_eps", "1e-5", "a number with a point"),
    ],
)
def test_a_value_of_another_kind_is_refused(key, value, rule):
    with pytest.raises(ValueError, match=rf"{key}={value!r}; {key} is {rule}; write it without quotes and units$"):
        parse_model({**LLAMA, key: value})


@pytest.mark.parametrize("biases", [1, None, "qkv", {"qkv": True}])
def test_biases_that_are_no_list_are_refused(biases):
    message = r"^model preset 'mine': biases=.*; biases is a list; list some of qkv, .*, head, or none$"
    with pytest.raises(ValueError, match=message):
        parse_model({**LLAMA, "biases": biases})


def test_hydra_composes_the_same_models_and_overrides_them():
    with initialize_config_module("course_lib.presets", version_base=None):
        for name in model_names():
            chosen = compose(overrides=[f"+model={name}"]).model
            assert parse_model(OmegaConf.to_container(chosen)) == load_preset(name)
        changed = compose(overrides=["+model=llama3_1_8b", "model.n_layers=2"]).model
    assert parse_model(OmegaConf.to_container(changed)).config == replace(LLAMA_3_1_8B, n_layers=2)
