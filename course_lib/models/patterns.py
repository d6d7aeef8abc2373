"""Patterns of a model's own names: layers.*.ffn.up_proj is that map in every layer."""

from __future__ import annotations

import re
from collections.abc import Iterable


def named_by(pattern: str, names: Iterable[str]) -> list[str]:
    """Those of the names that a pattern means; a * stands for a part of the name without a dot."""
    wanted = re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))
    return [name for name in names if wanted.fullmatch(name)]


def pattern_of(name: str) -> str:
    """The pattern that names this module in every layer."""
    return re.sub(r"\b\d+\b", "*", name)


def patterns_of(names: Iterable[str]) -> list[str]:
    """The patterns of all these modules, each once."""
    return [*dict.fromkeys(pattern_of(name) for name in names if name)]
