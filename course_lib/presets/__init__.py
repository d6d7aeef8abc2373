"""Published models, tiny ones, devices, clusters, jobs, traces, measurements, wild bugs: a YAML file each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml

from course_lib.errors import four_parts

Kind = Literal["model", "tiny", "device", "cluster", "job", "trace", "gpu", "gpu_savers", "wild"]
_HERE = Path(__file__).parent


def names(kind: Kind) -> tuple[str, ...]:
    """The presets of a kind."""
    return tuple(sorted(path.stem for path in (_HERE / kind).glob("*.yaml")))


def read(kind: Kind, name: str) -> dict[str, Any]:
    """What the file of a preset says.

    Raises: ValueError for a name that no preset has.
    """
    if name not in names(kind):
        rule, way_out = f"there is no such {kind}", f"choose one of {', '.join(names(kind))}"
        raise ValueError(four_parts(f"load_{kind}", f"name={name!r}", rule, way_out))
    values: dict[str, Any] = yaml.safe_load((_HERE / kind / f"{name}.yaml").read_text())
    return values
