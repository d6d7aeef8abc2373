"""A hang that spreads from group to group (lesson 12): python 12_spreads.py FOLDER"""

import os
import pickle
import sys
import time
from pathlib import Path

import torch
import torch._dynamo
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
from torch.distributed.device_mesh import init_device_mesh

RANKS = 4
# For each rank its calls in one step. It waits in the last of them, if it has one.
STOPS = [["tp", "dp"], ["tp", "dp"], ["tp"], []]
CASES = {
    "first step": STOPS,
    "a later step": STOPS,
    "circle": [["tp"], ["dp"], ["dp"], ["tp"]],
}


def main() -> None:
    folder = Path(sys.argv[1])
    # Ranks 1 to 3 are forked from what has imported all, also the compiler, which a dump would import.
    rank = next((rank for rank in range(1, RANKS) if os.fork() == 0), 0)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for name, calls in CASES.items():
        stand_still(mesh, calls[rank], folder / name, rank)
    meet("end")
    if rank == 0 and any(os.wait()[1] for _ in range(1, RANKS)):
        sys.exit("a rank failed")
    os._exit(0)


def stand_still(mesh: dist.DeviceMesh, calls: list[str], folder: Path, rank: int) -> None:
    """Call as far as one comes, write what the recorder has, and call what is left, so that all end."""

    def add_up(kind: str) -> dist.Work:
        return dist.all_reduce(torch.ones(3), group=mesh[kind].get_group(), async_op=True)

    for kind in calls[:-1]:
        add_up(kind).wait()
    waiting = [add_up(kind) for kind in calls[-1:]]
    meet(f"{folder.name}: all have called")
    while not_done(dump := _dump_fr_trace()) != len(waiting):
        # A call is noted as done a moment after it is.
        time.sleep(0.01)
    folder.mkdir(exist_ok=True)
    (folder / f"trace_{rank}").write_bytes(dump)
    meet(f"{folder.name}: all have written")
    waiting += [add_up(kind) for kind in ("tp", "dp") if kind not in calls]
    for one in waiting:
        one.wait()


def not_done(dump: bytes) -> int:
    return sum(not entry["retired"] for entry in pickle.loads(dump)["entries"])


def meet(place: str) -> None:
    """By the store: a barrier would be one more call in the recorder."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"{place}, rank {dist.get_rank()}", "")
    store.wait([f"{place}, rank {rank}" for rank in range(RANKS)])


if __name__ == "__main__":
    main()
