"""`python -m course_lib verify`: climb the ladder with two trainers of your own, here or as torchrun's ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType

import cloudpickle

from course_lib.cli.verify_arguments import read
from course_lib.cli.verify_report import say
from course_lib.verify.ladder import assert_parallel_equals


def verify_command(arguments: Sequence[str]) -> int:
    """Climb, print the report, and write it to `out`; 0 if the ranks are one device, 1 if not.

    Raises: ValueError for what cannot be compared.
    """
    if "RANK" in os.environ:
        from course_lib.cli.verify_torchrun import verify_under_torchrun

        return verify_under_torchrun(partial(read, arguments, started=int(os.environ["WORLD_SIZE"])))
    asked = read(arguments)
    with _sent_as_they_are(asked.files):
        return say(
            lambda: assert_parallel_equals(
                asked.reference, asked.parallel, asked.batches, world_size=asked.ranks, dtype=asked.dtype
            ),
            asked.out,
        )


@contextmanager
def _sent_as_they_are(files: Sequence[ModuleType]) -> Iterator[None]:
    """Ranks get what the user's files define by value: they need not find the files."""
    new = {file for file in files if file.__name__ not in cloudpickle.list_registry_pickle_by_value()}
    for file in new:
        cloudpickle.register_pickle_by_value(file)
    try:
        yield
    finally:
        for file in new:
            cloudpickle.unregister_pickle_by_value(file)
