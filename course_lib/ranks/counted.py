"""What a process hands to `torch.distributed`: each call with its bytes and the line of the script that made it.

Counted below DDP, FSDP2, DTensor and pipelining, where all of them meet (`operators`), so who writes plain PyTorch is
judged by what travels and not by how it is spelled. Nothing is compared here and nothing is changed.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any, NamedTuple, TextIO

import torch.distributed as dist
from torch.distributed import ProcessGroup

from course_lib.ranks.operators import ALIKE, before_each, tensors_in

_PAYLOAD = ALIKE | {
    "alltoall_": ("all_to_all", "input_tensors"),
    "alltoall_base_": ("all_to_all_single", "input"),
    "send": ("send", "tensors"),
    "recv_": ("recv", "tensors"),
    "recv_any_source_": ("recv", "tensors"),
}
# No script's end frees a group. DDP's last reference to it goes while Python's lock is held, and waits for a thread of
# gloo's, which may wait for that lock to drop what an all-reduce in backward() has kept (torch 2.13): one time in 30.
_groups: dict[str, ProcessGroup] = {}


class Call(NamedTuple):
    """One call of one rank. Its bytes are those of the rank's own part: what it gives, or gets from reduce-scatter."""

    operation: str
    bytes: int
    ranks: int  # in the group
    line: int  # of the script; 0 if none of its lines led here
    dtype: str = ""
    members: str = ""  # of the group, as in "0, 2": two axes of a mesh may be equally long
    began: float = 0.0  # perf_counter's seconds

    def __str__(self) -> str:
        size = f" of {self.bytes} B" * (self.bytes > 0)
        return f"{self.operation}{size}" + f" (line {self.line})" * (self.line > 0)


def count_into(path: str, script: str) -> None:
    """Write a line for each call of this process, before it is made, so that a hang has left its last call too."""
    book = open(path, "w", buffering=1, encoding="utf-8")  # noqa: SIM115 (open as long as the process lives)
    before_each(_PAYLOAD, lambda operator: partial(_write, book, script, *_PAYLOAD[operator]))


def calls_in(path: Path) -> tuple[Call, ...]:
    """What `count_into` has written; a line that a kill cut short is left out."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return tuple(Call(*json.loads(line)) for line in lines if line.endswith("\n"))


def _write(book: TextIO, script: str, name: str, argument: str, given: dict[str, Any], group: ProcessGroup) -> None:
    began, own = perf_counter(), list(tensors_in(given.get(argument)))
    _groups.setdefault(group.group_name, group)
    dtype = str(own[0].dtype).removeprefix("torch.") if own else ""
    size, members = sum(x.nbytes for x in own), ", ".join(map(str, dist.get_process_group_ranks(group)))
    book.write(json.dumps(Call(name, size, group.size(), _line_of(script), dtype, members, began)) + "\n")


def _line_of(script: str) -> int:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == script:
            return frame.f_lineno
        frame = frame.f_back
    return 0
