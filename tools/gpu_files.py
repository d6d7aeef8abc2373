"""What the parts of `make gpu` share: they need a GPU, and write down what it is, its day, and what was found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from course_lib.errors import four_parts
from course_lib.ranks.devices import gpus_here

WAY_OUT = "start it where `nvidia-smi` shows one, with a PyTorch that was built for CUDA"
Table = Callable[[], Iterator[dict[str, Any]]]


def asks_for_a_gpu(what: str, way_out: str = WAY_OUT) -> None:
    """Raises: SystemExit in one line where there is none."""
    if not gpus_here():
        raise SystemExit(four_parts(what, "PyTorch sees no GPU", "what runs here needs one", way_out))


def today() -> str:
    """As files are called."""
    return f"{datetime.now(UTC):%Y-%m-%d}"


def device_s_name() -> str:
    """The first GPU's, as files are called: nvidia-h200."""
    return torch.cuda.get_device_name(0).lower().replace(" ", "-")


def machine(command: str) -> dict[str, Any]:
    """What was measured on, and by what."""
    return {
        "date": today(),
        "device": torch.cuda.get_device_name(0),
        "memory": torch.cuda.get_device_properties(0).total_memory,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "command": command,
    }


def text(facts: Mapping[str, Any], tables: Mapping[str, list[dict[str, Any]]]) -> str:
    """The file: a line for each row, so that a diff can be read."""
    lines = ["# Written by `make gpu`; bytes of tensors, and the median of a few steps."]
    lines += [f"{name}: {json.dumps(value)}" for name, value in facts.items()]
    for name, rows in tables.items():
        lines += [f"{name}:", *(f"- {json.dumps(row)}" for row in rows)]
    return "\n".join(lines) + "\n"


def write(folder: Path, command: str, made: Mapping[str, Table]) -> None:
    """Make the tables, and write the file anew after each row."""
    facts, tables = machine(command), dict[str, list[dict[str, Any]]]()
    file = folder / f"{facts['date']}-{device_s_name()}.yaml"
    folder.mkdir(exist_ok=True)
    for name, rows in made.items():
        tables[name] = []
        for row in rows():
            tables[name].append(row)
            file.write_text(text(facts, tables))
    print(file.read_text())
