"""What is said of a torch that is in .venv already, or was asked for, and is not the one of constraints.txt."""

from __future__ import annotations

import re

# The first with parallelize_module(src_data_rank=…), which tensor parallelism by DTensor needs.
OLDEST = (2, 7)


def too_old(version: str, tested: str) -> str:
    """Return one line with the way out if the course's imports and calls are not all in this torch; else nothing."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if not numbers or (int(numbers[1]), int(numbers[2])) >= OLDEST:
        return ""
    oldest = ".".join(map(str, OLDEST))
    return (
        f"torch {version} in .venv is too old: the course needs {oldest} or newer and is tested with {tested}; "
        f"get that one by: make lab TORCH=torch=={tested}"
    )


def not_tested(version: str, tested: str) -> str:
    """Return one line if this is another release than the tested one, however it was built; else nothing."""
    if version.partition("+")[0] == tested:
        return ""
    return (
        f"torch {version} is in .venv; the course is tested with {tested}, so some outputs may differ; "
        f"get that one by: make lab TORCH=torch=={tested}"
    )
