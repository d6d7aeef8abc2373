"""A proof row of the planner: no layout is lost, Meta's is found, and the formula that chose agrees with the lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from course_lib.cli.proof import Row, Rows
from course_lib.config import load_model
from course_lib.hardware import load_cluster
from course_lib.planner.policy_search import Found, search
from course_lib.planner.retime import retimed
from course_lib.planner.space import Job, Space

_PUBLISHED = {"dp": 128, "tp": 8, "pp": 16, "cp": 1}  # Grattafiori et al. 2024, table 4, sequences of 8,192 tokens
_RETIMED = 4  # sets of degrees, the fastest
_TOLERANCE = 0.02  # of a step: from a real cluster the formula is off by more


def _plan_rows(world_size: int, text: bytes) -> Iterator[Row]:
    """Llama 3.1 405B on the cluster that trained it."""
    cluster = replace(load_cluster("dgx_h100"), n_nodes=2048)
    job = Job(model=load_model("llama3_1_405b"), cluster=cluster, batch=2048, sequence=8192)
    yield plan_row(search(job), search(job, Space(cp=(1,))))


def plan_row(found: Found, uncut: Found) -> Row:
    """What a search found, and the same search where no sequence may be cut, as that run had none.

    Raises: AssertionError if layouts are lost, or others are faster than the published one.
    """
    told = len(found) + sum(found.rejected.values())
    if told != found.n_tried:
        raise AssertionError(f"plan: {found.n_tried:,} layouts tried, and {told:,} kept or rejected by a rule")
    place = uncut.place_of(**_PUBLISHED)
    if place != 0:
        before = "no layout has" if place is None else f"{place} other sets of degrees are faster than"
        raise AssertionError(f"plan: {before} the degrees that Meta published")
    recheck = retimed(uncut, uncut.distinct[:_RETIMED])
    return Row(
        technique=f"plan, {found.n_tried:,} layouts",
        world_size=0,
        deviation=abs(recheck.most_off.off),
        tolerance=_TOLERANCE,
        traffic=None,
        predicted=None,
        step_s=found.search_s,
        note=(
            f"plan: {found.job.model.name} on {found.job.cluster.n_gpus:,} GPUs, {len(found):,} layouts are possible; "
            f"the fastest that cuts no sequence has Meta's degrees, {recheck.policies[0].name}"
        ),
    )


ROWS = Rows(lesson=8, prove=_plan_rows)
