"""Formulas of context parallelism: bytes, messages and steps by hand, also where positions or heads are uneven."""

from __future__ import annotations

from dataclasses import replace

import pytest

from course_lib.config import LLAMA_3_1_8B, ModelConfig, load_model
from course_lib.costs import gathered_context, ring_attention, ulysses
from course_lib.hardware import load_cluster, wires
from course_lib.sequence_cut import SequenceCut

D, B = 8, 2
WAYS = (ring_attention, gathered_context, ulysses)


def model(heads, kv_heads):
    return ModelConfig(
        name="small",
        hidden_size=heads * D,
        n_layers=1,
        n_heads=heads,
        n_kv_heads=kv_heads,
        ffn_size=8,
        vocab_size=8,
        tied=False,
    )


def both(way, config, cut, *, batch=B, itemsize=4, **options):
    return [way(config, cut, batch=batch, itemsize=itemsize, when=when, **options) for when in ("forward", "backward")]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "way", "expected"),
    [
        (8, 8, ring_attention, (24_576, 57_344)),
        (8, 8, gathered_context, (24_576, 24_576)),
        (8, 8, ulysses, (12_288, 12_288)),
        (4, 2, ring_attention, (6_144, 14_336)),
        (4, 2, gathered_context, (6_144, 6_144)),
        (4, 2, ulysses, (6_144, 6_144)),
        (4, 1, ring_attention, (3_072, 7_168)),
        (4, 1, gathered_context, (3_072, 3_072)),
        (4, 1, ulysses, (6_144, 6_144)),
    ],
)
def test_bytes_of_32_positions_on_4_ranks(heads, kv_heads, way, expected):
    """8 positions a rank: kv(8) is 2 x 2 x 8 heads x 8 x 8 x 4 = 8,192 bytes with 8 kv heads, and the ring's 3 hops."""
    found = both(way, model(heads, kv_heads), SequenceCut(32, 4, "zigzag"))
    assert tuple(cost.sent_bytes for cost in found) == tuple((nbytes,) * 4 for nbytes in expected)
    assert all(cost.received_bytes == cost.sent_bytes for cost in found)  # all ranks have as much


def test_messages_and_steps():
    cut, config = SequenceCut(32, 4), model(8, 8)
    assert [(c.messages[0], c.steps) for c in both(ring_attention, config, cut)] == [(3, 3), (7, 7)]
    assert [(c.messages[0], c.steps) for c in both(gathered_context, config, cut)] == [(3, 3), (3, 3)]
    assert [(c.messages[0], c.steps) for c in both(ulysses, config, cut)] == [(9, 9), (9, 9)]


def test_uneven_positions_on_a_ring():
    """3, 2, 2 positions of 128 bytes (B=1, K=1, D=8, 8 bytes): rank 2 does not send on what rank 0 began with."""
    cut, config = SequenceCut(7, 3, "zigzag"), model(1, 1)
    forward, backward = both(ring_attention, config, cut, batch=1, itemsize=8)
    assert forward.sent_bytes == (128 * 5, 128 * 5, 128 * 4)
    assert forward.received_bytes == (128 * 4, 128 * 5, 128 * 5)
    assert backward.sent_bytes == (128 * 12, 128 * 12, 128 * 11)
    assert backward.received_bytes == (128 * 11, 128 * 12, 128 * 12)
    assert [step.nbytes for step in backward.path] == [128 * 3] * 5  # the largest part is always under way somewhere
    gathered = both(gathered_context, config, cut, batch=1, itemsize=8)
    assert [cost.sent_bytes for cost in gathered] == [forward.sent_bytes, (128 * 4, 128 * 5, 128 * 5)]


def test_uneven_heads_and_positions_in_ulysses():
    """3 heads of queries on one kv head, 2 ranks, 3 positions, 8 numbers of 1 byte: a = (2, 1), k = (1, 1), n = (2, 1).

    Rank 0 sends rank 1 of its queries 1 x 2, of keys and values 2 x 1 x 2, and of outputs 2 x 1; each of 8 bytes.
    """
    cut, config = SequenceCut(3, 2), model(3, 1)
    forward, backward = both(ulysses, config, cut, batch=1, itemsize=1)
    assert forward.sent_bytes == (8 * (1 * 2 + 2 * 2 + 2 * 1), 8 * (2 * 1 + 2 * 1 + 1 * 2))
    assert backward.sent_bytes == (8 * (1 * 2 + 2 * 1 + 2 * 1), 8 * (2 * 1 + 2 * 2 + 1 * 2))
    assert forward.received_bytes == forward.sent_bytes[::-1]
    assert forward.messages == (3, 3)
    assert [step.nbytes for step in forward.path] == [8 * 2, 8 * 4, 8 * 2]


