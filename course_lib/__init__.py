"""Companion package of the course; `%load_ext course_lib` adds the `%%ranks` cell magic."""

from __future__ import annotations

from typing import Any


def load_ipython_extension(shell: Any) -> None:
    """Register `%%ranks` in the IPython shell that runs `%load_ext course_lib`."""
    from course_lib.ranks.magic import register

    register(shell)
