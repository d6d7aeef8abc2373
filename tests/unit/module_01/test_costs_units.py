"""A decoder's units by formula, against those that the wrapping policies make of the real model, without memory."""

from __future__ import annotations

from math import prod

import pytest
import torch

from course_lib.config import load_model
from course_lib.costs.model.parameters import model_parameters
from course_lib.costs.model.units import ROOT, decoder_units, row_numbers
from course_lib.models.decoder import Decoder
from course_lib.parallel.sharding.units import label_of, weights_of_units
from course_lib.parallel.sharding.wrapping import by_block, by_block_and_size, by_block_group, size_based

POLICIES = {
    ("by_block", None): by_block,
    ("by_block_and_size", None): by_block_and_size,
    ("by_block_group", 3): by_block_group(3),
    ("size_based", 20_000_000): size_based(20_000_000),
    ("size_based", 2_000_000): size_based(2_000_000),
}
MODELS = ["llama3_1_8b", "gpt3_small", "olmo_1b"]  # untied; tied, with biases and positions; tied, without norms


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("wrapping", POLICIES, ids=str)
def test_they_are_those_of_the_policy(name, wrapping):
    config = load_model(name)
    with torch.device("meta"):
        model = Decoder(config)
    found = weights_of_units(model, POLICIES[wrapping])
    units = decoder_units(config, *wrapping)
    assert [sorted(map(tuple, (p.shape for p in named.values()))) for named in found.values()] == [
        sorted((*unit.opening, *unit.trained)) for unit in units
    ]
    assert units[-1].label == label_of(()) == ROOT
    assert sum(unit.numbers(trained=True) for unit in units) == model_parameters(config)
    labels = {label_of(group) for group in found}
    assert all(unit.label in labels for unit in units if unit.label.count(".") < 2)


@pytest.mark.parametrize("name", ["mixtral_8x7b", "deepseek_v2", "qwen3_8b"])
def test_every_published_shape_has_units(name):
    units = decoder_units(load_model(name), "size_based", 10_000_000)
    assert sum(unit.numbers(trained=True) for unit in units) == model_parameters(load_model(name))


def test_an_embedding_is_the_root_s_opening_unless_it_is_a_unit():
    config = load_model("llama3_1_8b")
    table = (config.vocab_size, config.hidden_size)
    root = decoder_units(config)[-1]
    assert root.opening == (table,) and table in root.trained
    units = decoder_units(config, "by_block_and_size")
    assert [units[0].label, units[-2].label] == ["embedding", "head"]
    assert units[-1].opening == () and units[-1].numbers(trained=True) == config.hidden_size
    tied = decoder_units(load_model("gpt3_small"), "by_block_and_size")[-1]
    assert prod(tied.opening[0]) == load_model("gpt3_small").vocab_size * load_model("gpt3_small").hidden_size


def test_rows_are_padded_as_torch_cuts():
    """FSDP2 pads each tensor along its first dim to as many rows on each rank, as `torch.chunk` cuts."""
    shapes = [(5, 3), (2,), (8, 2), ()]
    for shards in (1, 2, 3, 4, 7):
        chunks = [len(torch.empty(shape or (1,)).chunk(shards)[0]) * prod(shape[1:]) for shape in shapes]
        assert row_numbers(shapes, shards=shards, padding="tensor") == shards * sum(chunks)
        longest = len(torch.empty(34).tensor_split(shards)[0])
        assert row_numbers(shapes, shards=shards, padding="row") == shards * longest
        assert row_numbers(shapes, shards=shards) == 34


@pytest.mark.parametrize(("wrapping", "size"), [("by_layer", None), ("by_block", 2), ("size_based", None)])
def test_what_is_no_policy_is_refused(wrapping, size):
    with pytest.raises(ValueError, match="^decoder_units: wrapping="):
        decoder_units(load_model("gpt3_small"), wrapping, size)


def test_a_group_has_blocks():
    with pytest.raises(ValueError, match="^decoder_units: wrapping='by_block_group', size=0; .* give size >= 1"):
        decoder_units(load_model("gpt3_small"), "by_block_group", 0)
