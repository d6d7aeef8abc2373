"""What a process hands to `torch.distributed`: each call with its bytes and the line of the script that made it.

Counted below DDP, FSDP2, DTensor and pipelining, where all of them meet (`watch`), so who writes plain PyTorch is
judged by what travels and not by how it is spelled. Nothing is compared here and nothing is changed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TextIO

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from course_lib.ranks.watch import ALIKE, BELOW, tensors_in

_PAYLOAD = {name: (operation, argument) for name, (operation, argument) in ALIKE.items()} | {
    "alltoall_": ("all_to_all", "input_tensors"),
    "alltoall_base_": ("all_to_all_single", "input"),
    "send": ("send", "tensors"),
    "recv_": ("recv", "tensors"),
    "recv_any_source_": ("recv", "tensors"),
}
_kept: list[object] = []  # the library whose operators these are: they are gone with it
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

    def __str__(self) -> str:
        size = f" of {self.bytes} B" * (self.bytes > 0)
        return f"{self.operation}{size}" + f" (line {self.line})" * (self.line > 0)


def count_into(path: str, script: str) -> None:
    """Write a line for each call of this process, before it is made, so that a hang has left its last call too."""
    book = open(path, "w", buffering=1, encoding="utf-8")  # noqa: SIM115 (open as long as the process lives)
    library = torch.library.Library("c10d", "IMPL")
    _kept.extend((book, library))
    for operator in _PAYLOAD:
        library.impl(operator, _Counted(operator, book, script), "BackendSelect", with_keyset=True)


def calls_in(path: Path) -> tuple[Call, ...]:
    """What `count_into` has written; a line that a kill cut short is left out."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return tuple(Call(*json.loads(line)) for line in lines if line.endswith("\n"))


class _Counted:
    """An operator that is written down before it does what it always did."""

    def __init__(self, operator: str, book: TextIO, script: str) -> None:
        self._operator = getattr(torch.ops.c10d, operator).default
        self._name, self._argument = _PAYLOAD[operator]
        self._names = [argument.name for argument in self._operator._schema.arguments]
        self._book, self._script = book, script

    def __call__(self, keys: torch._C.DispatchKeySet, *args: Any, **options: Any) -> Any:
        given = dict(zip(self._names, args, strict=False)) | options
        own = list(tensors_in(given.get(self._argument)))
        group = ProcessGroup.unbox(given["process_group"])
        _groups.setdefault(group.group_name, group)
        dtype = str(own[0].dtype).removeprefix("torch.") if own else ""
        size, members = sum(x.nbytes for x in own), ", ".join(map(str, dist.get_process_group_ranks(group)))
        call = Call(self._name, size, group.size(), _line_of(self._script), dtype, members)
        self._book.write(json.dumps(call) + "\n")
        return self._operator.redispatch(keys & BELOW, *args, **options)


def _line_of(script: str) -> int:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename == script:
            return frame.f_lineno
        frame = frame.f_back
    return 0
