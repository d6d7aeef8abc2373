"""A process that is to be killed in a step of its own: by `sys.audit` it says which step begins, and in one it stops.

What is watched cannot know in which one. It stands still there, so whoever kills it meets the same files each time.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

_STEP = "train.step"  # the event, as in sys.audit("train.step", 7)


def stand_still_in(step: int, there: Path) -> None:
    """Let the thread that begins this step make the file `there`, and then nothing more until the process is killed."""

    def look(event: str, arguments: tuple[object, ...]) -> None:
        if event == _STEP and arguments == (step,):
            there.touch()
            while True:
                time.sleep(1)

    sys.addaudithook(look)
