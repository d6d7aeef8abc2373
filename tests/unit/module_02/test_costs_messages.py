"""Parameter counts and message sizes of real models."""

from __future__ import annotations

from dataclasses import replace

import pytest

from course_lib.config import LLAMA_3_1_8B
from course_lib.costs import layer_messages, layer_parameters, model_parameters


def test_llama_has_its_published_number_of_parameters():
    assert model_parameters(LLAMA_3_1_8B) == 8_030_261_248
    assert layer_parameters(LLAMA_3_1_8B) == 218_112_000


def test_a_tied_head_is_counted_once():
    tied = replace(LLAMA_3_1_8B, tied=True)
    assert model_parameters(LLAMA_3_1_8B) - model_parameters(tied) == 128_256 * 4096


def test_what_one_llama_layer_sends():
    rows = layer_messages(LLAMA_3_1_8B, batch=1, sequence=8192, itemsize=2)
    assert [(row.technique, row.operation, row.elements, row.nbytes) for row in rows] == [
        ("DDP", "all_reduce", 218_112_000, 436_224_000),
        ("FSDP", "all_gather", 218_112_000, 436_224_000),
        ("FSDP", "reduce_scatter", 218_112_000, 436_224_000),
        ("tensor parallel", "all_reduce", 8192 * 4096, 64 * 2**20),
        ("pipeline parallel", "send", 8192 * 4096, 64 * 2**20),
    ]
    assert " ".join(str(rows[0]).split()) == "DDP all_reduce gradients of one layer 218,112,000 416 MiB"
    assert len({len(str(row)) for row in rows}) == 1  # the rows line up


@pytest.mark.parametrize("name", ["batch", "sequence", "itemsize"])
def test_sizes_are_positive(name):
    sizes = {"batch": 1, "sequence": 8, "itemsize": 2, name: 0}
    with pytest.raises(ValueError, match=rf"^layer_messages: {name}=0; {name} is positive; give {name} >= 1"):
        layer_messages(LLAMA_3_1_8B, **sizes)
