"""What layers compute twice, in one word that `train`, `plan` and `sweep` share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from course_lib.cli.compose import refuse, shown
from course_lib.cli.settings import typed

GROUPS = "groups:n"  # how the word that has a number is written
_OF_TRAIN = ("none", "layers", "selective")


def read_recompute(command: str, value: Any, known: Sequence[str] = _OF_TRAIN) -> tuple[str, int]:
    """One of the `known` words, and how many layers keep one input together: `groups:4` is layers, four at a time.

    Raises: ValueError for another word, and for a group without layers.
    """
    if value in known:
        return value, 1
    if group := re.fullmatch(r"groups:(\d+)", str(value)):
        if not int(group[1]):
            refuse(command, f"recompute={value}", "a group has layers", "give groups:1 or more")
        return "layers", int(group[1])
    given = typed(value) if isinstance(value, bool) else shown(value)
    rule = "it is a word that says what layers compute twice"
    refuse(
        command, f"recompute={given}", rule, f"say layers for all of each, or choose from {', '.join((*known, GROUPS))}"
    )
