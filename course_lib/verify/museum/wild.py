"""The wild wing: bugs of real releases, as `make wild` wrote down what the ladder found in them."""

from __future__ import annotations

from typing import Any, NamedTuple

from course_lib import presets
from course_lib.verify.pairs import RUNGS


class WildFall(NamedTuple):
    """What is known of a climb that ran elsewhere, as `Fall` has it; single losses were not kept."""

    rung: str
    deviation: float
    off: float
    losses: tuple[float, ...] = ()
    reference: tuple[float, ...] = ()
    rungs: tuple[str, ...] = RUNGS


def wild_bugs() -> dict[str, dict[str, Any]]:
    """What was found in each old release that fell and has a mended one that is equal, by the exhibits' names."""
    rows = {name: row for name, row in presets.read("wild", "results").items() if not row["open"]}
    caught = ("fell", "equal")
    return {name: row["old"] for name, row in rows.items() if (row["old"]["ended"], row["mended"]["ended"]) == caught}


def wild_falls() -> dict[str, WildFall]:
    """Those whose trainers tell their losses, by library, version and cause."""
    return {
        f"{library_of(name)} {old['version']}: {' and '.join(old['causes'])}": WildFall(
            old["rung"], old["deviation"], old["loss_apart"]
        )
        for name, old in wild_bugs().items()
        if old["loss_apart"] is not None
    }


def library_of(exhibit: str) -> str:
    """An exhibit's name begins with its library.

    >>> library_of("peft_merged_bias")
    'peft'
    """
    return exhibit.split("_")[0]
