"""`torchrun --nproc-per-node 4 -m course_lib.ranks module:function`: the same function outside a notebook."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from course_lib.errors import four_parts
from course_lib.ranks import devices, switch
from course_lib.ranks.transcript import Transcript


def main(arguments: list[str]) -> None:
    """Join torchrun's group, call the function without arguments, print the results in rank order."""
    function = _find(arguments)
    if "RANK" not in os.environ:
        sys.exit(four_parts(_NAME, "no RANK in the environment", "torchrun sets it", "start it with torchrun -m"))
    devices.join_torchrun(devices.choose(*devices.local_place(), switch.device_kind()))
    results: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(function(), results)
    if results is not None:
        transcript = Transcript(len(results))
        for rank, result in enumerate(results):
            transcript.show_value(rank, repr(result))
        print(transcript.text(), end="")
    dist.barrier()  # a rank that leaves early would abort the others' teardown
    dist.destroy_process_group()


def _find(arguments: list[str]) -> Callable[[], Any]:
    """Import `module:function`; one line and exit status 2 if it is not there."""
    name = arguments[0] if len(arguments) == 1 else ""
    module, colon, function = name.partition(":")
    try:
        if not colon:
            raise ValueError(f"got {' '.join(arguments) or 'nothing'}")
        found: Callable[[], Any] = getattr(importlib.import_module(module), function)
        return found
    except (ValueError, ImportError, AttributeError) as error:
        print(
            four_parts(_NAME, str(error), "one argument names a function", "write module:function"),
            file=sys.stderr,
        )
        sys.exit(2)


_NAME = "course_lib.ranks"

if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    main(sys.argv[1:])
