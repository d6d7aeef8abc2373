"""What a fork server imports so that its ranks may pretend: those whose environment says so."""

from __future__ import annotations

import os

from course_lib.ranks import server, worker
from tools.pretended import cuda

_begin = worker.main


def _main(seat: worker.Seat) -> None:
    if os.environ.get(cuda.GPUS):
        cuda.pretend()
    _begin(seat)


def let_ranks_pretend() -> None:
    """For the notebook or test that starts the ranks; of use before the first of them."""
    server.preload(__name__)


worker.main = _main
