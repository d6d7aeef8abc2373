"""The search for policies: against one policy after the other, its rules, its reasons, and what it says of nothing."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from tools.paths import ROOT

sys.path.insert(0, str(ROOT / "tests" / "benchmarks"))

from plan_search import LARGE as LLAMA
from plan_search import NARROW, NODE, SMALL, plain

from course_lib.config import LLAMA_3_1_8B, load_model
from course_lib.hardware import load_cluster
from course_lib.planner import (
    RULES,
    Combinations,
    Job,
    Space,
    broken_rules,
    policy_name,
    ranked,
    retimed,
    search,
    toy_of,
    why_slower,
)
from course_lib.sim.policies import SCHEDULES
from course_lib.sim.simulate import simulate


@pytest.fixture(scope="module")
def small():
    return search(SMALL, NARROW)


@pytest.fixture(scope="module")
def llama():
    return search(LLAMA)


def test_the_search_finds_what_plain_loops_find(small):
    expected = plain(SMALL)
    assert len(small) == len(expected) > 40
    assert small.step_s == pytest.approx([step_s for step_s, _ in expected], rel=1e-9)
    names = {policy_name(small.policies, index) for index in range(len(small))}
    assert names == {name for _, name in expected}


def test_what_is_rejected_and_what_is_possible_are_all_that_was_tried(small, llama):
    for found in (small, llama):
        assert found.n_tried == sum(found.rejected.values()) + len(found)
        assert {*found.rejected} == {*RULES}
        assert (np.diff(found.step_s) >= 0).all() and (found.memory_bytes <= found.job.room_bytes).all()
    assert llama.n_tried > 900_000 and llama.rejected["layers"] > 0 and llama.rejected["memory"] > 0


def test_a_million_ways_take_a_second_of_the_processor_s_time():
    search(SMALL, NARROW)  # modules and constants are loaded
    started = time.process_time()
    found = search(LLAMA)
    assert found.n_tried / (time.process_time() - started) > 1e6


def test_llama_3_s_own_degrees_are_among_the_first_without_a_cut_of_the_sequence():
    """Grattafiori et al. 2024, Table 4: tp=8, cp=1, pp=16, dp=128 on 16,384 GPUs with 8,192 tokens."""
    found = search(LLAMA, Space(cp=(1,)))
    assert found.place_of(tp=8, pp=16, dp=128) in range(5)
    assert found.place_of(tp=16) is None


def test_the_front_is_what_nothing_beats(small):
    front = small.front(most=1e9)
    memory, step_s = small.memory_bytes, small.step_s
    assert (np.diff(memory[front]) > 0).all() and (np.diff(step_s[front]) < 0).all()
    for index in range(len(small)):
        beaten = any(memory[k] <= memory[index] and step_s[k] <= step_s[index] for k in front)
        assert beaten, index
    assert {*small.front(most=1.5)} == {index for index in front if step_s[index] <= 1.5 * step_s[0]}


def test_the_lists_time_the_best_as_the_closed_form_does_and_say_by_how_much_not(small):
    recheck = retimed(small, range(0, len(small), 10))
    assert [one.exact_s for one in recheck.policies] == sorted(one.exact_s for one in recheck.policies)
    for one in recheck.policies:
        assert (one.name, one.closed_s) == (policy_name(small.policies, one.index), small.step_s[one.index])
        assert one.exact_s == pytest.approx(one.closed_s, rel=0.1)
    assert recheck.median_off <= abs(recheck.most_off.off) < 0.1
    assert 1 <= recheck.best_before <= len(recheck.policies)
    assert sorted(one.index for one in retimed(small).policies) == [*range(min(100, len(small)))]


def test_a_policy_is_described_and_its_causes_are_its_time(small):
    first, second = ranked(small, 2)
    assert first.step_s == small.step_s[0] and first.memory_bytes == pytest.approx(small.memory_bytes[0])
    assert sum(first.causes_s.values()) == pytest.approx(first.step_s)
    assert first.low_s < first.step_s < first.high_s and 0 < first.mfu < 1
    assert [first.policy[name] for name in ("tp", "pp", "cp")] != [second.policy[name] for name in ("tp", "pp", "cp")]


def test_why_the_next_one_loses_is_said_by_cause(small):
    first, *_ = ranked(small, 1)
    causes = {**first.causes_s, "tp": first.causes_s["tp"] + 0.5 * first.step_s, "bubble": 0.0}
    loser = replace(first, step_s=sum(causes.values()), causes_s=causes)
    assert why_slower(loser, first).startswith(f"{loser.step_s / first.step_s - 1:.1%} slower: ")
    assert "more for messages along tp" in why_slower(loser, first)
    assert "0.0% slower: no cause by more than 2% of a step; most for " in why_slower(first, first)


@pytest.mark.parametrize(
    ("degrees", "rules"),
    [
        ({"tp": 8, "pp": 16}, []),
        ({"tp": 3}, ["ranks", "heads", "kv heads", "widths", "sequence"]),
        ({"tp": 16}, ["bandwidth"]),
        ({"pp": 128}, ["layers"]),
        ({"pp": 64}, []),
        ({"cp": 16384}, ["sequence"]),
        ({"micro_batch": 8}, ["batch"]),
        ({"zero_stage": 2, "pp": 16}, ["zero"]),
        ({"ep": 2}, ["experts"]),
    ],
)
def test_each_rule_is_broken_by_what_breaks_it(degrees, rules):
    job = replace(LLAMA, batch=16384)
    assert broken_rules(job, **degrees) == [RULES[rule] for rule in rules]


def test_a_model_with_experts_is_spread_over_them():
    job = Job(model=load_model("mixtral_8x7b"), cluster=replace(NODE, n_nodes=4), batch=256, sequence=4096)
    found = search(job, Space(cp=(1,), zero_stage=(1,), schedule=("1f1b",), recompute=("none",)))
    assert max(one.policy["ep"] for one in ranked(found, 3)) > 1
    assert {one.policy["ep"] for one in ranked(found, len(found))} <= {1, 2, 4, 8}


def test_where_nothing_fits_the_nearest_says_what_it_lacks():
    found = search(replace(LLAMA, cluster=NODE, batch=8))
    assert len(found) == 0 and found.nearest.broken == ("memory",) and found.nearest.lacking_bytes > 5e11
    with pytest.raises(ValueError, match=r"^plan: Llama 3.1 405B on 8 GPUs: none of .* room; nearest: tp=8, .* GiB$"):
        ranked(found)


def test_where_nothing_is_legal_the_nearest_breaks_the_fewest_rules():
    job = Job(model=LLAMA_3_1_8B, cluster=replace(NODE, n_nodes=3), batch=7, sequence=8192)
    found = search(job, Space(pp=(5,)))
    assert found.nearest.broken and found.rejected["ranks"] == found.n_tried
    found = search(replace(job, cluster=replace(NODE, n_nodes=16)), Space(pp=(1,), cp=(1,)))
    assert found.nearest.broken == ("batch",) and found.nearest.policies.one(0)["dp"] > 7


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: replace(SMALL, batch=0),
            "plan: batch=0; a step has sequences, and a sequence tokens; give batch ",
        ),
        (lambda: replace(SMALL, model=load_model("gpt3_175b")), "ModelConfig 'GPT-3 175B': sequence=8192; "),
        (
            lambda: Space(tp=()),
            "plan: tp=(); tp takes one or several whole numbers from 1 to ",
        ),
        (lambda: Space(pp=(0,)), "plan: pp=(0,); pp takes one or several whole numbers from 1 to "),
        (lambda: Space(zero_stage=(4,)), "plan: zero_stage=(4,); zero_stage takes one or several from 0, 1, 2, 3; "),
        (lambda: Space(recompute=("some",)), "plan: recompute=('some',); recompute takes one or several from none, "),
        (lambda: Space(schedule=("interleaved",), stages_per_rank=(1,)), "plan: schedule=('interleaved',) with "),
    ],
)
def test_what_nobody_can_plan_is_refused(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value).startswith(message)


def test_every_degree_above_1_stays_above_1_in_the_likeness():
    one = Combinations(LLAMA, Space(tp=(8,), pp=(16,), cp=(2,))).policies(np.array([0]), np.array([0])).one(0)
    one |= {"schedule": SCHEDULES.index("interleaved"), "stages_per_rank": 4, "zero_stage": 1, "recompute": 3}
    toy = toy_of(one)
    assert toy.overrides == (
        *("pp=2", "dp=2", "tp=2", "zero_stage=1", "sequence_parallel=regather", "schedule=interleaved"),
        *("microbatches=4", "stages_per_rank=2", "model.n_layers=4", "recompute=layers", "batch=8"),
    )
    assert [words.partition(":")[0] for words in toy.left_out] == ["cp=2", "recompute=half"]
    assert toy.left_out[0].endswith("all these degrees need 16 ranks, and this likeness has at most 8")
    assert toy_of(one, ranks=16).overrides[:4] == ("pp=2", "dp=2", "cp=2", "tp=2")
    shared = toy_of({**one, "zero_stage": 3})
    assert "zero_stage" not in " ".join(shared.overrides) and shared.left_out[1].startswith(
        "zero_stage=3: under a pipe"
    )
    alone = toy_of({**one, "pp": 1, "tp": 1, "cp": 1, "zero_stage": 3, "recompute": 4})
    assert alone == (("dp=8", "zero_stage=3", "accumulation=2", "recompute=layers", "batch=16"), ())
    long = toy_of({**one, "pp": 1, "dp": 1, "tp": 1, "cp": 8, "recompute": 0})
    assert long == (("cp=8", "zero_stage=1", "accumulation=2", "batch=2"), ())
    with pytest.raises(ValueError, match=r"^toy_of: 8 ranks needed, 4 given; "):
        toy_of(one, ranks=4)


@pytest.mark.parametrize(
    ("degrees", "told"),
    [
        ({"dp": 32, "ep": 8}, ("dp=8", "ep=4", "model=tiny_mixtral", "model.n_experts=8")),
        ({"dp": 8, "ep": 8}, ("dp=8", "ep=8", "model=tiny_mixtral", "model.n_experts=16")),
        ({"dp": 64, "ep": 8, "cp": 2}, ("dp=4", "cp=2", "ep=2", "model=tiny_mixtral", "model.n_experts=4")),
        ({"dp": 4, "ep": 8, "tp": 2}, ("dp=4", "tp=2", "ep=4", "model=tiny_mixtral", "model.n_experts=8")),
    ],
)
def test_replicas_of_the_likeness_share_experts(degrees, told):
    """ep is counted inside dp: where the policy has several groups that share experts, so has its likeness."""
    one = Combinations(LLAMA, Space(tp=(1,), pp=(1,), cp=(1,))).policies(np.array([0]), np.array([0])).one(0)
    toy = toy_of({**one, "zero_stage": 0, "sequence_parallel": False, "n_microbatches": 1, **degrees})
    dp = int(told[0].removeprefix("dp="))
    assert toy == ((*told, f"batch={dp}"), ())


def test_experts_of_ranks_that_are_no_replicas_are_left_out():
    one = Combinations(LLAMA, Space(tp=(8,), pp=(1,), cp=(1,))).policies(np.array([0]), np.array([0])).one(0)
    toy = toy_of({**one, "dp": 1, "ep": 8})
    assert [words.partition(":")[0] for words in toy.left_out] == ["ep=8"]
    assert not any(words.startswith(("ep=", "model.n_experts")) for words in toy.overrides)


FAST = load_cluster("dgx_h100")
SLOW = replace(FAST, card=replace(FAST.card, bandwidth_bytes_per_s=FAST.card.bandwidth_bytes_per_s / 8))
TWO_WAYS = ((1, "step"), (2, "microbatch"))


def test_zero_2_reduces_after_each_micro_batch_where_that_is_asked_for():
    """Beside a pipeline, too: a rank keeps its piece of the gradients, and pays with messages.

    On a fast network these hide, and less is added up; on a slow one they do not.
    """
    job = Job(model=LLAMA_3_1_8B, cluster=replace(SLOW, n_nodes=4), batch=128, sequence=8192)
    plain = {"tp": (1,), "pp": (2,), "cp": (1,), "micro_batch": (1,), "recompute": ("none",), "schedule": ("1f1b",)}
    at_the_end, each = (search(job, Space(**plain, zero_stage=(zero,), reduce=(name,))) for zero, name in TWO_WAYS)
    assert (len(at_the_end), len(each)) == (1, 1) and each.policies.one(0)["n_microbatches"] == 8
    whole, cut = (simulate(job, found.policies).memory.gradients[0] for found in (at_the_end, each))
    assert cut == pytest.approx(whole / 16, rel=1e-6)
    assert at_the_end.memory_bytes[0] - each.memory_bytes[0] == pytest.approx(whole * 15 / 16, rel=0.07)
    assert each.step_s[0] > at_the_end.step_s[0]
    assert search(job, Space(**plain, zero_stage=(1, 3), reduce=("microbatch",))).rejected["reduce"] == 2
    assert search(job, Space(**plain, zero_stage=(2,))).rejected["zero"] == 1
    both = search(job, Space(**plain, zero_stage=(1, 2), reduce=("step", "microbatch")))
    assert len(both) == 2


def test_hsdp_shares_within_a_domain_and_pays_with_memory():
    """On a slow network fewer bytes cross it; what a rank holds grows as there are fewer to share with."""
    slow = replace(SLOW, n_nodes=8)
    job = Job(model=LLAMA_3_1_8B, cluster=slow, batch=128, sequence=8192)
    plain = {"tp": (1,), "pp": (1,), "cp": (1,), "zero_stage": (3,), "micro_batch": (1,), "recompute": ("none",)}
    everywhere, inside = (search(job, Space(**plain, shards=(name,))) for name in ("all", "domain"))
    assert (int(everywhere.policies.one(0)["shards"]), int(inside.policies.one(0)["shards"])) == (64, 8)
    assert inside.step_s[0] < everywhere.step_s[0] and inside.memory_bytes[0] > everywhere.memory_bytes[0]
    assert policy_name(inside.policies, 0) == "dp=64 zero_stage=3 shards=8, 2 micro-batches of 1"
    both = search(job, Space(**plain, shards=("all", "domain")))
    assert len(both) == len(everywhere) + len(inside) and both.step_s[0] == inside.step_s[0]
    one_node = replace(job, cluster=replace(slow, n_nodes=1), batch=16)
    assert search(one_node, Space(**plain, shards=("domain",))).policies.one(0)["shards"] == 8
    with pytest.raises(ValueError, match="plan: shards=.'node',.; shards takes one or several from all, domain"):
        Space(shards=("node",))
