"""The error table of a calibration: every test, by source and overall, as records of plain values."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from course_lib.sim.ablation import ablations
from course_lib.sim.boundaries import Boundary, cases, recall
from course_lib.sim.nearest import far_from_others
from course_lib.sim.runs import Run, read_run
from course_lib.sim.validate import (
    Errors,
    Seen,
    cluster_of,
    coverage,
    held_out,
    noise_floor,
    off_by,
    pairs_of_layouts,
    score,
    sweeps,
    with_three_rows,
)

_FILE = Path(__file__).parent / "data" / "errors.csv"
COLUMNS = ("test", "group", "rows", "median", "p90", "bias", "covered", "note")
SUMMARIES = _ALL, _MEDIAN = "all rows", "median of groups"
NOISE = "noise floor"
ORDER = "order"
SWEEP, SWEEP_OF_THREE = "sweep", "sweep, three favourites"
_WIDE = ("sources", "kinds", "stacks")  # tests in which whole sources or stacks are left out
_MUCH = 0.2  # of a step
_APART = (0.0, 0.02, 0.1)  # where groups of pairs begin, by what the two are predicted to differ by
SOURCE_NAMES = {  # of the carried file's keys, for tables and figures
    "foundry": "MosaicML llm-foundry",
    "mlm21t1": "Megatron-LM 2021",
    "mlm20": "Megatron-LM 2020",
    "kort": "Korthikanti et al. 2022",
    "titan2412": "torchtitan, Dec. 2024",
    "titan2024": "torchtitan, early 2024",
    "fms": "IBM fms-fsdp",
    "ptblog2403": "PyTorch blog, March 2024",
    "internevo": "InternEvo",
    "nemo2407": "NeMo 24.07",
    "nemolauncher": "NeMo launcher",
    "nemolong": "NeMo, long sequences",
    "dgxc": "NVIDIA DGX Cloud",
    "bloom": "BLOOM's logbook",
    "aleph": "Aleph Alpha's layouts",
    "moezoo": "Megatron MoE model zoo",
    "titanh200": "torchtitan on H200",
    "nanotron": "nanotron",
    "llama3": "Llama 3",
    "mtnlg": "Megatron-Turing NLG",
    "dsazure": "DeepSpeed on Azure",
    "fsdppaper": "PyTorch FSDP's paper",
    "mlperf": "MLPerf Training",
    "colossal": "ColossalAI",
    "zerobubble": "Zero Bubble",
}
_WHY = {  # what is known of the sources and stacks that lie farthest off
    "internevo": "all its runs alike are a tenth slower than others of its kind; three own rows mend a third of it",
    "dgxc": "three of DeepSeek-V3's runs on GB200 are three times slower than this model, probably bound by the host; "
    "Grok-1's same configuration differs by about a quarter between two releases",
    "foundry": "MPT-30b and 70b at the edge of memory are 25 to 35 % slower than the others of their table",
    "titan2412": "the micro-batch of two pipelines is not printed, and FSDP with a pipeline keeps gathered weights",
    "ptblog2403": "eager torch on H100s with 800 Gb/s per node: more of its messages is exposed than on A100s",
    "nemolong": "attention of long sequences took longer in 2024 than in the later runs that are left",
    "bloom": "Megatron with DeepSpeed's ZeRO, 2022: less tuned than NVIDIA's own, all its messages along tp exposed",
    "aleph": "its messages along dp take several times what the network would, with many replicas most",
    "nanotron": "the small models on 512 GPUs took twice as long as the rest says, and 80B on 32 GPUs also",
    "dsazure": "DeepSpeed of 2022: ZeRO-3's messages take twice what the network would, and nothing hides them",
    "llama3": "Meta's own code was a quarter faster than what is assumed of such a stack",
    "mtnlg": "Megatron of 2022 with DeepSpeed's ZeRO, on 280 to 420 nodes",
    "fsdppaper": "two runs with sequences of 512, read from a quotation",
    "moezoo": "attention of long sequences is faster there; in two runs DeepEP sends a token once to each node",
    "mlperf": "tuned to the last: at ten thousand GPUs their messages along dp are hidden far better than any others",
    "maxtext": "its recompute policy and host offload are not printed",
    "nemo": "left out, its messages along tp all count, of which it hides two fifths",
    "torch eager": "left out, no other stack is as slow: published runs are mostly tuned ones",
    "torch compiled": "left out, what it fuses and hides is no longer known",
    "megatron-deepspeed": "BLOOM's and MT-NLG's runs: left out, nobody else's Megatron is as slow",
    "aleph alpha": "its messages along dp take several times what the network would, with many replicas most",
    "deepspeed": "ZeRO-3 of 2022: its messages take twice what the network would, and nothing hides them",
}


def committed_records() -> list[dict[str, str]]:
    """The error table that the project carries, as it is written there."""
    with _FILE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def time_records(runs: Sequence[Run], errors: Mapping[str, Errors]) -> Iterator[dict[str, Any]]:
    """The tests by group and overall; intervals are made from the other groups' errors."""
    for test, logs in errors.items():
        groups = [run.software.stack or "" if test == "stacks" else run.source for run in runs]
        whole = score(runs, logs)
        covered = coverage(Seen(logs, groups, far_from_others(runs, groups))) if test in _WIDE else (None, None)
        note = _which_way(logs) if test in _WIDE else ""
        yield _record(test, _ALL, len(runs), whole.median, p90=whole.p90, covered=covered[0], note=note)
        each = [_group(test, group, logs, groups) for group in dict.fromkeys(groups)]
        middle = median(one["median"] for one in each)
        yield _record(test, _MEDIAN, len(each), middle, covered=covered[1])
        yield from each


