"""Settings that every test shares."""

from __future__ import annotations

import os
import sys

import pytest

# pytest's own filter does not reach the ranks: the fork server and all processes after it inherit this instead.
os.environ["PYTHONWARNINGS"] = "error"


@pytest.fixture(scope="session", autouse=True)
def _no_ranks_left():
    """End the pool that the tests of this process shared."""
    yield
    ranks = sys.modules.get("course_lib.ranks")
    if ranks is not None:
        ranks.shutdown()
