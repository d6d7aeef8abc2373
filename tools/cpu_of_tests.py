"""A plugin of pytest: writes into the report what each test cost in CPU seconds, in all processes that it kept busy.

Ranks wait for each other much of the time and a solution's job sleeps, so the time that passed says little of a test's
price. A machine without `/proc` writes noughts, and there the time that passed has to do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

CPU_S = "cpu_s"
_BEGUN = pytest.StashKey[float]()
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def used_s(pid: int) -> float:
    """Return the CPU seconds of a process, of those that it has waited for, and of all that live below it."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # a name may hold spaces
        below = [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in _children(task)]
    except OSError:  # it has ended meanwhile
        return 0.0
    return sum(map(int, words[11:15])) * _TICK_S + sum(map(used_s, below))


def _children(task: Path) -> list[str]:
    try:
        return (task / "children").read_text().split()
    except OSError:
        return []


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Look before the fixtures are made."""
    item.stash[_BEGUN] = used_s(os.getpid())
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Look again after they have gone; the report of this last phase carries what was used."""
    yield
    item.user_properties.append((CPU_S, max(used_s(os.getpid()) - item.stash[_BEGUN], 0.0)))
