"""One cluster for all tests here; a machine that cannot be one says so."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, missing


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
