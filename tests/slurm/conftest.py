"""One cluster for all tests here; a machine that cannot be one says so."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, missing

ALL_LESSONS = {("00", 2), ("00", 4), ("02", 2), ("02", 4), ("03", 2), ("03", 4), ("06", 2), ("06", 4)}
FIRST_LESSONS = {("00", 2), ("03", 4)}  # for every change; a lesson takes a minute, and they all share one way in


def pytest_addoption(parser):
    parser.addoption("--lessons", default="", choices=("", "all"), help="run every lesson on the nodes")


def pytest_generate_tests(metafunc):
    """A lesson with this many ranks on each node."""
    if "lesson" in metafunc.fixturenames:
        wanted = ALL_LESSONS if metafunc.config.getoption("--lessons", "") else FIRST_LESSONS
        metafunc.parametrize("lesson", sorted(wanted))


@pytest.fixture(scope="session")
def cluster():
    if why := missing():
        pytest.skip(f"left out: {why}")
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        one = Cluster(Path(folder))
        try:
            one.start()
            yield one
        finally:
            one.stop()
