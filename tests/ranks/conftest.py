"""What the ranks of these tests import by way of a test's own file is imported once for all of them.

Two workers take a file at a time: one that began a long file last would go on alone.
"""

from __future__ import annotations

from collections import Counter

from course_lib.ranks import server

server.preload(
    "pytest",
    "tools.pretended.ranks",
    "course_lib.cli.preflight",
    "course_lib.cli.train",
    "course_lib.costs.comm.sharding",
    "course_lib.training.sharded_checkpoint",
    "course_lib.training.torch_techniques",
    "course_lib.verify.museum.data_parallel",
)

LONG = {"museum_two_axes", "orphans", "planted", "sharded_tensor_torch", "stage_rows", "tour_runs"}  # with few tests


def pytest_collection_modifyitems(items):
    """These come first, then the files with most tests."""
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path.stem.removeprefix("test_") not in LONG, -tests[item.path], item.path))
