"""The function a rank's process starts with; importable without torch, so that the notebook need not load it."""

from __future__ import annotations

import os
from typing import Any

from course_lib.ranks.server import forget_fork_server


def start(environment: dict[str, str], **seat: Any) -> None:
    """Take the seat and work until the notebook is gone.

    `environment` is the notebook's of now: the fork server's is older. The fork server's pipe is let go: while a rank
    holds it, the server does not see that the notebook is gone. A process group of its own holds what a rank forks.
    """
    forget_fork_server()
    os.setpgid(0, 0)
    os.environ.update(environment)
    from course_lib.ranks.worker import Seat, main

    main(Seat(**seat))
