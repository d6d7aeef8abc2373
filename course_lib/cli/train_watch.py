"""A process that torchrun started watches itself: if no step ends in time, it says where it waits, and ends.

Ranks of our own need no such watch, for the process that started them asks each where it is.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import torch.distributed as dist

from course_lib.cli.train_config import COMMAND
from course_lib.ranks import introspection, patience
from course_lib.ranks.patience import Limit
from course_lib.ranks.report import where_all_wait

_OTHERS_SPEAK_S = 1.0  # torchrun ends all ranks once the first has left


def watch(first_step_s: float) -> None:
    """Begin to watch; each step's `more_time` renews the limit."""
    limit = Limit(first_step_s)
    patience.answer_by(limit.renew)
    threading.Thread(target=_end_when_over, args=(limit,), name="train's watch", daemon=True).start()


def _end_when_over(limit: Limit) -> None:
    while (left := limit.left_s) > 0:
        time.sleep(min(left, 1.0))
    place = where_all_wait({dist.get_rank(): introspection.whereabouts(())})
    print(f"{COMMAND}: {limit}: {place}", file=sys.stderr, flush=True)
    time.sleep(_OTHERS_SPEAK_S)
    os._exit(1)
