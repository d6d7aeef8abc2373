"""The search for policies against a plain enumeration that asks the same closed form for one policy after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from measure import Comparison, Verdict, seconds_of
from page import TIMES, Benchmark, comparison_row, gate_row, table

from course_lib.config import LLAMA_3_1_8B, load_model
from course_lib.hardware import load_cluster
from course_lib.planner import Job, Space, policy_name, search
from course_lib.sim.policies import RECOMPUTE, SCHEDULES, Policies
from course_lib.sim.simulate import simulate

NODE = load_cluster("dgx_h100")
SMALL = Job(model=LLAMA_3_1_8B, cluster=NODE, batch=16, sequence=8192)
LARGE = Job(model=load_model("llama3_1_405b"), cluster=replace(NODE, n_nodes=2048), batch=2048, sequence=8192)
NARROW = Space(micro_batch=(1, 2), recompute=("none", "layers"), schedule=("1f1b", "interleaved"), stages_per_rank=(2,))
ROUNDS = 3


@dataclass(frozen=True, kw_only=True)
class SearchRun:
    """Both on the same small job, and ours alone on a large one."""

    comparison: Comparison
    policies: int  # of the small job, that both find
    large_tried: int
    large_s: tuple[float, ...]  # by round

    @property
    def per_s(self) -> float:
        """Ways of the large job that are looked at in a second, in the best round."""
        return self.large_tried / min(self.large_s)


def plain(job: Job) -> list[tuple[float, str]]:
    """Every policy of `NARROW` that is legal and fits, fastest first: seconds and name."""
    found = []
    for one in legal(job):
        said = simulate(job, one)
        if said.memory.total[0] <= job.room_bytes:
            found.append((float(said.step_s[0]), policy_name(one, 0)))
    return sorted(found)


def legal(job: Job) -> Iterator[Policies]:
    """One policy at a time, by loops; for a model of 2^k layers and heads on 2^k GPUs."""
    n, layers = job.cluster.n_gpus, job.model.n_layers
    powers = [2**k for k in range(n.bit_length())]
    for tp, pp, cp in product(powers, powers, powers):
        if n % (tp * pp * cp) or tp > job.cluster.gpus_per_node or layers % pp or job.sequence % (cp * tp):
            continue
        dp = n // (tp * pp * cp)
        turns = (("1f1b", 1), ("interleaved", 2))
        for zero, micro, recompute, (schedule, v) in product(range(4), (1, 2), ("none", "layers"), turns):
            m = job.batch // (dp * micro)
            in_turn = v == 1 or (pp > 1 and layers % (pp * v) == 0 and m % pp == 0)
            shares = zero == 0 or (dp * cp > 1 and (zero != 2 or m == 1))
            if m and job.batch % (dp * micro) == 0 and in_turn and shares:
                yield Policies(
                    dp=np.array([dp]),
                    tp=tp,
                    pp=pp,
                    cp=cp,
                    zero_stage=zero,
                    shards=dp * cp,
                    sequence_parallel=tp > 1,
                    micro_batch=micro,
                    n_microbatches=m,
                    sequence=job.sequence,
                    recompute=RECOMPUTE.index(recompute),
                    schedule=SCHEDULES.index(schedule),
                    stages_per_rank=v,
                )


def compare() -> list[SearchRun]:
    """Search and enumerate in turn; both must find the same."""
    expected = plain(SMALL)
    found = search(SMALL, NARROW)
    assert np.allclose(found.step_s, [step_s for step_s, _ in expected])
    rounds = [(seconds_of(lambda: search(SMALL, NARROW)), seconds_of(lambda: plain(SMALL))) for _ in range(ROUNDS)]
    ours, theirs = zip(*rounds, strict=True)
    large = [search(LARGE) for _ in range(ROUNDS)]
    return [
        SearchRun(
            comparison=Comparison(name="8 GPUs, Llama 3.1 8B", ours_s=ours, peer_s=theirs),
            policies=len(expected),
            large_tried=large[0].n_tried,
            large_s=tuple(one.search_s for one in large),
        )
    ]


def gates(runs: list[SearchRun]) -> list[list[str]]:
    """How many times faster, and how many ways a second."""
    figure = "search for policies against one after the other"
    rows = [gate_row(Verdict(figure=figure, ratio=run.comparison.ratio, gate=10, goal=100)) for run in runs]
    for run in runs:
        figure = f"ways looked at per second, {LARGE.model.name} on {LARGE.cluster.n_gpus:,} GPUs"
        verdict = Verdict(figure=figure, ratio=run.per_s, gate=1e6, goal=1e7)
        numbers = [f"{run.per_s:,.0f} a second", f"{verdict.gate:,.0f}", f"{verdict.goal:,.0f}"]
        rows.append([verdict.figure, *numbers, verdict.words])
    return rows


def sections(runs: list[SearchRun]) -> list[str]:
    """One table."""
    head = ["job", *TIMES, "policies that both find"]
    rows = [[*comparison_row(run.comparison.name, run.comparison), f"{run.policies:,}"] for run in runs]
    return ["## The search for policies against a plain enumeration", table([head, *rows])]


BENCHMARK = Benchmark(
    lesson=8,
    title="the search for policies against a plain enumeration",
    compare=compare,
    gates=gates,
    sections=sections,
)
