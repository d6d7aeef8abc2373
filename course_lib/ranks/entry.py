"""The function a rank's process starts with; importable without torch, so that the notebook need not load it."""

from __future__ import annotations

import os
from typing import Any


def start(environment: dict[str, str], **seat: Any) -> None:
    """Take the seat and work until the notebook is gone.

    `environment` is the notebook's of now: the fork server's is older.
    """
    os.environ.update(environment)
    from course_lib.ranks.worker import Seat, main

    main(Seat(**seat))
