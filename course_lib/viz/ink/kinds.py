"""What the numbers of a figure are."""

from __future__ import annotations

from typing import Literal, get_args

Kind = Literal["formula", "emulated", "measured"]
KINDS: tuple[Kind, ...] = get_args(Kind)
