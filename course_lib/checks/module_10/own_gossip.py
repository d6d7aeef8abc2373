"""10.3: gossip over several processes in plain PyTorch: neighbours send to each other, and nobody waits for ever."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.kit.parts import generator
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import FP64, Level
from course_lib.verify.equality import close, no_multiple

_LENGTH, _STEPS = 6, 4
_TOLERANCE = 1e-9


def task_of(case: Start, seed: int) -> dict[str, Any]:
    """Every rank's numbers, and a matrix for each step."""
    ranks = case.world_size
    source = generator(seed, ranks, len(case.look))
    values = torch.randn(ranks, _LENGTH, generator=source, dtype=torch.float64)
    if case.look == "turns":
        mixing = [_one_peer(ranks, step) for step in range(2)] + [_pair(ranks)]
    else:
        edges = [(rank, (rank + 1) % ranks) for rank in range(ranks if ranks > 2 else 1)]
        mixing = [_weighed(ranks, edges if case.look == "ring" else _star(ranks), source)] * _STEPS
    return {"values": values, "mixing": mixing}


def _weighed(ranks: int, edges: Sequence[tuple[int, int]], source: torch.Generator) -> Tensor:
    """Symmetric, with other weights on each edge; rows and columns sum to 1."""
    matrix = torch.eye(ranks, dtype=torch.float64)
    for one, other in edges:
        weight = 0.1 + 0.2 * float(torch.rand(1, generator=source))
        matrix[one, other] = matrix[other, one] = weight
        matrix[one, one] -= weight
        matrix[other, other] -= weight
    return matrix


def _star(ranks: int) -> list[tuple[int, int]]:
    return [(0, rank) for rank in range(1, ranks)]


def _one_peer(ranks: int, step: int) -> Tensor:
    """A rank takes from the one that is 2^step further on, and is taken from by another one."""
    there = torch.eye(ranks, dtype=torch.float64).roll(2**step % ranks, 1)
    return 0.75 * torch.eye(ranks, dtype=torch.float64) + 0.25 * there


def _pair(ranks: int) -> Tensor:
    """The first and the last rank meet, and the others have nobody."""
    matrix = torch.eye(ranks, dtype=torch.float64)
    for one, other in ((0, ranks - 1), (ranks - 1, 0)):
        matrix[one, one], matrix[one, other] = 0.6, 0.4
    return matrix


def mixed(task: Mapping[str, Any], mistake: str = "") -> Tensor:
    """What all ranks have in the end; or what a mistake gives."""
    x, matrices = task["values"], list(task["mixing"])
    if mistake == "first":
        matrices = [matrices[0]] * len(matrices)
    for matrix in matrices[:1] if mistake == "once" else matrices:
        x = _step(x, matrix, mistake)
    return x


def _step(x: Tensor, matrix: Tensor, mistake: str) -> Tensor:
    linked = (matrix != 0).double()
    if mistake == "one after another":
        after = x.clone()
        for rank, row in enumerate(matrix):
            for other in row.nonzero().flatten().tolist():
                after[rank] = after[rank] + row[other] * (x[other] - after[rank]) if other != rank else after[rank]
        return after
    used = {
        "transposed": matrix.T,
        "of the column": matrix.T * linked,
        "evenly": linked / linked.sum(1, keepdim=True),
        "all": torch.full_like(matrix, 1 / len(matrix)),
        "without own": matrix - matrix.diag().diag(),
        "own whole": matrix - matrix.diag().diag() + torch.eye(len(matrix), dtype=torch.float64),
    }.get(mistake, matrix)
    return used @ x


WRONG_WAYS = {
    "once": "one step is done, and each matrix of `mixing` is a step",
    "first": "each step is done by the first matrix. Look at the other ones of `mixing`: here they differ",
    "transposed": "the matrix is read by columns. Row i has the weights with which rank i takes, so a rank sends to "
    "those in whose rows it has a weight",
    "of the column": "what comes is weighed by the column. Rank i takes from j with the weight [i, j], in its row",
    "evenly": "neighbours count alike. Each has a weight of its own",
    "all": "that is the mean of all ranks. A rank has only its neighbours, and only the weights of its row",
    "without own": "what a rank has itself is missing: [i, i] is its weight",
    "own whole": "what a rank has itself counts in full: [i, i] is its weight",
    "one after another": "each neighbour is mixed into what the one before it has left. All weights of a row belong to "
    "the numbers before the step",
}


