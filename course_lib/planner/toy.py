"""A policy for thousands of GPUs, made small enough for one machine: what `train` takes, and what is left out."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from course_lib.errors import four_parts
from course_lib.sim.policies import RECOMPUTE, SCHEDULES

_AXES = ("pp", "dp", "tp")  # of whose ranks `train` makes a mesh
_MOST = {"tp": 4}  # the tiny model's heads


class Toy(NamedTuple):
    """A training run of the same shape."""

    overrides: tuple[str, ...]  # of `python -m course_lib train`
    left_out: tuple[str, ...]  # sentences


def toy_of(policy: Mapping[str, Any], ranks: int = 8) -> Toy:
    """The degrees shrunk to at most so many ranks: each that is above 1 stays so, and the largest shrinks least.

    `policy` has the fields of `Policies`, as in `Ranked`; the model is the tiny Llama, with a layer for each stage.
    Raises: ValueError for fewer ranks than such a shape needs.
    """
    degrees = _shrunk({axis: int(policy[axis]) for axis in _AXES}, ranks)
    overrides = [f"{axis}={size}" for axis, size in degrees.items() if size > 1]
    left_out = [f"{axis}={policy[axis]:.0f}: `train` has no such ranks" for axis in ("cp", "ep") if policy[axis] > 1]
    zero = int(policy["zero_stage"])
    if zero > 1 and degrees["pp"] > 1:
        left_out.append(f"zero_stage={zero}: under a pipeline `train` has stage 1 alone")
    elif zero and degrees["dp"] == 1:
        left_out.append(f"zero_stage={zero}: without dp nobody is there to share with")
    elif zero:
        overrides.append(f"zero_stage={zero}")
    if degrees["tp"] > 1 and policy["sequence_parallel"]:
        overrides.append("sequence_parallel=regather")
    batches, more = _micro_batches(policy, degrees)
    overrides += more
    recompute = RECOMPUTE[int(policy["recompute"])]
    if recompute != "none":
        overrides.append("recompute=true")
        if recompute != "full":
            left_out.append(f"recompute={recompute}: `train` computes whole layers again")
    overrides.append(f"batch={degrees['dp'] * batches}")
    return Toy(tuple(overrides), tuple(left_out))


def _shrunk(degrees: Mapping[str, int], ranks: int) -> dict[str, int]:
    """2 for each degree above 1, then twice as much of the one that lost most, as long as there are ranks."""
    found = {axis: min(2, size) for axis, size in degrees.items()}
    needed = prod(found.values())
    if needed > ranks:
        rule = "each degree above 1 stays above 1"
        raise ValueError(four_parts("toy_of", f"{needed} ranks needed, {ranks} given", rule, f"give ranks={needed}"))
    while 2 * prod(found.values()) <= ranks:
        room = {a: degrees[a] / n for a, n in found.items() if 2 * n <= min(degrees[a], _MOST.get(a, ranks))}
        if not room:
            break
        found[max(room, key=lambda axis: room[axis])] *= 2
    return found


def _micro_batches(policy: Mapping[str, Any], degrees: Mapping[str, int]) -> tuple[int, list[str]]:
    """How many micro-batches a replica has, and how `train` is told; twice as many as stages show every phase."""
    m, pp = int(policy["n_microbatches"]), degrees["pp"]
    if pp == 1:
        return (2, ["accumulation=2"]) if m > 1 else (1, [])
    schedule, turns = SCHEDULES[int(policy["schedule"])], min(2, int(policy["stages_per_rank"]))
    count = min(m, 2 * pp) if schedule != "interleaved" else 2 * pp
    said = [f"schedule={schedule}", f"microbatches={count}"]
    if turns > 1:
        said.append(f"stages_per_rank={turns}")
    return count, [*said, f"model.n_layers={pp * turns}"]
