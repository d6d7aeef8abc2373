"""Formulas of tensor parallelism: rows and bytes by hand, both forms of sequence parallelism, copies of kv heads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from course_lib.config import LLAMA_3_1_8B, ModelConfig, load_model
from course_lib.costs import TensorRow, block_rows, kv_cache_bytes, rows_traffic, tensor_rows, tensor_step
from course_lib.units import MiB

LLAMA = ModelConfig(
    name="small", hidden_size=8, n_layers=3, n_heads=4, n_kv_heads=2, ffn_size=12, vocab_size=20, tied=False
)
GPT = replace(
    LLAMA,
    name="small GPT",
    n_kv_heads=4,
    positions="learned",
    max_sequence=16,
    gated_ffn=False,
    norm="layer",
    biases=("qkv", "attention_output", "ffn"),
)
B, S, H, L = 2, 6, 8, 3
TOKENS, HIDDEN = (B, S), (B, S, H)


def rows(config=LLAMA, tp=2, **options):
    return tensor_rows(config, tp=tp, batch=B, sequence=S, **options)


def summary(found):
    return [(row.where, row.when, row.times, row.operation, row.shape) for row in found]


def sent(config=LLAMA, tp=2, **options):
    """Bytes of rank 0, in fp32."""
    return tensor_step(config, tp=tp, batch=B, sequence=S, **options).sent_bytes[0]


def test_the_perceptron_s_one_all_reduce():
    (row,) = block_rows("MLP", (8, 6), (8, 2), input_gradient=False)
    assert (row.when, row.operation, row.shape) == ("forward", "all_reduce", (8, 2))
    assert rows_traffic([row], tp=2).sent_bytes == (64, 64)  # 2 x 1/2 of 16 numbers
    assert rows_traffic([row], tp=1).total_bytes == rows_traffic([], tp=3).total_bytes == 0
    assert [row.when for row in block_rows("MLP", (8, 6), (8, 2))] == ["forward", "backward"]


def test_a_decoder_s_table():
    assert summary(rows()) == [
        ("embedding", "forward", 1, "all_reduce", HIDDEN),
        ("attention", "forward", L, "all_reduce", HIDDEN),
        ("feed-forward", "forward", L, "all_reduce", HIDDEN),
        ("loss", "forward", 3, "all_reduce", TOKENS),
        ("head", "backward", 1, "all_reduce", HIDDEN),
        ("feed-forward", "backward", L, "all_reduce", HIDDEN),
        ("attention", "backward", L, "all_reduce", HIDDEN),
    ]
    assert str(rows()[1]) == "attention              forward     3 x all_reduce     (2, 6, 8)"


def test_bytes_of_a_step_by_hand():
    """4 L + 2 all-reduces of 96 numbers, 3 of 12; at tp 2 a rank sends what it holds once, at 4 one half more."""
    assert sent() == 4 * ((4 * L + 2) * 96 + 3 * 12)
    assert sent(tp=4, config=GPT) == 1.5 * sent()
    assert sent(tp=1) == 0
    assert sent(itemsize=8) == 2 * sent()
    assert tensor_step(LLAMA, tp=2, batch=B, sequence=S).messages == (2 * (4 * L + 5),) * 2


def test_an_uneven_all_reduce_is_cut_as_a_flat_row():
    """4 tokens over 3 ranks: pieces of 2, 1, 1. Rank r sends all but its own piece, then all but that of r + 1."""
    three = replace(LLAMA, n_heads=3, n_kv_heads=3, hidden_size=9)
    loss = next(row for row in tensor_rows(three, tp=3, batch=1, sequence=4) if row.where == "loss")
    assert loss.traffic(tp=3, itemsize=4).sent_bytes == (4 * (2 + 3), 4 * (3 + 3), 4 * (3 + 2))


def test_micro_batches_send_the_same_where_all_divides_and_once_what_is_once_a_step():
    assert sent(microbatches=2) == sent()
    whole = tensor_step(LLAMA, tp=2, batch=3, sequence=S, sequence_parallel="keep")
    cut = tensor_step(LLAMA, tp=2, batch=3, sequence=S, sequence_parallel="keep", microbatches=2)
    assert cut.sent_bytes == whole.sent_bytes
    once = 2  # messages of the norms' gradients
    assert cut.messages[0] - once == 2 * (whole.messages[0] - once)


def test_sequence_parallelism_sends_an_all_reduce_s_two_halves():
    found = summary(rows(sequence_parallel="keep"))
    assert found[:3] == [
        ("embedding", "forward", 1, "reduce_scatter", HIDDEN),
        ("attention", "forward", L, "all_gather", HIDDEN),
        ("attention", "forward", L, "reduce_scatter", HIDDEN),
    ]
    assert found[5:8] == [
        ("head", "forward", 1, "all_gather", HIDDEN),
        ("loss", "forward", 3, "all_reduce", TOKENS),
        ("head", "backward", 1, "reduce_scatter", HIDDEN),
    ]
    assert found[-4:] == [
        ("attention", "backward", L, "all_gather", HIDDEN),
        ("attention", "backward", L, "reduce_scatter", HIDDEN),
        ("embedding", "backward", 1, "all_gather", HIDDEN),
        ("replicated weights", "step", 1, "all_reduce", ((2 * L + 1) * H,)),
    ]
    norms = 4 * (2 * L + 1) * H
    assert sent(sequence_parallel="keep") == sent() + norms


def test_to_gather_again_is_one_more_all_gather_for_each_block_and_the_head():
    more = sent(sequence_parallel="regather") - sent(sequence_parallel="keep")
    assert more == (2 * L + 1) * 4 * 96 / 2
    block = block_rows("block", HIDDEN, HIDDEN, sequence_parallel="regather")
    assert [(row.when, row.operation) for row in block] == [
        ("forward", "all_gather"),
        ("forward", "reduce_scatter"),
        ("backward", "all_gather"),
        ("backward", "all_gather"),
        ("backward", "reduce_scatter"),
    ]


def test_a_sequence_is_cut_along_its_tokens():
    """5 tokens over 2 ranks: 3 and 2, of 2 x 8 numbers each; in a gather each rank sends its own."""
    gather = tensor_rows(LLAMA, tp=2, batch=2, sequence=5, sequence_parallel="keep")[1]
    assert gather.traffic(tp=2, itemsize=4).sent_bytes == (3 * 64, 2 * 64)


def test_a_gpt_gathers_its_positions_gradient_and_sums_its_biases():
    found = {row.where: row for row in rows(GPT, sequence_parallel="keep")}
    assert (found["positions"].when, found["positions"].shape) == ("backward", (S, H))
    assert found["replicated weights"].shape == (L * 6 * H + 2 * H,)  # a layer: 2 norms of 2, output and down biases
    assert {row.where for row in rows(GPT)} == {row.where for row in rows()}


def test_norms_of_queries_and_keys():
    full = summary(rows(replace(LLAMA, qk_norm="full")))
    assert ("norms of q and k", "forward", 2 * L, "all_reduce", TOKENS) in full
    assert ("norms of q and k", "backward", 2 * L, "all_reduce", TOKENS) in full
    assert not [row for row in full if row[1] == "step"]
    of_each = summary(rows(replace(LLAMA, qk_norm="head")))
    assert of_each[-1] == ("replicated weights", "step", 1, "all_reduce", (L * 2 * 2,))
    assert of_each[:-1] == summary(rows())


@pytest.mark.parametrize(
    ("config", "numbers"),
    [
        (LLAMA, L * 2 * 2 * H),
        (replace(LLAMA, biases=("qkv",)), L * 2 * (2 * H + 2)),
        (replace(LLAMA, qk_norm="full"), L * 2 * (2 * H + 1)),
    ],
    ids=["weights", "biases", "norm of all heads"],
)
def test_copies_of_a_kv_head_exchange_their_gradients(config, numbers):
    exchanges = [row for row in rows(config, tp=4) if row.operation == "exchange"]
    assert [(row.when, row.copies, row.times, row.shape) for row in exchanges] == [("step", 2, 1, (numbers,))]


def test_each_copy_sends_to_all_others():
    one_head = replace(LLAMA, n_kv_heads=1, n_heads=4)
    numbers = L * one_head.head_size * 2 * H
    (shared,) = [row for row in rows(one_head, tp=4) if row.when == "step"]
    assert (shared.operation, shared.shape) == ("all_reduce", (numbers,))  # all ranks have copies of it
    cost = TensorRow(where="", when="step", operation="exchange", shape=(5,), copies=3).traffic(tp=6, itemsize=4)
    assert cost.sent_bytes == cost.received_bytes == (2 * 5 * 4,) * 6 and cost.messages == (2,) * 6


def test_llama_8b_in_bf16():
    """One all-reduce of (1, 8192, 4096) has 64 MiB; 4 x 32 + 2 of them, of which each of 8 ranks sends 7/4."""
    step = tensor_step(LLAMA_3_1_8B, tp=8, batch=1, sequence=8192, itemsize=2)
    loss = 3 * 8192 * 2 * 7 // 4
    assert step.sent_bytes == (130 * 64 * MiB * 7 // 4 + loss,) * 8


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (LLAMA, {"tp": 3}, "ParallelConfig: tp=3; tp divides n_heads=4; choose tp in .1, 2, 4.$"),
        (LLAMA, {"batch": 0}, "tensor_rows: batch=0; batch is positive; give batch >= 1$"),
        (GPT, {"sequence": 17}, "ModelConfig 'small GPT': sequence=17; "),
        (load_model("mixtral_8x7b"), {}, "tensor_rows: .*; choose a model without experts and latent$"),
        (load_model("deepseek_v2"), {}, "tensor_rows: .*; choose a model without experts and latent$"),
    ],
)
def test_what_has_no_rows(config, options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        tensor_rows(config, **{"tp": 2, "batch": 1, "sequence": 4, **options})


@pytest.mark.parametrize("microbatches", [0, 3])
def test_each_micro_batch_has_a_sequence(microbatches):
    message = f"^tensor_step: microbatches={microbatches}, batch=2; .*; choose microbatches in 1..2$"
    with pytest.raises(ValueError, match=message):
        sent(microbatches=microbatches)


def test_a_cache_of_keys_and_values():
    """2 x 3 layers x 2 x 6 tokens x 2 heads x 2 numbers; a rank has one head at tp 2, and still one at tp 4."""
    cache = {tp: kv_cache_bytes(LLAMA, batch=B, sequence=S, itemsize=4, tp=tp) for tp in (1, 2, 4)}
    assert cache == {1: 1152, 2: 576, 4: 576}
    long = kv_cache_bytes(LLAMA_3_1_8B, batch=1, sequence=131_072, itemsize=2, tp=8)
    assert long == 2 * 1024 * MiB  # 16 GiB on one device


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (LLAMA, {"tp": 8}, "ParallelConfig: tp=8; tp divides n_heads=4; "),
        (LLAMA, {"tp": 0}, "ParallelConfig: tp=0; "),
        (LLAMA, {"itemsize": 0}, "kv_cache_bytes: itemsize=0; itemsize is positive; give itemsize >= 1$"),
        (load_model("deepseek_v2"), {}, "kv_cache_bytes: .*; it remembers a latent vector, not keys and values; "),
    ],
)
def test_what_has_no_such_cache(config, options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        kv_cache_bytes(config, **{"batch": 1, "sequence": 4, "itemsize": 2, **options})
