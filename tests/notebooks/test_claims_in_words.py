"""What lessons say of sizes in words alone, where no expression stands behind a number: computed once more here."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from course_lib import costs, planner
from course_lib.config import ParallelConfig, load_model
from course_lib.costs.model.activations import layer_activations
from course_lib.hardware import load_cluster, wires
from course_lib.sim.collectives import priced
from course_lib.sim.published import memory_runs
from course_lib.units import GiB, MiB
from tools.paths import ROOT


def lesson(number: str) -> str:
    """Its text, without how its numbers were computed, in one line."""
    text = next((ROOT / "notebooks/src").glob(f"{number}_*.py")).read_text(encoding="utf-8")
    return re.sub(r"\s*<!-- =.*?-->", "", text, flags=re.DOTALL)


def test_why_the_rule_counts_too_little_in_lesson_01():
    model, text = load_model("llama3_1_8b"), lesson("01")
    h, kv = model.hidden_size, model.n_kv_heads * model.hidden_size // model.n_heads
    assert "almost a third more than the rule's two matrices of H×4H" in text
    assert 0.3 < 3 * model.ffn_size / (2 * 4 * h) - 1 < 1 / 3
    assert "four heads of queries share one of keys and values" in text and model.n_heads == 4 * model.n_kv_heads
    assert "So attention has five eighths of what the rule counts" in text
    attention, feed_forward = 2 * h**2 + 2 * h * kv, 3 * h * model.ffn_size
    assert attention / (4 * h**2) == 5 / 8
    added, taken = feed_forward - 8 * h**2, 4 * h**2 - attention
    missing = costs.model_parameters(model) - 2 * model.vocab_size * h - model.n_layers * 12 * h**2
    assert "so it adds more than attention takes away: just the half billion" in text and round(missing / 1e9, 1) == 0.5
    assert abs(model.n_layers * (added - taken) / missing - 1) < 1e-3


def test_who_sends_more_and_which_hops_cost_less_in_lesson_02():
    model, text, there = load_model("llama3_1_8b"), lesson("02"), wires(load_cluster("kempner_h100"))
    sent = costs.comm_time("all_reduce", "ring", world_size=4, length=13, itemsize=8).sent_bytes
    assert "Ranks 0 and 3 send a little less than the others" in text
    assert sent[0] == sent[3] < sent[1] == sent[2] < 1.1 * sent[0]
    assert "every fourth leaves a node" in text and there.domain == 4
    whole = {"nbytes": 64 * costs.layer_parameters(model), "ranks": 1000, "wires": there}  # all layers in bfloat16
    ring, hierarchy = (costs.collective_s("all_reduce", way, **whole) for way in ("ring", "hierarchical"))
    assert "Now the ring through all cards wins" in text and ring < hierarchy


def test_how_far_the_formula_is_off_in_lesson_02():
    b200 = {row.nbytes // MiB: row.measured_s / row.by("ring") for row in priced() if row.gpu == "B200"}
    assert "Between 8 and 256 MiB measured times lie a third and more above the formula" in lesson("02")
    assert min(off for size, off in b200.items() if 8 <= size <= 256) > 4 / 3


def test_what_a_bucket_s_limit_saves_in_lesson_03():
    olmo = load_model("olmo_1b")
    tensors = [[olmo.vocab_size * olmo.hidden_size], *[[4 * 2048**2] * 3 + [2048**2] * 4] * olmo.n_layers]
    step = {"forward_s": 0, "backward_s": 0, "world_size": 64, "inside": costs.INFINIBAND, "itemsize": 2}
    in_buckets = len(costs.ddp_time(tensors, **step).ready_s)
    assert "in buckets of 25 MiB still more than half" in lesson("03")
    assert 1 / 2 < in_buckets / sum(map(len, tensors)) < 2 / 3


def test_where_the_hierarchy_helps_in_lesson_03():
    layer = {"nbytes": 2 * costs.layer_parameters(load_model("olmo_1b")), "wires": wires(load_cluster("kempner_h100"))}
    hierarchy_wins = {
        ranks: costs.collective_s("all_reduce", "hierarchical", ranks=ranks, **layer)
        < costs.collective_s("all_reduce", "ring", ranks=ranks, **layer)
        for ranks in (64, 1024)
    }
    assert "on many nodes the hierarchical one (lesson 02)" in lesson("03")
    assert hierarchy_wins == {64: False, 1024: True}  # of the lesson's own bucket, on its own nodes and on many


def fastest(tp: int, recompute: str) -> planner.Ranked:
    """Of lesson 07's job, one sequence at a time, on GPUs in which every layout has room."""
    puhti = load_cluster("puhti_v100")
    roomy = replace(puhti, n_nodes=2, device=replace(puhti.device, usable_gib=80.0))
    job = planner.Job(model=load_model("llama3_1_8b"), cluster=roomy, batch=16, sequence=8192)
    one = {"micro_batch": (1,), "zero_stage": (3,), "recompute": (recompute,)}
    return planner.ranked(planner.search(job, planner.Space(tp=(tp,), pp=(1,), cp=(1,), **one)), 1)[0]


