"""`python -m tools.less_orders`: module 10's laboratory at five seeds, as rows and as the page `wild/ORDERS.md`.

What a lesson runs with fewer seeds stands here with its spreads, dated, with the CPU seconds that it took.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import torch
import yaml

from course_lib import less
from course_lib.less import LabRun, Method, Workers
from tools.paths import ROOT

KEPT = ROOT / "course_lib/presets/wild/orders.yaml"
PAGE = ROOT / "wild/ORDERS.md"
SEEDS = 5
DATA = {"mixed": False, "sorted": True}  # by name, whether the workers' points are sorted by their label

_TOP = less.top_k(0.05)
METHODS: list[tuple[Method, float]] = [  # and the rate of each
    (less.psgd(), 1.0),
    (less.error_feedback(_TOP), 1.0),
    (less.double_squeeze(_TOP), 1.0),
    (less.neolithic(_TOP, 2), 1.0),
    (less.neolithic(_TOP, 2), 2.0),
    (less.alone(_TOP), 1.0),
    (less.ef21(_TOP), 0.1),
    (less.ef21(_TOP), 1.0),
    (less.ef21(_TOP, momentum=0.9), 1.0),
    (less.alone(less.qsgd(4, 128)), 1.0),
    (less.alone(less.sign()), 1.0),
    (less.error_feedback(less.sign()), 1.0),
    (less.alone(less.rand_k(0.05)), 1.0),
    (less.error_feedback(less.rand_k(0.05, scaled=False)), 1.0),
    (less.power_sgd(1), 1.0),
    (less.power_sgd(4), 1.0),
]
PUBLISHED = {  # accuracy in % on CIFAR-10, ResNet-18 and ResNet-20, as the workshop's slides print it
    "PSGD": "93.99 ± 0.52, 91.62",
    "top-5 % with memory": "94.35, 91.27",
    "Double-Squeeze top-5 %": "94.11, 90.73",
    "NEOLITHIC top-5 %": "94.63, 91.43",
    "EF21 top-5 %": "87.37, 65.82",
}
GOSSIP = [*((topology, False) for topology in less.TOPOLOGIES), ("ring", True)]
EVERY = (1, 5, 20, 100)

_HEAD = """# Orders of methods that say less, on five seeds

`python -m tools.less_orders` runs the laboratory of `course_lib.less` and writes this page anew. A network of 1,994
numbers learns ten classes of a random teacher from 4,096 points; each worker makes 600 gradients, and rates fall to
zero. *Mixed* workers have their share of all points; *sorted* ones hold points sorted by their label. A loss is that of
all points at the end, and ± is the standard deviation between the seeds.

Run on {date} with torch {torch}, in {seconds} CPU seconds on one thread.
"""
_METHODS = """
## Compressed gradients

8 workers, 4 points each, momentum 0.9. Bytes are what a worker sends for each gradient, of 7,976 bytes in float32.

| method | rate | bytes | loss, mixed | accuracy % | loss, sorted | accuracy % | published |
| --- | --- | --- | --- | --- | --- | --- | --- |"""
_PUBLISHED = """
*Published* is the accuracy on CIFAR-10 of ResNet-18 and of ResNet-20, as the workshop's slides print it. Look at the
spreads before the order: EF21 stands far apart, there as here; the others differ about as
much as one of them between seeds. In loss, memory is
worth more than any spread. NEOLITHIC is built here from a description: see `course_lib/less/both_ends.py`."""
_AVERAGED = """
## Averaged models

Without momentum, 16 points each. Gossip has 16 workers at rate 0.3, local steps 8 workers at rate 0.2; the loss is that
of the mean of all models.

| method | bytes a step | loss, mixed | loss, sorted |
| --- | --- | --- | --- |"""
_LIARS = """
## Two of ten workers lie

300 steps, 16 points each, momentum 0.9, rate 1. The rules expect two liars, whether they lie or not.

