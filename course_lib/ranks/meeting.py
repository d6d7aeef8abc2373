"""Where the ranks of torchrun meet: once more for each attempt, at a place where nothing of the dead is left.

When a rank dies, torchrun ends the others and starts all of them again, with the store that it has kept. There each
rank had left its address, and ranks that read the address of a dead one try in vain to reach it. So every attempt needs
keys of its own. A number of the attempt does not do: TORCHELASTIC_RESTART_COUNT is counted by each node for itself, and
a node whose ranks were still alive when another node's died does not count at all.
"""

from __future__ import annotations

import os
import time
import uuid
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

_LOOK_S = 0.02
_MEET_S = 600.0  # as long as one node may come after another; torch's own limit for joining is as long


def store_of_attempt(rank: int, world_size: int) -> Store | None:
    """torchrun's store, under a prefix of this attempt's ranks alone; None if nobody keeps one for us.

    Raises: TimeoutError if not all ranks come.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=_MEET_S))
    name = name_for_all(store, world_size) if rank == 0 else name_from_first(store, rank)
    return PrefixStore(name, store)


def name_from_first(store: Store, rank: int) -> str:
    """Ask under a key that nobody has used before: only a rank 0 that is alive can answer there."""
    question = f"question-{uuid.uuid4().hex}"
    store.set(f"asks-{rank}", question)
    name = store.get(question).decode()  # which waits until it is there
    store.set(f"{name}-{rank}", "has it")
    return name


def name_for_all(store: Store, world_size: int) -> str:
    """Invent a name and tell it whoever asks, until all have it; a dead rank's question is answered too."""
    name, missing = f"attempt-{uuid.uuid4().hex}", {*range(1, world_size)}
    deadline = time.monotonic() + _MEET_S
    while missing:
        for rank in [*missing]:
            if store.check([f"{name}-{rank}"]):
                missing.remove(rank)
            elif store.check([f"asks-{rank}"]):
                store.set(store.get(f"asks-{rank}").decode(), name)
        if missing and time.monotonic() > deadline:
            raise TimeoutError(f"ranks {sorted(missing)} have not come within {_MEET_S:g} s")
        time.sleep(_LOOK_S)
    return name