def test_what_the_mesh_costs_in_lesson_07():
    text = lesson("07")
    fsdp, mesh, again, both = (fastest(*way) for way in ((1, "none"), (4, "none"), (1, "layers"), (4, "half")))
    assert "by `plan` (lesson 08) the exposed part costs over a tenth" in text
    assert 0.10 < (mesh.causes_s["dp"] - fsdp.causes_s["dp"]) / fsdp.step_s < 0.125
    assert "falls by about a seventh; a second forward costs over a fifth" in text
    assert 1 / 8 < 1 - fsdp.step_s / mesh.step_s < 1 / 6 and 1 / 5 < 1 - fsdp.step_s / again.step_s < 1 / 4
    assert "though that is as slow as a second forward" in text
    assert 1 <= both.step_s / again.step_s < 1.05


def kept_by(tp: int, *, model: str, sequence: int, gathered: bool = False, shared: bool = False) -> dict[str, int]:
    """Bytes of a layer's activations on a rank, by who shares them."""
    spread, found = ParallelConfig(tp=tp, sequence_parallel=shared), Counter[str]()
    for one in layer_activations(load_model(model), batch=1, sequence=sequence, itemsize=2, fused_norms=True):
        found[one.shared_by] += one.on_rank(spread, keep_gathered=gathered)
    return found


def test_what_tensor_parallelism_leaves_whole_in_lesson_05():
    found = kept_by(8, model="llama3_1_405b", sequence=131072)
    assert "These are two thirds of the blue part" in lesson("05")
    assert abs((found["sequence"] + found["gathered"]) / sum(found.values()) - 2 / 3) < 0.02


def test_what_a_kept_input_costs_in_lesson_07():
    plain, kept, again = (
        sum(kept_by(4, model="llama3_1_8b", sequence=8192, **how).values())
        for how in ({}, {"shared": True, "gathered": True}, {"shared": True})
    )
    assert "To keep it would undo half of the gain" in lesson("07")
    assert abs((kept - again) / (plain - again) - 1 / 2) < 0.01


def test_how_many_degrees_are_possible_in_lesson_08():
    exponents = range(15)
    fit = sum(a + b + c <= 14 for a in exponents for b in exponents for c in exponents)
    assert "Only every fifth choice does" in lesson("08") and abs(fit / 15**3 - 1 / 5) < 0.005


def test_what_a_faster_network_chooses_in_lesson_08():
    cluster = replace(load_cluster("dgx_h100"), n_nodes=2048)
    card = replace(cluster.card, bandwidth_bytes_per_s=2 * cluster.card.bandwidth_bytes_per_s)
    model, fast = load_model("llama3_1_405b"), replace(cluster, card=card)
    job = planner.Job(model=model, cluster=fast, batch=2048, sequence=8192)  # the explorer's, with network × 2
    best = planner.ranked(planner.search(job, planner.Space(cp=(1,))), 5)
    by_stages = {one.policy["pp"]: one for one in reversed(best)}
    assert "<code>pp</code> 8 wins with ZeRO 3, and <code>pp</code> 4 is as good" in lesson("08")
    assert (best[0].policy["pp"], best[0].policy["zero_stage"]) == (8, 3)
    assert by_stages[4].step_s / by_stages[8].step_s < 1.005


def test_what_measured_peaks_say_of_room_in_lesson_08():
    cluster = replace(load_cluster("dgx_h100"), n_nodes=2048)
    job = planner.Job(model=load_model("llama3_1_405b"), cluster=cluster, batch=2048, sequence=8192, reserve=0)
    three = planner.ranked(planner.search(job, planner.Space(cp=(1,))), 3)
    sizes = {one.policy["pp"]: one.memory_bytes for one in three}
    assert list(sizes) == [8, 32, 16] and round(1 - three[0].step_s / three[2].step_s, 2) == 0.05
    room, runs = cluster.device.usable_bytes, memory_runs()
    assert room - 3 * GiB < sizes[8] < room
    die = {
        pp: [run.source for run in runs if run.memory_bytes / run.seen() > room / size] for pp, size in sizes.items()
    }
    found = re.search(
        r"against (\d+) measured peaks as well\. If they erred .*? `pp` 8 would run out of memory in (\d+) of "
        r"these cases, and `pp` 16 in (\d+)\.",
        lesson("08"),
    )
    assert found and [*map(int, found.groups())] == [len(runs), len(die[8]), len(die[16])]