def _which_way(logs: Errors) -> str:
    """Which way those err that err by much: intervals reach farther up for it."""
    slower = float((logs[off_by(logs) > _MUCH] < 0).mean())
    return f"of those off by more than {_MUCH:.0%} of a step {slower:.0%} were slower than predicted"


def interval_records(kinds: Mapping[str, Seen]) -> Iterator[dict[str, Any]]:
    """How many runs, and of a source's in the mean, the printed intervals hold: each made without that source.

    First of all runs, then of those near to a run that was left and of those far from all.
    """
    for kind, seen in kinds.items():
        ranges = {"": np.ones(len(seen.logs), dtype=bool), ", near": ~seen.far, ", far": seen.far}
        for where, among in ranges.items():
            of_rows, of_groups = coverage(seen, among)
            sources = len({group for group, there in zip(seen.groups, among, strict=True) if there})
            middle = float(np.median(off_by(seen.logs[among])))
            yield _record(f"intervals, {kind}{where}", _ALL, int(among.sum()), middle, covered=of_rows)
            yield _record(f"intervals, {kind}{where}", _MEDIAN, sources, None, covered=of_groups)


def memory_records(rows: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Measured peaks by source, and what ran and what did not."""
    found = [run for run in map(read_run, rows) if isinstance(run, Run)]
    measured: dict[str, list[float]] = {}
    for run in found:
        if run.memory_bytes:
            measured.setdefault(run.source, []).append(float(np.log(run.seen() / run.memory_bytes)))
    for source, logs in measured.items():
        note = "does not say what it measures: about 1.7 times any formula" if source == "internevo" else ""
        off = off_by(np.array(logs))
        yield _record("memory", source, len(logs), float(np.median(off)), bias=float(np.median(logs)), note=note)
    judged = cases(found, rows)
    for ran, group in ((True, "ran and is said to fit"), (False, "did not and is said not to fit")):
        right, of = recall(judged, ran=ran)
        yield _record("fits", group, of, None, covered=right / of, note="" if ran else _kinds_of_limits(judged))


def _kinds_of_limits(judged: Sequence[Boundary]) -> str:
    """How many cases that did not run are runs, and how many follow from what was published."""
    sources = Counter(case.source for case in judged if not case.ran)
    models, sizes = sources.pop("kort"), sources.pop("zero")
    runs = ", ".join(f"{count} of {SOURCE_NAMES[source]}" for source, count in sources.items())
    return f"runs that failed: {runs}; {models} models of Korthikanti et al., {sizes} sizes above what states allow"


def three_row_records(runs: Sequence[Run], logs: Errors, test: str) -> Iterator[dict[str, Any]]:
    """Clusters whose errors in a test are these, with three rows of their own, beside the same without."""
    found = with_three_rows(runs, logs)
    yield _record(f"{test}, three own rows", _MEDIAN, len(found), median(after for _, after in found.values()))
    yield _record(f"{test}, without", _MEDIAN, len(found), median(before for before, _ in found.values()))
    for cluster, (before, after) in found.items():
        count = sum(cluster_of(run) == cluster for run in runs)
        yield _record(f"{test}, three own rows", cluster, count, after, note=f"without: {before:.3f}")


def ablation_records(runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """The median error of left-out sources without each term."""
    for one in ablations():
        changed = one.runs(runs)
        logs = held_out(changed, [run.source for run in runs], held=one.held)
        found = score(runs, logs)
        note = f"median over sources {found.source_median:.3f}, worst {found.worst_source:.3f}"
        yield _record(f"sources, without {one.name}", _ALL, found.rows, found.median, p90=found.p90, note=note)


def noise_record(runs: Sequence[Run]) -> dict[str, Any]:
    """How far the same configuration lies apart in two tables."""
    ranges = noise_floor(runs)
    note = f"the same configuration in two tables: {ranges[0]:.1%} to {ranges[-1]:.1%} apart"
    return _record(NOISE, _ALL, len(ranges), median(ranges), note=note)


def order_records(runs: Sequence[Run], logs: Errors) -> Iterator[dict[str, Any]]:
    """How often, of two layouts of one training, the one predicted to be faster was: by how far they are apart."""
    pairs = pairs_of_layouts(runs, logs)
    for low, high in zip(_APART, [*_APART[1:], float("inf")], strict=True):
        inside = [pair for pair in pairs if low <= pair.predicted_apart < high]
        right = sum(pair.right for pair in inside) / len(inside)
        ((source, most),) = Counter(pair.source for pair in inside).most_common(1)
        group = f"{low:.0%} to {high:.0%} apart" if high < float("inf") else f"{low:.0%} apart or more"
        yield _record(
            ORDER, group, len(inside), None, covered=right, note=f"{most} of them from {SOURCE_NAMES[source]}"
        )


def sweep_records(runs: Sequence[Run], logs: Errors) -> Iterator[dict[str, Any]]:
    """Each sweep of four layouts or more, and the middle of all: in `covered` the order, in `median` the regret.

    The order is Spearman's correlation with the measured one. Regret: how much longer the layout takes that the
    simulator would have chosen than the sweep's fastest. In the last record `p90` is the largest.
    """
    found = sweeps(runs, logs)
    note = "covered: Spearman's correlation with the measured order; median: how much slower the favourite is"
    order, regret = (median(getattr(one, name) for one in found) for name in ("order", "regret"))
    yield _record(SWEEP, _MEDIAN, len(found), regret, covered=order, note=note)
    for number, one in enumerate(found, 1):  # two of BLOOM's differ in nothing that is named
        group = f"{number}, {SOURCE_NAMES[one.source]}: {one.name}"
        yield _record(SWEEP, group, one.layouts, one.regret, covered=one.order)
    three = [one.regret_of_three for one in found]
    note = f"of the best of three favourites; {sum(one == 0 for one in three)} are the sweep's fastest"
    yield _record(SWEEP_OF_THREE, _ALL, len(found), median(three), p90=max(three), note=note)


def _group(test: str, group: str, logs: Errors, groups: Sequence[str]) -> dict[str, Any]:
    own = logs[np.array([one == group for one in groups])]
    off = off_by(own)
    note = _WHY.get(group, "") if test in _WIDE else ""
    return _record(
        test,
        group,
        len(own),
        float(np.median(off)),
        p90=float(np.percentile(off, 90)),
        bias=float(np.median(own)),
        note=note,
    )


def _record(
    test: str,
    group: str,
    rows: int,
    median_error: float | None,
    *,
    p90: float | None = None,
    bias: float | None = None,
    covered: float | None = None,
    note: str = "",
) -> dict[str, Any]:
    """Errors are shares of the measured value; bias is the median logarithm, above 0 where predictions are too long."""
    values = {"test": test, "group": group, "rows": rows, "median": median_error, "p90": p90, "bias": bias}
    return values | {"covered": covered, "note": note}
