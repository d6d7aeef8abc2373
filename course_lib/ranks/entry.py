"""The function a rank's process starts with; importable without torch, so that the notebook need not load it."""

from __future__ import annotations

from typing import Any


def start(**seat: Any) -> None:
    """Take the seat and work until the notebook is gone."""
    from course_lib.ranks.worker import Seat, main

    main(Seat(**seat))
