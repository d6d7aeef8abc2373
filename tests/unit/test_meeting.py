"""Where torchrun's ranks meet: every attempt under a prefix of its own, whatever a dead one has left in the store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import TCPStore

from course_lib.ranks import meeting
from course_lib.ranks.meeting import store_of_attempt


@pytest.fixture
def kept_store(monkeypatch):
    """What an agent keeps; all that it tells its ranks is the same for every attempt."""
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    told = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port), "TORCHELASTIC_RESTART_COUNT": "0"}
    for name, value in {**told, "TORCHELASTIC_USE_AGENT_STORE": "True"}.items():
        monkeypatch.setenv(name, value)
    return store


def attempt(ranks):
    """The stores of ranks that come at the same time."""
    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(store_of_attempt, range(ranks), [ranks] * ranks))


def test_an_attempt_meets_and_sees_nothing_of_the_one_before(kept_store):
    kept_store.set("asks-1", "question-of-a-dead-rank")  # which came alone
    first = attempt(3)
    first[0].set("address", "of rank 0")
    assert [store.get("address") for store in first] == [b"of rank 0"] * 3
    for ranks in (3, 2, 4):  # as many as before, and after a node has gone or come
        again = attempt(ranks)
        assert not again[0].check(["address"])
        again[-1].set("address", f"of rank {ranks - 1}")
        assert again[0].get("address") == f"of rank {ranks - 1}".encode()


def test_who_does_not_come_is_named(kept_store, monkeypatch):
    monkeypatch.setattr(meeting, "_MEET_S", 0.1)
    with pytest.raises(TimeoutError, match=r"ranks \[1\] have not come within 0.1 s"):
        store_of_attempt(0, 2)


def test_without_an_agent_s_store_torch_meets_by_itself(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    assert store_of_attempt(0, 2) is None
