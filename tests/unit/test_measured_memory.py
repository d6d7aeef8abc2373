"""The one question against what GPUs showed: 201 published peaks, and those of the project's own GPU file."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

import pytest

from course_lib.config import ParallelConfig
from course_lib.costs.sweep.gpu_memory import gpu_memory
from course_lib.costs.sweep.job import Job
from course_lib.costs.sweep.software import Software
from course_lib.gauges import on_gpu
from course_lib.sim.published import memory_runs, published_rows, withheld_runs
from course_lib.sim.runs import read_run
from course_lib.units import GB, GiB, MiB

REACHED = {  # by source: the median of how far off the answer is, and why where it is more than a tenth
    "titan2412": 0.01,
    "zerobubble": 0.07,
    "bloom": 0.10,
    "nanotron": 0.12,  # of its pipelines a fifth more is kept than 1F1B's micro-batches
    "own H200": 0.14,  # all parts are added up, and one gradient after the other comes as activations go
    "colossal": 0.26,  # its recompute is not printed
    "titanh200": 0.35,  # float8 and a compiled loss keep less than was assumed
    "internevo": 0.45,  # does not say what it measures: about 1.7 times any formula
}
FAR = 0.3  # rows beyond are named
FAR_ROWS = {"bloom": 1, "nanotron": 3, "titan2412": 1, "titanh200": 2, "internevo": 6}


def own():
    """How far off the answer is for each peak of the own file; one GPU is one rank of FSDP2."""
    for name in on_gpu.names():
        for one in on_gpu.recorded(name):
            job = Job(
                model=one.case.config,
                sequence=one.case.sequence,
                parallel=ParallelConfig(zero_stage=3),
                convention="fp32",
                software=Software(kind="eager", kernel="flash2"),
                recompute="layers" if one.case.checkpointing else "none",
                offload="all" if one.case.offload else "none",
            )
            memory = gpu_memory(job)  # allocated bytes have nothing of what is beside tensors
            yield (memory.total - memory.other) / one.found.held["peak"] - 1


@pytest.fixture(scope="module")
def off():
    """By source, a share of the measured bytes for each row."""
    found = defaultdict(list)
    for run in memory_runs():
        found[run.source].append(run.seen() / run.memory_bytes - 1)
    return {**found, "own H200": [*own()]}


def test_half_of_all_measured_peaks_are_met_within_a_tenth(off):
    everything = [abs(one) for rows in off.values() for one in rows]
    assert len(everything) == 210
    assert median(everything) <= 0.10
    assert sum(one <= 0.2 for one in everything) >= 0.9 * len(everything)


@pytest.mark.parametrize("source", REACHED)
def test_each_source_is_met_as_well_as_is_said(off, source):
    reached = median(map(abs, off[source]))
    assert 0.6 * REACHED[source] <= reached <= REACHED[source]
    assert {*off} == {*REACHED}


def test_rows_that_lie_far_off_are_known(off):
    far = {source: sum(abs(one) > FAR for one in rows) for source, rows in off.items()}
    assert {source: count for source, count in far.items() if count} == FAR_ROWS


def row(**changed):
    """A run of a GPT on one A100, as a file has it."""
    model = {"name": "GPT", "hidden": 2048, "layers": 24, "heads": 16, "vocab": 51200, "gated_mlp": False}
    parts = {
        "model": model,
        "hardware": {"gpu": "A100-80GB", "gpus": 8, "gpus_per_node": 8},
        "parallel": {"tp": 1, "pp": 8},
        "batch": {"micro": 1, "global": 64, "seq": 2048},
        "measured": {"peak_mem_gb": 20, "mem_unit": "GB"},
        "recompute": "none",
        "precision": "fp16",
        "source": {"title": "Megatron-LM 2021"},
    }
    return {**parts, **{name: {**parts[name], **value} for name, value in changed.items()}}


def test_gauges_see_more_and_more():
    kinds = ("torch max allocated", "torch max reserved", "nvidia-smi, largest node")
    runs = [read_run(row(measured={"mem_kind": kind})) for kind in kinds]
    allocated, reserved, smi = (run.seen() for run in runs)
    assert allocated == reserved - float(runs[0].memory().other[0]) < reserved == smi - 1343 * MiB
    assert read_run(row()).seen() == allocated


@pytest.mark.parametrize(("unit", "size"), [("GB", GB), ("GiB", GiB), ("20000 MiB", 1000 * MiB)])
def test_units_are_those_that_were_printed(unit, size):
    assert read_run(row(measured={"mem_unit": unit})).memory_bytes == 20 * size


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"parallel": {"schedule": "DualPipe"}}, "the schedule dualpipe has no formula here"),
        ({"measured": {"peak_mem_gb": 150}}, "measured 150 GB are more than a GPU of 80 GB has"),
    ],
)
def test_what_cannot_be_counted_or_be_true_is_refused(changed, reason):
    assert read_run(row(**changed)).reason == reason


def test_schedules_are_those_that_were_named_and_heads_are_assumed():
    plain, zero_bubble = (read_run(row(parallel={"schedule": name})) for name in ("1F1B", "ZB-1p"))
    assert (plain.policy["schedule"], zero_bubble.policy["schedule"]) == (1, 3)
    assert zero_bubble.seen() >= plain.seen()
    unsaid = read_run(row(model={"heads": None}))
    assert "16 heads of 128" in unsaid.assumed and unsaid.model.n_heads == 16


def test_a_run_that_does_not_say_what_it_recomputes_recomputed_what_made_it_fit():
    large = {"batch": {"micro": 32, "global": 4096}}
    said, unsaid = read_run(row(**large)), read_run(row(**large) | {"recompute": "not stated"})
    assert said.seen() > said.machine.memory_bytes >= unsaid.seen()


def test_the_file_names_its_sources():
    rows = published_rows()
    assert len(rows) + len(withheld_runs()) > 1400
    assert all(one["source"]["title"] and one["source"]["ref"] for one in rows)
