"""The page of `make peers`: `wild/PEERS.md`, written from the rows that are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.paths import ROOT

KEPT = ROOT / "course_lib/presets/wild/peers.yaml"
PAGE = ROOT / "wild/PEERS.md"
HEAD = """# Quantisation, adapters and 8-bit AdamW beside their originals

`make peers` installs the packages below into an environment of their own, gives them and `course_lib.savers` the same
numbers, and writes this page anew. Where *off* is 0, the two agree in every bit; *may be* is what the run allows.

Run on {date}, in {seconds} s: {pins}.

| library | what is compared | off | may be | |
| --- | --- | --- | --- | --- |"""


def page(kept: Mapping[str, Any]) -> str:
    """All of it."""
    pins = [f"`{pin}`" for pin in kept["pins"]]
    listed = f"{', '.join(pins[:-1])} and {pins[-1]}"
    lines = [HEAD.format(pins=listed, date=kept["date"], seconds=kept["seconds"])]
    for row in kept["rows"]:
        columns = [row["library"], row["what"], f"{row['off']:.1e}" if row["off"] else "0"]
        columns += [f"{row['limit']:.0e}" if row["limit"] else "0", row["says"]]
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join([*lines, ""])


def unequal(kept: Mapping[str, Any]) -> list[str]:
    """The comparisons that are further off than they may be."""
    return [f"{row['library']}, {row['what']}: {row['off']:.1e}" for row in kept["rows"] if row["off"] > row["limit"]]