def _verdict(case: Start, ran: Ran) -> str | None:
    """Each rank's numbers, then what has travelled."""
    task = dict(ran.task)
    right = mixed(task)
    for rank, want in enumerate(right):
        found = ran.saved(f"answer-{rank}.pt")
        if not isinstance(found, Tensor):
            return f"answer-{rank}.pt is to hold a tensor"
        if found.shape != want.shape or found.dtype != want.dtype:
            return (
                f"rank {rank} has saved {found.dtype} of shape {tuple(found.shape)}, and {want.dtype} of "
                f"{tuple(want.shape)} is asked: its own row"
            )
    found = torch.stack([ran.saved(f"answer-{rank}.pt").detach() for rank in range(len(right))])
    return _wrong_values(task, found, right) or _wrong_calls(ran, task)


def _wrong_values(task: Mapping[str, Any], found: Tensor, right: Tensor) -> str | None:
    if close(found, right, tolerance=_TOLERANCE):
        return None
    if close(found, task["values"]):
        return "all ranks have what they began with"
    for mistake, says in WRONG_WAYS.items():
        if close(found, mixed(task, mistake), tolerance=_TOLERANCE):
            return says
    off = [rank for rank in range(len(right)) if not close(found[rank], right[rank], tolerance=_TOLERANCE)]
    return (
        f"rank {off[0]}'s numbers {no_multiple(found[off[0]], right[off[0]])}: does every neighbour send what it had "
        "before the step?"
    )


def _wrong_calls(ran: Ran, task: Mapping[str, Any]) -> str | None:
    """A message for each weight besides a rank's own, and nothing that all ranks have to make together."""
    for rank, one in enumerate(ran.ended):
        calls = [call for call in one.calls if call.bytes]
        if others := [call for call in calls if call.operation not in ("send", "recv")]:
            return f"values right, but rank {rank} makes {others[0]}: neighbours alone talk to each other here"
        takers = sum(int((matrix[:, rank] != 0).sum()) - int(matrix[rank, rank] != 0) for matrix in task["mixing"])
        sent = sum(call.bytes for call in calls if call.operation == "send")
        if sent != (due := takers * _LENGTH * FP64):
            return (
                f"values right, but rank {rank} sends {sent} B, and {due} B are right: {_LENGTH} numbers in each of "
                f"{plural(takers, 'message')}, one for each weight of others on what it has"
            )
    return None


_GOSSIP = ScriptExercise(
    key="10.3",
    title="your own gossip, without a deadlock",
    task=task_of,
    verdict=_verdict,
    levels={
        "ring": Level(
            points=3,
            cases=(Start(world_size=2, look="ring"), Start(world_size=4, look="ring")),
            praise="each rank has talked to its neighbours alone, and nobody has waited for ever",
        ),
        "others": Level(
            points=2,
            again=True,
            cases=(
                Start(world_size=4, look="star"),
                Start(world_size=4, look="turns"),
                Start(world_size=2, look="turns"),
            ),
            praise="also where ranks have different numbers of neighbours, take from other ranks than they give to, or "
            "have nobody in a step",
        ),
    },
    hints=(
        "In one step rank r takes from every j != r with matrix[r, j] != 0, and gives to every i != r with "
        "matrix[i, r] != 0.",
        "If all ranks begin with dist.send, each waits until its message is taken, and nobody takes one. Begin all "
        "messages without waiting: dist.isend and dist.irecv return handles.",
        "Call wait() on every handle before you use what came, and before you change what you send.",
        "Only then mix: the new row is matrix[r, r] times the old one, plus matrix[r, j] times what j has sent. Put "
        "it into a new tensor.",
    ),
)
