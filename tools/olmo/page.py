"""The page of `make olmo`: `wild/OLMO.md`, written from the rows that lessons read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tools.paths import ROOT

KEPT = ROOT / "course_lib/presets/wild/olmo.yaml"
PAGE = ROOT / "wild/OLMO.md"
NEAR = 1e-6  # relative: float32 sums in another order
HEAD = """# OLMo's own packages on CPUs

`make olmo` installs `ai2-olmo-core` and `ai2-olmo`, each with exact pins in an environment of its own, runs what stands
here, and writes this page anew. Everything goes over gloo on CPUs, so that seconds are of the whole command, most of
them of its start. `make olmo YAML="1b.yaml 7b.yaml"` reads the workshop's own files beside ours, if you have them.
"""
_TRAINED = """
## OLMo-core trains its smallest OLMo 2

Ten steps of eight sequences of 64 tokens; checkpoints are written while training goes on. Units are FSDP's, the root's
among them.

| run | ranks | units | steps | loss after the last | off by | s |
| --- | --- | --- | --- | --- | --- | --- |"""
_HANGS = """
*As released*, 3.0.0 may wait for ever. A rank adds the seconds of a checkpoint to its metrics when its own thread has
ended, perhaps a step later than its neighbour, and then the ranks add up lists of unlike lengths
([allenai/OLMo-core#831](https://github.com/allenai/OLMo-core/pull/831), open in August 2026). All other rows leave this
metric out. It depends on timing: {hung} of {tries} tries had not ended after a minute."""
_READ = """
## The classic package reads the workshop's settings

Units at full size, with nothing computed; groups have four blocks. `size_based` is PyTorch's own policy, which makes
a unit of what has 100 million parameters: of 7B these are its blocks and both matrices of the vocabulary, of 1B
nothing. A tiny model of the same settings has one loss after a step on two ranks under all policies and
{strategies}, {apart:.0e} apart at most.
"""


def page(rows: Mapping[str, Any]) -> str:
    """All of it."""
    return "\n".join([HEAD, f"Run on {rows['date']}.", *_trained(rows["trained"]), *_read(rows["read"])])


def unequal(rows: Mapping[str, Any]) -> list[str]:
    """Runs whose losses are not those of one rank, and policies whose loss is not that of the others."""
    wrong = [
        f"{run['name']}: {off(run, rows):.1e}" for run in rows["trained"] if run["ended"] and off(run, rows) > NEAR
    ]
    hung = [f"{run['name']}: no end" for run in rows["trained"] if not run["ended"] and run["metrics"] == "mended"]
    apart = _apart(rows["read"])
    return [*wrong, *hung, *([f"units.py: losses {apart:.1e} apart"] if apart > NEAR else [])]


def off(run: Mapping[str, Any], rows: Mapping[str, Any]) -> float:
    """How far a run's losses are from those of one rank at the same steps, relatively."""
    alone = rows["trained"][0]["losses"][run["first"] - 1 :]
    return max(abs(a - b) / b for a, b in zip(run["losses"], alone, strict=False))


def _trained(runs: list[dict[str, Any]]) -> Iterator[str]:
    yield _TRAINED
    for run in runs:
        if not run["ended"]:
            yield f"| {run['name']} | {run['ranks']} | | | hangs | | {run['seconds']} |"
            continue
        last = run["first"] + len(run["losses"]) - 1
        share = f"{off(run, {'trained': runs}):.0e}"
        steps = f"{run['first']} to {last}"
        columns = [
            run["name"],
            run["ranks"],
            run["units"] or "",
            steps,
            f"{run['losses'][-1]:.6f}",
            share,
            run["seconds"],
        ]
        yield f"| {' | '.join(map(str, columns))} |"
    tries = [run for run in runs if run["metrics"] == "as_released"]
    yield _HANGS.format(hung=sum(not run["ended"] for run in tries), tries=len(tries))


def _read(read: Mapping[str, Any]) -> Iterator[str]:
    losses, files = read["losses"], read["files"]
    strategies = ", ".join(dict.fromkeys(name.partition(",")[0] for name in losses))
    yield _READ.format(strategies=strategies, apart=_apart(read))
    yield f"| | {' | '.join(files)} |"
    yield f"| --- | {' | '.join('---' for _ in files)} |"
    yield f"| parameters | {' | '.join(format(one['parameters'], ',') for one in files.values())} |"
    for name in next(iter(files.values()))["run"]:
        yield f"| `{name}` | {' | '.join(one['run'][name] for one in files.values())} |"
    for name in next(iter(files.values()))["units"]:
        yield f"| units, {name} | {' | '.join(str(one['units'][name]) for one in files.values())} |"
    yield f"\nRead and computed in {read['seconds']} s.\n"


def _apart(read: Mapping[str, Any]) -> float:
    """The largest difference between two losses, relatively."""
    losses = read["losses"].values()
    return (max(losses) - min(losses)) / min(losses)
