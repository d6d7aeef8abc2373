"""What a fork server imports so that its ranks may pretend: those whose environment says so."""

from __future__ import annotations

import os

from course_lib.ranks import lifeline
from tools.pretended import cuda

_first = lifeline.die_with_parent  # what a rank does first; it returns, so no report of a stack has this file in it


def _pretend_first() -> bool:
    if os.environ.get(cuda.GPUS):
        cuda.pretend()
    return _first()


lifeline.die_with_parent = _pretend_first
