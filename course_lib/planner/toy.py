"""A policy for thousands of GPUs, made small enough for one machine: what `train` takes, and what is left out."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from course_lib.errors import four_parts
from course_lib.sim.policies import RECOMPUTE, SCHEDULES

_AXES = ("pp", "dp", "cp", "tp")  # of whose ranks `train` makes a mesh; ep is counted inside dp
_MOST = {"tp": 4}  # the tiny model's heads
_EXPERTS_EACH = 2  # of the tiny model's layer, on a rank


class Toy(NamedTuple):
    """A training run of the same shape."""

    overrides: tuple[str, ...]  # of `python -m course_lib train`
    left_out: tuple[str, ...]  # sentences


def toy_of(policy: Mapping[str, Any], ranks: int = 8, *, group: int = 1) -> Toy:
    """The degrees shrunk to at most so many ranks: each that is above 1 stays so, and the largest shrinks least.

    `policy` has the fields of `Policies`, as in `Ranked`; the model is tiny, with a layer for each stage. If
    there are too few ranks for all degrees, sequences stay whole.
    Raises: ValueError for fewer ranks than even that needs.
    """
    degrees, left_out = _degrees(policy, ranks)
    overrides = [f"{axis}={size}" for axis, size in degrees.items() if size > 1]
    for told, missing in (_experts(policy, degrees), _zero(policy, degrees)):
        overrides += told
        left_out += missing
    if degrees["tp"] > 1 and policy["sequence_parallel"]:
        if any(word.startswith("ep=") for word in overrides):
            left_out.append("sequence_parallel: `train` routes a token once, not on each rank along tp")
        else:
            overrides.append("sequence_parallel=regather")
    batches, more = _micro_batches(policy, degrees)
    overrides += more
    recompute = RECOMPUTE[int(policy["recompute"])]
    if recompute != "none":
        layers = "layers" if group == 1 else f"groups:{group}"
        overrides.append(f"recompute={'selective' if recompute == 'selective' else layers}")
        if recompute not in ("layers", "selective"):
            left_out.append(f"recompute={recompute}: `train` computes whole layers again")
    overrides.append(f"batch={degrees['dp'] * batches}")
    return Toy(tuple(overrides), tuple(left_out))


def _degrees(policy: Mapping[str, Any], ranks: int) -> tuple[dict[str, int], list[str]]:
    """What the mesh has, with sequences whole if there is no room for more; and what is said of that."""
    wanted = {axis: int(policy[axis]) for axis in _AXES}
    least = prod(min(2, size) for size in wanted.values())
    if least <= ranks or wanted["cp"] == 1:
        return _shrunk(wanted, ranks), []
    said = f"cp={wanted['cp']}: all these degrees need {least} ranks, and this likeness has at most {ranks}"
    return _shrunk(wanted | {"cp": 1}, ranks), [said]


def _experts(policy: Mapping[str, Any], degrees: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Replicas that share experts: all of them, or half of them where the policy has several such groups too."""
    ep, dp = int(policy["ep"]), degrees["dp"]
    if ep == 1:
        return [], []
    if dp == 1:
        return [], [f"ep={ep}: without dp nobody is there to share experts with, for `train` counts ep inside dp"]
    size = max(2, dp // 2) if ep < policy["dp"] else dp
    return [f"ep={size}", "model=tiny_mixtral", f"model.n_experts={_EXPERTS_EACH * size}"], []


def _zero(policy: Mapping[str, Any], degrees: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """ZeRO shares among the ranks along dp and cp."""
    zero = int(policy["zero_stage"])
    if zero > 1 and degrees["pp"] > 1:
        return [], [f"zero_stage={zero}: under a pipeline `train` has stage 1 alone"]
    if zero and degrees["dp"] * degrees["cp"] == 1:
        return [], [f"zero_stage={zero}: without dp nobody is there to share with"]
    far = zero and policy["shards"] < policy["dp"] * policy["cp"]
    said = [f"shards={policy['shards']:.0f}: `train` shares among all copies, which here are in one domain"] * far
    return [f"zero_stage={zero}"] if zero else [], said


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
