"""Settings that every test shares."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from pathlib import Path

import pytest

from tools.modules import module_of
from tools.paths import unhurried

# pytest's own filter does not reach the ranks: the fork server and all processes after it inherit this instead.
os.environ["PYTHONWARNINGS"] = "error"
# Tests share the cores: a thread of PyTorch that waits for one which another process interrupts computes meanwhile.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.update(unhurried())
# With nbformat comes what compiles 38 grammars of addresses in all alphabets, for a second; None is not to be found.
sys.modules.setdefault("rfc3987_syntax", None)
os.environ.pop("COURSE_LIB_PUBLISHED", None)  # set while notebooks are built and compared; tests are learners

# Imports make almost no garbage, and looking for it takes a quarter of their time; see `pytest_collection`.
gc.disable()


@pytest.fixture(scope="session", autouse=True)
def _no_ranks_left():
    """End the pool that the tests of this process shared."""
    yield
    ranks = sys.modules.get("course_lib.ranks")
    if ranks is not None:
        ranks.shutdown()


@pytest.fixture
def short_folder():
    """A folder whose path leaves room for a socket's, which has 108 characters; pytest's own are too long."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        yield Path(folder)


def pytest_addoption(parser):
    parser.addoption(
        "--module", default="", help='run only the tests of these modules, for instance "04" or "03,shared"'
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """From now on garbage is collected; what was imported stays, so nobody looks through that again."""
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config, items):
    """Leave out the tests of other modules than those asked for."""
    wanted = config.getoption("--module")
    if wanted:
        others = [item for item in items if module_of(item.location[0], item.name) not in wanted.split(",")]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]
