"""What lessons say of sizes in words alone, where no expression stands behind a number: computed once more here."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np

from course_lib import costs, planner, sim
from course_lib.config import ParallelConfig, load_model
from course_lib.costs.model.activations import layer_activations
from course_lib.hardware import load_cluster, wires
from course_lib.schedules import Backward
from course_lib.sim.collectives import priced
from course_lib.sim.fit import fit
from course_lib.sim.predict import factor_of, predict_rows
from course_lib.sim.published import measured_runs, published_rows
from course_lib.units import GiB, MiB
from course_lib.viz.planning.step_timeline import exact_step_of
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
    assert "by `plan` (lesson 08) the exposed part costs an eighth" in text
    assert 0.12 < (mesh.causes_s["dp"] - fsdp.causes_s["dp"]) / fsdp.step_s < 0.14
    assert "falls by over a sixth; a second forward costs over a fifth" in text
    assert 1 / 6 < 1 - fsdp.step_s / mesh.step_s < 1 / 5 and 1 / 5 < 1 - fsdp.step_s / again.step_s < 1 / 4
    assert "though that is slower than a second forward" in text
    assert 1.02 < both.step_s / again.step_s < 1.1


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


def explored(network: float) -> dict[int, planner.Ranked]:
    """The best layouts of the explorer's job by stages, with so many times the network."""
    cluster = replace(load_cluster("dgx_h100"), n_nodes=2048)
    card = replace(cluster.card, bandwidth_bytes_per_s=network * cluster.card.bandwidth_bytes_per_s)
    cluster = replace(cluster, card=card)
    job = planner.Job(model=load_model("llama3_1_405b"), cluster=cluster, batch=2048, sequence=8192)
    best = planner.ranked(planner.search(job, planner.Space(cp=(1,))), 4)
    return {one.policy["pp"]: one for one in best}


def test_what_a_slower_and_a_faster_network_choose_in_lesson_08():
    slow, fast = explored(0.25), explored(2)
    assert "<code>pp</code> 16 still wins, but <code>pp</code> 64 is as good" in lesson("08")
    assert [*slow][:2] == [16, 64] and slow[64].step_s / slow[16].step_s < 1.02
    assert "<code>pp</code> 1 wins with ZeRO 3, and 2, 4 and 8 are as good" in lesson("08")
    assert [*fast] == [1, 2, 4, 8] and fast[8].step_s / fast[1].step_s < 1.02
    assert {one.policy["zero_stage"] for one in fast.values()} == {3}
    assert all(0.9 < one.causes_s["dp"] < 2.2 and one.causes_s["recompute"] == 0 for one in fast.values())


def search_08(*, reserve: float = 0.1, **space: tuple[int, ...] | tuple[str, ...]) -> planner.Found:
    """Lesson 08's job, a tenth of each GPU left free."""
    cluster = replace(load_cluster("dgx_h100"), n_nodes=2048)
    job = planner.Job(model=load_model("llama3_1_405b"), cluster=cluster, batch=2048, sequence=8192, reserve=reserve)
    return planner.search(job, planner.Space(**space))


def whole_sequences(*, reserve: float, **space: tuple[int, ...] | tuple[str, ...]) -> list[planner.Ranked]:
    """The best of lesson 08's job, sequences whole."""
    return planner.ranked(search_08(reserve=reserve, cp=(1,), **space), 3)


def test_what_room_is_worth_in_lesson_08():
    three = whole_sequences(reserve=0)
    assert [one.policy["pp"] for one in three] == [8, 16, 32]
    assert "Now `pp` 8 wins, by a twelfth, and leaves less than three GiB" in lesson("08")
    assert abs(1 - three[0].step_s / three[1].step_s - 1 / 12) < 0.005
    room = load_cluster("dgx_h100").device.usable_bytes
    assert room - 3 * GiB < three[0].memory_bytes < room
    assert "`pp` 8 is a coin" in lesson("08") and abs(three[0].fit_chance - 0.5) < 0.05 < 0.95 < three[1].fit_chance


def test_what_each_colleague_loses_in_lesson_08():
    ways = ({"tp": (8,), "pp": (32,)}, {"tp": (8,), "pp": (1,)}, {})
    first, second, fourth = (whole_sequences(reserve=0.1, **way)[0] for way in ways)
    assert "the second colleague's step is a sixth longer than the fourth's" in lesson("08")
    assert abs(second.step_s / fourth.step_s - 1 - 1 / 6) < 0.01 and second.step_s < first.step_s
    assert "His loss is all messages along `dp`" in lesson("08")
    assert second.causes_s["dp"] - fourth.causes_s["dp"] > second.step_s - fourth.step_s
    assert "The first one's is all bubble, twice as long as the fourth's" in lesson("08")
    assert abs(first.causes_s["bubble"] / fourth.causes_s["bubble"] - 2) < 0.05


