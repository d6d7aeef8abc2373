"""A pasted config.json gives the shape that transformers' own reading of it gives, for every family that is known."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from test_families import PUBLISHED

from course_lib.costs import model_parameters
from course_lib.models.config_text import config_from_text
from course_lib.models.families import config_of

NEWER = ("rope_parameters", "layer_types", "head_dim", "attention_bias", "mlp_bias")  # an older file has none of them


def theirs(name):
    import transformers

    family, changes, _ = PUBLISHED[name]
    return getattr(transformers, f"{family}Config")(**changes)


def same(text, expected):
    return replace(config_from_text(text), name="") == replace(expected, name="")


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_file_as_transformers_writes_it_is_read_as_transformers_reads_it(name):
    config = theirs(name)
    assert same(config.to_json_string(use_diff=True), config_of(config))
    assert same(json.dumps(config.to_dict()), config_of(config))
    assert model_parameters(config_from_text(config.to_json_string(use_diff=True))) == PUBLISHED[name][2]


def test_an_older_file_names_its_rotary_base_itself_and_leaves_out_what_is_usual():
    config = theirs("Llama 3.1 8B")
    fields = {name: value for name, value in config.to_dict().items() if name not in NEWER}
    rope = config.rope_parameters
    scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
    assert same(json.dumps({**fields, "rope_theta": rope["rope_theta"], "rope_scaling": scaling}), config_of(config))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"^config\.json: line 1, column 2; this is no JSON .*; paste the whole file$"),
        ("[]", r"^config\.json: a list; a configuration is an object with names; paste the whole file$"),
        ('{"model_type": "bert"}', r"^config_of: model_type='bert'; the shape of that family is not known here; "),
        ('{"model_type": "llama"}', r"^config\.json: llama without hidden_size; a model's sizes stand in its"),
        ('{"model_type": "llama", "hidden_size": null}', r"^config_of: llama with hidden_size=None; hidden_size is a "),
    ],
)
def test_what_is_no_configuration_is_refused_in_four_parts(text, message):
    with pytest.raises(ValueError, match=message):
        config_from_text(text)