def test_a_kv_head_that_several_ranks_need_travels_to_each():
    """6 heads, 2 kv heads, 4 ranks: 2, 2, 1, 1 heads of queries, and rank 1's two are of different kv heads."""
    cut, config = SequenceCut(4, 4), model(6, 2)
    (forward, _) = both(ulysses, config, cut, batch=1, itemsize=1)
    queries, keys = (2, 2, 1, 1), (1, 2, 1, 1)
    for rank in range(4):
        others = [j for j in range(4) if j != rank]
        assert forward.sent_bytes[rank] == D * sum(queries[j] + 2 * keys[j] + queries[rank] for j in others)


def test_ulysses_sends_the_same_when_text_and_ranks_grow_alike():
    config = LLAMA_3_1_8B
    small, large = (
        ulysses(replace(config, n_kv_heads=32), SequenceCut(1024 * p, p), batch=1, itemsize=2).sent_bytes[0]
        for p in (8, 32)
    )
    assert large / small == pytest.approx((31 / 32) / (7 / 8))
    rings = [ring_attention(config, SequenceCut(1024 * p, p), batch=1, itemsize=2).sent_bytes[0] for p in (8, 32)]
    assert rings[1] / rings[0] == pytest.approx(31 / 7)


def test_which_way_sends_least_depends_on_kv_heads():
    cut = SequenceCut(8192, 8, "zigzag")
    sent = {}
    for kv_heads in (32, 8, 1):
        config = replace(LLAMA_3_1_8B, n_kv_heads=kv_heads)
        sent[kv_heads] = [sum(c.sent_bytes[0] for c in both(way, config, cut, batch=1, itemsize=2)) for way in WAYS]
    ring, gathered, heads = range(3)
    assert sent[32][heads] < sent[32][gathered] < sent[32][ring]
    assert sent[1][gathered] < sent[1][heads]
    assert all(found[ring] > found[gathered] for found in sent.values())


@pytest.mark.parametrize("way", WAYS)
def test_under_tp_a_rank_has_its_heads_alone(way):
    cut = SequenceCut(32, 2)
    assert both(way, model(8, 4), cut, tp=2) == both(way, model(4, 2), cut)
    assert both(way, model(8, 2), cut, tp=4) == both(way, model(2, 1), cut)  # two tp ranks have a copy of one kv head


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tp", [1, 2])
def test_one_rank_sends_nothing(way, tp):
    for cost in both(way, model(4, 2), SequenceCut(5, 1), tp=tp):
        assert cost.total_bytes == 0
        assert cost.messages == (0,)
        assert cost.path == ()


@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_sent_is_received_whatever_the_order(way, size, order):
    cut, config = SequenceCut(13, size, order), model(4, 2)
    found = both(way, config, cut)
    assert all(sum(cost.received_bytes) == cost.total_bytes for cost in found)
    assert found == both(way, config, replace(cut, order="contiguous"))


def test_wires_price_a_ring_over_domains():
    """16 ranks on two nodes of 8: two of 16 messages cross in each step, and all of a node's cards carry one."""
    machine, cut = wires(load_cluster("dgx_h100")), SequenceCut(131_072, 16, "zigzag")
    inside, across = (
        ring_attention(LLAMA_3_1_8B, cut, batch=1, itemsize=2, node_size=node).time_s(machine) for node in (None, 8)
    )
    assert 0 < inside < across
    ring, heads = (way(LLAMA_3_1_8B, cut, batch=1, itemsize=2, node_size=8).time_s(machine) for way in WAYS[::2])
    assert heads < 2 * ring


@pytest.mark.parametrize("way", WAYS)
def test_refusals(way):
    cut, config = SequenceCut(8, 2), model(4, 2)
    with pytest.raises(ValueError, match=f"{way.__name__}: batch=0; batch is positive; give batch >= 1"):
        way(config, cut, batch=0, itemsize=2)
    with pytest.raises(ValueError, match="DeepSeek-V2; keys and values are of the same size"):
        way(load_model("deepseek_v2"), cut, batch=1, itemsize=2)
    with pytest.raises(ValueError, match="tp=3; tp divides n_heads=4"):
        way(config, cut, batch=1, itemsize=2, tp=3)


def test_ulysses_refuses_more_ranks_than_heads():
    with pytest.raises(
        ValueError, match=r"ulysses: 2 heads, cp=4; every rank has a head of queries; choose cp in 1..2"
    ):
        ulysses(model(4, 2), SequenceCut(8, 4), batch=1, itemsize=2, tp=2)
