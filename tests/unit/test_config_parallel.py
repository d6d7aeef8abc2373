"""Degrees of parallelism are checked when they are given, and against the model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from course_lib.config import LLAMA_3_1_8B, ParallelConfig, load_model


def test_ranks_multiply():
    parallel = ParallelConfig(dp=4, tp=2, pp=3, cp=5, ep=2)
    assert parallel.world_size == 4 * 2 * 3 * 5  # expert parallelism reuses the replicas
    assert parallel.shards == 4 * 5
    assert ParallelConfig().world_size == 1


@pytest.mark.parametrize("degree", ["dp", "tp", "pp", "cp", "ep"])
def test_degrees_are_positive(degree):
    with pytest.raises(ValueError, match=rf"^ParallelConfig: {degree}=0; degrees are positive; give {degree} >= 1$"):
        ParallelConfig(**{degree: 0})


def test_zero_has_three_stages():
    with pytest.raises(ValueError, match=r"zero_stage=4; ZeRO has the stages 1 to 3; choose 0 \(none\), 1, 2 or 3$"):
        ParallelConfig(zero_stage=4)


def test_expert_parallelism_divides_the_replicas():
    with pytest.raises(ValueError, match=r"ep=4; ep divides dp=6; choose ep in \[1, 2, 3, 6\]$"):
        ParallelConfig(dp=6, ep=4)


def test_what_divides_passes():
    everything = ParallelConfig(dp=8, tp=8, pp=4, cp=2, ep=8, sequence_parallel=True)
    everything.check(load_model("mixtral_8x7b"), sequence=8192)
    ParallelConfig(cp=3).check(LLAMA_3_1_8B)  # without a sequence cp is not asked about


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        ({"tp": 12}, r"tp=12; tp divides n_heads=32; choose tp in \[1, 2, 4, 8, 16\]$"),
        ({"pp": 5}, r"pp=5; pp divides n_layers=32; choose pp in \[1, 2, 4, 8\]$"),
        ({"dp": 3, "ep": 3}, r"ep=3; ep divides n_experts=8; choose ep in \[1\]$"),  # and dp by it
        ({"cp": 3}, r"cp=3; cp divides sequence=100; choose cp in \[1, 2, 4, 5\]$"),
        (
            {"tp": 8, "cp": 2, "sequence_parallel": True},
            r"tp=8; tp divides sequence/cp=50; choose tp in \[1, 2\]$",  # and the heads by it
        ),
    ],
)
def test_what_does_not_divide_is_refused_with_the_choices(degrees, message):
    with pytest.raises(ValueError, match="^ParallelConfig: " + message):
        ParallelConfig(**degrees).check(load_model("mixtral_8x7b"), sequence=100)


def test_fewer_kv_heads_than_ranks_lie_on_equally_many_each():
    grok = replace(load_model("grok_1"), ffn_size=24576)  # 48 heads, 8 of keys and values
    ParallelConfig(tp=16).check(grok)
    message = r"^ParallelConfig: tp=12; of tp and n_kv_heads=8 one divides the other; choose tp in "
    with pytest.raises(ValueError, match=message + r"\[1, 2, 4, 8, 16, 24, 48\]$"):
        ParallelConfig(tp=12).check(grok)


def test_a_sequence_beyond_the_learned_positions_is_refused():
    gpt = load_model("gpt3_175b")
    ParallelConfig().check(gpt, sequence=2048)
    with pytest.raises(ValueError, match=r"^ModelConfig 'GPT-3 175B': sequence=4096; .*; give sequence <= 2048$"):
        ParallelConfig().check(gpt, sequence=4096)


def test_a_feed_forward_block_that_does_not_divide_is_refused():
    odd = replace(LLAMA_3_1_8B, ffn_size=14337)
    with pytest.raises(ValueError, match=r"tp=2; tp divides ffn_size=14337; choose tp in \[1\]$"):
        ParallelConfig(tp=2).check(odd)
