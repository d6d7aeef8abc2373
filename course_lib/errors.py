"""One form for every message about a caller's mistake."""

from __future__ import annotations


def four_parts(operation: str, values: str, rule: str, way_out: str) -> str:
    """Say in one line what was attempted, with which values, which rule they break, and what to do.

    >>> four_parts("ModelConfig", "n_heads=12", "n_heads must divide by tp=8", "choose tp in {1, 2, 3, 4, 6, 12}")
    'ModelConfig: n_heads=12; n_heads must divide by tp=8; choose tp in {1, 2, 3, 4, 6, 12}'
    """
    return f"{operation}: {values}; {rule}; {way_out}"
