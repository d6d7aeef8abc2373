"""Exercises are checked where the process computes: COURSE_LIB_DEVICE and `%device` hold for the checks' ranks too."""

from __future__ import annotations

import pytest
import torch

from course_lib.checks.kit import runner
from course_lib.ranks import shutdown, switch
from tools.pretended import cuda


@pytest.fixture(autouse=True)
def _two_pretended_gpus(monkeypatch):
    runner.shutdown()
    shutdown()
    monkeypatch.setenv(cuda.GPUS, "2")
    monkeypatch.setenv(switch.VARIABLE, "cpu")  # which a test sets, and `%device`
    yield
    runner.shutdown()


def where():
    trial = runner.run_call(place_of, (None, torch.ones(1)), 2, timeout=30)
    assert trial.error is None
    return list(trial.reports)


def place_of(answer, given):
    return str(torch.ones(1).device), given.device.type


def test_new_ranks_take_the_place_of_those_elsewhere():
    assert where() == [("cpu", "cpu")] * 2
    first = runner.POOLS[2].pool
    switch.set_for_process("cuda")
    assert where() == [("cuda:0", "cuda"), ("cuda:1", "cuda")]
    assert not first.alive
    second = runner.POOLS[2].pool
    assert where() == [("cuda:0", "cuda"), ("cuda:1", "cuda")] and runner.POOLS[2].pool is second
    switch.set_for_process("cpu")
    assert where() == [("cpu", "cpu")] * 2
    assert not second.alive
