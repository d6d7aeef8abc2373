"""02.11: a script of one's own, in PyTorch alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import Level

_LINE = re.compile(r"^rank (\d+) of (\d+): own (\d+), all (\d+)(?:, half (\d+))?$", re.MULTILINE)
_FORM = "rank 2 of 3: own 4711, all 14130, half 9423"


def _wrong_lines(case: Start, ran: Ran) -> str | None:
    """Nobody knows the numbers of the others' processes, so a right sum has been communicated."""
    ended = ran.ended
    p, found = case.world_size, [_LINE.findall(one.printed) for one in ended]
    for rank, lines in enumerate(found):
        if len(lines) != 1:
            said = ended[rank].printed.strip().splitlines()
            seen = f"printed {said[-1][:60]!r}" if said else "printed nothing"
            return f"rank {rank} {seen}; expected one line such as {_FORM!r}"
    own = [one.pid for one in ended]
    for rank, [(number, size, mine, everybody, half)] in enumerate(found):
        if (int(number), int(size)) != (rank, p):
            return f"the process that was told to be rank {rank} of {p} says rank {number} of {size}: does it ask dist?"
        if int(mine) != own[rank]:
            return f"rank {rank} prints own {mine}, and its os.getpid() is {own[rank]}: was it summed in place?"
        if reason := _wrong_sum(f"rank {rank}: all", int(everybody), range(p), own):
            return reason
        members = range(p // 2) if rank < p // 2 else range(p // 2, p)
        if case.look and (reason := _wrong_sum(f"rank {rank}: half", int(half or 0), members, own)):
            return reason
    return None


def _wrong_sum(name: str, got: int, members: range, own: Sequence[int]) -> str | None:
    want = sum(own[rank] for rank in members)
    if got == want:
        return None
    if got == sum(own):
        return f"{name} is the sum of all ranks: which group was the all-reduce given?"
    if got in own:
        return f"{name} is rank {own.index(got)}'s number alone: was anything added up?"
    return f"{name} is {got}, and the numbers of ranks {', '.join(map(str, members))} add up to {want}"


_SCRIPT = ScriptExercise(
    key="02.11",
    title="a script for torchrun",
    verdict=_wrong_lines,
    levels={
        "all": Level(
            points=2,
            cases=(Start(world_size=3), Start(world_size=2)),
            praise="every rank knows the sum, on 3 and on 2 processes",
        ),
        "half": Level(
            points=2,
            cases=(Start(world_size=3, look="halves"),),
            praise="and that of its own half, in a group of its own",
        ),
    },
    hints=(
        'Begin with dist.init_process_group("gloo"). It reads from the environment who this process is, and from '
        "then on dist.get_rank() and dist.get_world_size() know it, too.",
        "An all-reduce writes the sum over its tensor, and you still need your own number for the line. So give it "
        "a new tensor: total = torch.tensor([os.getpid()]), and then dist.all_reduce(total).",
        "Every rank has to make both groups, in the same order, also the one to which it does not belong: halves = "
        "[dist.new_group(ranks) for ranks in (first, second)]. Then it uses its own.",
        "The second all-reduce is told the group: dist.all_reduce(half, group=halves[int(rank >= world_size // "
        "2)]). Print the line, and end with dist.barrier() and dist.destroy_process_group().",
    ),
)
