"""What a plan says of cut sequences and of experts: what it assumes, what other ways cost, and nothing without them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from course_lib.config import load_model
from course_lib.hardware import load_cluster
from course_lib.planner import Job, Space, context_ways_s, of_sequences_and_experts, ranked, search
from course_lib.sim.policies import CONTEXTS

NODE = load_cluster("dgx_h100")
LLAMA = Job(model=load_model("llama3_1_8b"), cluster=replace(NODE, n_nodes=2), batch=16, sequence=32_768)
FEW = {"pp": (1,), "micro_batch": (1,), "recompute": ("layers",), "schedule": ("1f1b",), "zero_stage": (3,)}


def first(job, **degrees):
    return ranked(search(job, Space(**{**FEW, **degrees})), 1)[0]


def test_the_ring_s_price_is_the_plan_s_own_and_the_others_stand_beside_it():
    one = first(LLAMA, tp=(2,), cp=(4,))
    ways = context_ways_s(LLAMA, one)
    assert tuple(ways) == CONTEXTS and ways["ring"] == pytest.approx(one.causes_s["cp"])
    (words,) = of_sequences_and_experts(LLAMA, one)
    assert words.startswith("along cp: each rank has two pieces of a sequence (zigzag), ")
    assert "round a ring " in words and "in an all-gather " in words and "by Ulysses " in words


def test_ulysses_is_left_out_where_heads_are_fewer_than_ranks():
    job = replace(LLAMA, model=replace(LLAMA.model, n_heads=8, n_kv_heads=8, head_dim=128))
    one = first(job, tp=(2,), cp=(8,))
    assert "ulysses" not in context_ways_s(job, one)
    assert of_sequences_and_experts(job, one)[0].endswith("; in an all-gather " + _of_ring(job, one))


def _of_ring(job, one):
    seconds = context_ways_s(job, one)["all_gather"]
    return f"{1e3 * seconds:.3g} ms, Ulysses would need 8 heads on each tp rank"


def test_whole_sequences_and_dense_models_need_no_word():
    assert of_sequences_and_experts(LLAMA, first(LLAMA, tp=(2,), cp=(1,))) == []


@pytest.mark.parametrize(
    ("ep", "words"),
    [
        (1, "experts: routers choose all experts equally often; every rank has all of a layer's, so no row leaves it"),
        (8, "each of a token's 8 rows travels by itself inside a domain, and nothing hides it: "),
        (32, "each of a token's 8 rows travels by itself over domains of 8, and nothing hides it: "),
    ],
)
def test_experts_are_said_to_be_even_and_their_rows_to_travel_alone(ep, words):
    job = Job(model=load_model("qwen3_30b_a3b"), cluster=replace(NODE, n_nodes=4), batch=64, sequence=4096)
    (said,) = of_sequences_and_experts(job, first(job, tp=(1,), cp=(1,), ep=(ep,)))
    assert words in said


def test_llama_3_s_long_sequences_have_a_plan_of_about_its_utilisation():
    """Grattafiori et al. 2024, table 4: 16,384 GPUs, tp 8, cp 16, pp 16, dp 8, 131,072 tokens: 38 % of bf16's peak."""
    cluster = replace(NODE, n_nodes=2048)
    job = Job(model=load_model("llama3_1_405b"), cluster=cluster, batch=128, sequence=131_072)
    one = ranked(search(job, Space(tp=(8,), cp=(16,), pp=(16,))), 1)[0]
    assert one.policy["dp"] == 8
    assert one.mfu == pytest.approx(0.38, abs=0.05)
