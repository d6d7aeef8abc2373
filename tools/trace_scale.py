"""`make trace`: FSDP x TP of Llama 8B and 70B on up to 1,024 ranks that do not exist, written down for the lesson.

A minute or two for each large model, so that a test traces few layers and holds this file against the formulas.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import torch

from course_lib.config import load_model
from course_lib.gauges.fake_scale import FsdpCase, trace
from course_lib.units import GiB
from tools.paths import ROOT

FILE = ROOT / "course_lib/presets/trace/fsdp_tp.yaml"
MODELS = ("llama3_1_8b", "llama3_1_70b")
MESHES = ((8, 1), (8, 8), (64, 8), (128, 8))  # dp, tp: a node's 8 GPUs share every matrix


def rows() -> Iterator[dict[str, Any]]:
    """Trace one case after the other, each in a process of its own."""
    for model in MODELS:
        for dp, tp in MESHES:
            for checkpointing in (False, True):
                case = FsdpCase(config=load_model(model), dp=dp, tp=tp, checkpointing=checkpointing)
                begin = time.monotonic()
                (found,) = trace([case])
                given = {"dp": dp, "tp": tp, "sequence": case.sequence, "checkpointing": checkpointing}
                print(f"{model} {given}: peak {found.held['peak'].total / GiB:.2f} GiB", flush=True)
                yield {"model": model, **given, "seconds": round(time.monotonic() - begin), **asdict(found)}


def text(cases: list[dict[str, Any]]) -> str:
    """The file: a line for each instant and kind of collective, so that a diff can be read."""
    lines = [
        "# Written by `make trace`; bytes of rank 0, and collectives of one step.",
        f"date: {datetime.now(UTC):%Y-%m-%d}",
        f"torch: {torch.__version__}",
        "command: python -m tools.trace_scale",
        "cases:",
    ]
    for case in cases:
        plain = {name: value for name, value in case.items() if name not in ("held", "calls")}
        lines += ["", *(f"{'-' if not i else ' '} {k}: {json.dumps(v)}" for i, (k, v) in enumerate(plain.items()))]
        lines += ["  held:", *(f"    {name}: {_flow(parts)}" for name, parts in case["held"].items())]
        lines += ["  calls:", *(f"  - {_flow(call)}" for call in case["calls"])]
    return "\n".join(lines) + "\n"


def _flow(values: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in values.items()) + "}"


def main() -> None:
    """Write the file anew after each case."""
    os.nice(19)
    cases = []
    for row in rows():
        cases.append(row)
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(text(cases))


if __name__ == "__main__":
    main()