| data | attack | {rules} |
| --- | --- | {bars} |"""


def main() -> int:
    """LabRun everything, keep the rows and the page."""
    torch.set_num_threads(1)
    begun = time.process_time()
    kept: dict[str, Any] = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "torch": str(torch.__version__),
        "methods": [_method_row(method, rate) for method, rate in METHODS],
        "averaged": [*_gossip_rows(), *_local_rows()],
        "liars": [*_liar_rows()],
    }
    kept["seconds"] = round(time.process_time() - begun)
    KEPT.write_text(yaml.safe_dump(kept, sort_keys=False, width=120))
    PAGE.write_text(page(kept))
    print(PAGE.relative_to(ROOT))
    return 0


def _method_row(method: Method, rate: float) -> dict[str, Any]:
    row: dict[str, Any] = {"method": str(method), "rate": rate}
    for data, by_label in DATA.items():
        workers = Workers(seeds=SEEDS, sorted_by_label=by_label)
        run = less.descend(workers, method, rate=rate)
        row |= {"bytes": round(run.bytes_a_step), data: _seen(run) | _accuracy(workers, run)}
    return row


def _gossip_rows() -> Iterator[dict[str, Any]]:
    for topology, track in GOSSIP:
        runs = {
            data: less.gossip(_averaging(16, by_label), topology, track=track, rate=0.3)
            for data, by_label in DATA.items()
        }
        yield _averaged_row(runs)


def _local_rows() -> Iterator[dict[str, Any]]:
    for every in EVERY:
        yield _averaged_row(
            {data: less.local(_averaging(8, by_label), every, rate=0.2) for data, by_label in DATA.items()}
        )


def _averaging(workers: int, by_label: bool) -> Workers:
    return Workers(seeds=SEEDS, workers=workers, batch=16, sorted_by_label=by_label)


def _averaged_row(runs: Mapping[str, LabRun]) -> dict[str, Any]:
    (run, *_) = runs.values()
    return {"method": run.name, "bytes": round(run.bytes_a_step)} | {data: _seen(one) for data, one in runs.items()}


def _liar_rows() -> Iterator[dict[str, Any]]:
    for data, by_label in DATA.items():
        for attack in ("", *less.ATTACKS):
            runs = {rule: less.attacked(_averaging(10, by_label), rule, attack) for rule in less.RULES}
            yield {"data": data, "attack": attack or "none"} | {rule: _seen(run) for rule, run in runs.items()}


def _seen(run: LabRun) -> dict[str, float]:
    return {"loss": float(f"{run.loss:.5g}"), "spread": float(f"{run.spread:.3g}")}


def _accuracy(workers: Workers, run: LabRun) -> dict[str, float]:
    shares = (100 * workers.accuracy(run.model)).tolist()
    return {
        "accuracy": round(statistics.fmean(shares), 2),
        "accuracy_spread": round(statistics.stdev(shares), 2),
    }


def page(kept: Mapping[str, Any]) -> str:
    """All of it."""
    lines = [_HEAD.format(date=kept["date"], torch=kept["torch"], seconds=kept["seconds"]), _METHODS.lstrip("\n")]
    for row in kept["methods"]:
        cells = [row["method"], f"{row['rate']:g}", f"{row['bytes']:,}"]
        for data in DATA:
            seen = row[data]
            cells += [_loss(seen), f"{seen['accuracy']:.1f} ± {seen['accuracy_spread']:.1f}"]
        lines.append(_row([*cells, PUBLISHED.get(row["method"], "")]))
    lines += [_PUBLISHED, _AVERAGED]
    for row in kept["averaged"]:
        lines.append(_row([row["method"], f"{row['bytes']:,}", *(_loss(row[data]) for data in DATA)]))
    rules = [*less.RULES]
    lines.append(_LIARS.format(rules=" | ".join(rules), bars=" | ".join("---" for _ in rules)))
    lines += [_row([row["data"], row["attack"], *(_loss(row[rule]) for rule in rules)]) for row in kept["liars"]]
    return "\n".join([*lines, ""])


def _loss(seen: Mapping[str, float]) -> str:
    """To three digits after the point; what has exploded as a power of ten."""
    if seen["loss"] >= 1000:
        return f"{seen['loss']:.0e}"
    return f"{seen['loss']:.3f} ± {seen['spread']:.3f}"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
