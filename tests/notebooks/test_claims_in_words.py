"""What lessons say of sizes in words alone, where no expression stands behind a number: computed once more here."""

from __future__ import annotations

import re
from dataclasses import replace

from course_lib import planner
from course_lib.config import load_model
from course_lib.hardware import load_cluster
from course_lib.sim.published import memory_runs
from course_lib.units import GiB
from tools.paths import ROOT


def lesson(number: str) -> str:
    """Its text, without how its numbers were computed, in one line."""
    text = next((ROOT / "notebooks/src").glob(f"{number}_*.py")).read_text(encoding="utf-8")
    return re.sub(r"\s*<!-- =.*?-->", "", text, flags=re.DOTALL)


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
