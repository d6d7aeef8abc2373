"""The strategies of data parallelism, from whole copies to pieces of everything, and how many pieces a row has."""

from __future__ import annotations

from typing import Literal, get_args

from course_lib.errors import four_parts

DataParallel = Literal["DDP", "NO_SHARD", "ZeRO-1", "ZeRO-2", "SHARD_GRAD_OP", "FULL_SHARD", "HYBRID_SHARD"]
GATHERED = ("SHARD_GRAD_OP", "FULL_SHARD", "HYBRID_SHARD")  # whose weights are pieces between steps
RESHARDED = ("FULL_SHARD", "HYBRID_SHARD")  # and also between forward and backward


def shards_of(strategy: DataParallel, world_size: int, shards: int | None = None) -> int:
    """Among how many neighbours a row is shared.

    Raises: ValueError for an unknown strategy, and unless `shards` divides the ranks and goes with HYBRID_SHARD.
    """
    if strategy not in get_args(DataParallel):
        values, way_out = f"strategy={strategy!r}", f"choose from {', '.join(get_args(DataParallel))}"
        raise ValueError(four_parts("data parallelism", values, "not a known strategy", way_out))
    if (shards is not None) != (strategy == "HYBRID_SHARD") or shards == 0 or world_size % (shards or 1):
        values = f"strategy={strategy!r}, shards={shards}, world_size={world_size}"
        rule = "HYBRID_SHARD, and it alone, takes a number of shards, which divides the ranks"
        fitting = [n for n in range(1, world_size + 1) if world_size % n == 0]
        raise ValueError(four_parts("data parallelism", values, rule, f"choose shards from {fitting} for HYBRID_SHARD"))
    return shards or (1 if strategy in ("DDP", "NO_SHARD") else world_size)
