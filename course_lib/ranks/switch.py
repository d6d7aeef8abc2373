"""The one switch that says where ranks compute: `cpu`, as long as nobody asks for more, or `cuda`.

It is an environment variable, so that it holds for a whole process, whichever way that was started: `%device cuda` sets
it for a notebook, `COURSE_LIB_DEVICE=cuda` for a script. One run alone is told by `%%ranks 4 --device cuda` or
`run_ranks(…, device="cuda")`.
"""

from __future__ import annotations

import os

from course_lib.errors import four_parts

VARIABLE = "COURSE_LIB_DEVICE"
KINDS = ("cpu", "cuda")


def asked(explicit: str | None = None) -> str | None:
    """What was asked for this run, or else for the whole process; None if nobody has said anything.

    Raises: ValueError for anything but KINDS.
    """
    source, kind = ("device", explicit) if explicit is not None else (VARIABLE, os.environ.get(VARIABLE) or None)
    if kind is not None and kind not in KINDS:
        values, way_out = f"{source}={kind!r}", "choose one of them; which GPU a rank has follows from its number"
        raise ValueError(four_parts("ranks", values, f"a rank computes on {' or '.join(KINDS)}", way_out))
    return kind


def device_kind(explicit: str | None = None) -> str:
    """`cpu` or `cuda`: what is CPU stays on the CPU unless somebody asks."""
    return asked(explicit) or "cpu"


def set_for_process(kind: str) -> None:
    """Let every later run of this process compute there."""
    os.environ[VARIABLE] = asked(kind) or "cpu"