def test_how_much_later_the_others_end_in_lesson_08():
    text, a_day = lesson("08"), 15.6e12 / (2048 * 8192) / planner.LLAMA_3_STOPS.least_goodput / planner.DAY_S
    ways = ({"tp": (8,), "pp": (32,)}, {"tp": (8,), "pp": (1,)}, {"tp": (2,), "pp": (32,)}, {})
    first, second, third, fourth = (a_day * whole_sequences(reserve=0.1, **way)[0].step_s for way in ways)
    assert "The third takes over three months longer than the first" in text and 93 < third - first < 120
    assert "Meta's degrees save over twelve days" in text and 12 < second - fourth < 13
    assert "Cut sequences would save almost two weeks" in text and 12 < fourth - a_day * search_08().step_s[0] < 14


def test_what_one_finds_by_hand_in_lesson_08():
    text, run = lesson("08"), next(run for run in sim.published_runs() if run.name == "mlm21t1-005")
    times = sim.step_times(run.model, sim.rates_of(run.machine, run.software), run.policies)
    multiply_s = 8 * 39.1e9 * 1536 * 2048 / (512 * 0.85 * 312e12)
    tp_s = 6 * 24 * 12 * 2 * 7 / 8 * 4 * 2048 * run.model.hidden_size * 2 / (2 / 3 * 300e9)
    bubble_s = (multiply_s + tp_s) / 12
    assert "Seven tenths of the step are explained" in text
    assert abs((multiply_s + tp_s + bubble_s) / run.step_s - 0.7) < 0.02
    assert "slightly over six eighths" in text and 1 < times.matmul[0] / (6 / 8 * multiply_s) < 1.06
    assert "nearly as much | your two thirds were slightly low" in text and 0.95 < times.tp[0] / tp_s < 1
    assert "| bubble | more |" in text and times.bubble[0] > 1.1 * bubble_s


def test_why_eight_ranks_lose_in_lesson_08():
    text, winner, second = lesson("08"), *whole_sequences(reserve=0.1)[:2]
    eight = whole_sequences(reserve=0, pp=(8,), zero_stage=(1,), recompute=("half",))[0]
    assert "that makes 76" in text and round(eight.memory_bytes / GiB) == 76
    assert "the winner has ZeRO 1, and the shortest pipeline that then fits without recomputing everything" in text
    assert winner.policy["pp"] == 16 and winner.policy["zero_stage"] == second.policy["zero_stage"] == 1
    assert eight.memory_bytes > 0.9 * load_cluster("dgx_h100").device.usable_bytes
    more_s = {cause: second.causes_s[cause] - winner.causes_s[cause] for cause in ("recompute", "bubble", "tp", "dp")}
    assert "`recompute` costs a little more than `bubble` saves" in text
    assert 0 < more_s["recompute"] + more_s["bubble"] < 0.15
    assert "and messages along `tp` and `dp` take longer" in text and min(more_s["tp"], more_s["dp"]) > 0.05


def test_how_long_the_first_rank_waits_in_lesson_08():
    computed = exact_step_of(search_08(cp=(1,)), 0).computed[0]
    waits_s = {one.instruction: one.start_s - before.end_s for before, one in pairwise(computed)}
    longest = max(waits_s, key=lambda one: waits_s[one])
    assert "it waits almost a second, until the first gradient has come back" in lesson("08")
    assert 0.75 < waits_s[longest] < 1 and longest == next(one for one in waits_s if isinstance(one, Backward))


def test_what_was_fitted_to_whom_in_lesson_08():
    text, constants = lesson("08"), sim.load_constants().values
    assert text.count("ore than eighty") == 2 and 80 < len(constants) < 90
    runs = {one["group"]: one["rows"] for one in sim.committed_records() if one["test"] == "sources"}
    few = [group for group, rows in runs.items() if int(rows) < 8]
    assert "five sources that have too few runs to be drawn" in text and len(few) == 5
    theirs = [one for one in sim.published_runs() if one.source == "internevo"]
    unknown = [replace(one, software=sim.nothing_known(one.software)) for one in theirs]
    assert "has runs that are all slower than the formula thinks" in text
    assert sim.errors(sim.table_of(unknown), constants).max() < 0


def test_what_three_own_steps_are_worth_in_lesson_08():
    middles = (one for one in sim.committed_records() if one["group"] == "median of groups" and one["median"])
    off = {one["test"]: float(one["median"]) for one in middles}
    mended = {out: 1 - off[f"{out}, three own rows"] / off[f"{out}, without"] for out in ("stacks", "sources")}
    assert "three measured steps take away more than a third of the error. If somebody has, they" in lesson("08")
    assert 1 / 3 < mended["stacks"] < 1 / 2 and mended["sources"] < 0.15


def test_what_one_factor_mends_in_lesson_12b():
    rows = [one for one in published_rows() if one["source_key"] == "mlm20" and "A100" in one["hardware"]["gpu"]]
    rows = [one | {"source": {"title": "a loop of our own"}, "source_key": "ours"} for one in rows]
    factor = factor_of(measured_runs(rows[:3]))
    before, after = (
        np.array([one["step_s"] / one["measured_step_s"] - 1 for one in predict_rows(rows[3:], factor=times)])
        for times in (1.0, factor)
    )
    assert "most of its steps are too short, by about a twentieth" in lesson("12b")
    assert (before[:-1] < 0).all() and abs(np.median(before) + 0.05) < 0.01
    assert (
        "One factor has mended four of the five" in lesson("12b") and (abs(after[:-1]) < 0.6 * abs(before[:-1])).all()
    )
    assert "There the prediction was too long before, and the factor has made it longer still" in lesson("12b")
    assert 0 < before[-1] < after[-1]


def records(test: str) -> list[dict[str, str]]:
    """What the committed table says of left-out sources under this name."""
    return [one for one in sim.committed_records() if one["test"] == test]


def test_how_little_was_learnt_by_heart_in_lesson_08():
    text = lesson("08")
    left_out, seen = (
        {one["group"]: float(one["median"]) for one in records(test) if int(one["rows"]) >= 8}
        for test in ("sources", "random rows")
    )
    drawn = left_out.keys() - {"all rows", "median of groups"}
    assert "Left out, most sources are at most twice as far off" in text
    assert sum(left_out[one] <= 2 * seen[one] for one in drawn) > 0.7 * len(drawn)
    assert "Now look at the two lowest lines. DeepSpeed's runs on Azure are far off only if they were left out" in text
    assert sorted(drawn, key=lambda one: left_out[one])[-2:] == ["dsazure", "moezoo"]
    assert left_out["dsazure"] > 3 * seen["dsazure"] and seen["moezoo"] > 0.2


def test_which_way_left_out_runs_err_in_lesson_08():
    text = lesson("08")
    assert "for of the runs that were off by much, most were slower than predicted" in text
    note = next(one["note"] for one in records("kinds") if one["group"] == "all rows")
    assert int(re.search(r"(\d+)% were slower than predicted", note)[1]) > 75
    assert "the predicted steps are too long, and the longer the sequence, the more" in text
    assert "Some of its short ones are farther off still" in text
    runs = sim.published_runs()
    zoo = [run for run in runs if run.source == "moezoo"]
    values = fit([run for run in runs if run.source != "moezoo"], start=sim.load_constants().values)
    logs, lengths = sim.errors(sim.table_of(zoo), values), np.array([run.policy["sequence"] for run in zoo])
    middle = [float(np.median(logs[lengths == length])) for length in sorted({*lengths.tolist()} - {4096})]
    assert len(middle) == 4 and middle[0] > 0 and all(shorter < longer for shorter, longer in pairwise(middle))
    assert max(logs[lengths == 4096]) > max(logs[lengths > 4096])


def test_how_often_the_order_is_right_in_lesson_08():
    text, (near, middle, far) = lesson("08"), (float(one["covered"]) for one in records(sim.ORDER))
    assert "From two to ten it was right in seven pairs of ten, and beyond in almost nine" in text
    assert 0.5 < near < 0.6 and abs(middle - 0.7) < 0.03 and 0.85 <= far < 0.9
    average, *each = (float(one["median"]) for one in records(sim.SWEEP))
    assert "In half of the sweeps the favourite is the fastest layout, or a hair behind it" in text and average < 0.01
    assert "Where it fails, it fails by a lot" in text and max(each) > 0.2


def test_what_cut_sequences_and_half_of_the_memory_cost_in_lesson_08():
    text, found = lesson("08"), search_08()
    meta = found.place_of(tp=8, pp=16, dp=128)
    cut, whole = planner.described(found, [0, found.distinct[meta]])
    assert "By our formulas two dozen sets of degrees are faster" in text and meta == 24
    assert "Its bubble is half as long" in text and abs(whole.causes_s["bubble"] / cut.causes_s["bubble"] - 2) < 0.2
    launch = cut.causes_s["launch"] / whole.causes_s["launch"]
    assert "launching kernels takes almost twice as long" in text and 1.7 < launch < 2
    half, seventh = (found.step_s[np.argmax(found.memory_bytes <= found.memory_bytes[0] / part)] for part in (2, 7))
    assert "half of it costs a seventh of the time" in text and abs(half / found.step_s[0] - 1 - 1 / 7) < 0.01
    assert "makes a step half as long again" in text and abs(seventh / found.step_s[0] - 1.5) < 0.05


def test_which_way_megatron_s_rows_are_off_in_lesson_08():
    rows = [one for one in sim.published_runs() if one.source == "mlm21t1"]
    said = [sim.step_times(one.model, sim.rates_of(one.machine, one.software), one.policies).total[0] for one in rows]
    off = np.array(said) / [one.step_s for one in rows] - 1
    assert "No row is off by a tenth, but all signs agree" in lesson("08") and -0.1 < off.min() <= off.max() < 0
