"""One answer feels nothing of another: neither on the ranks, which go from one to the next, nor in the notebook.

On a rank nothing is mended but random numbers: where an answer has left something else, a new process takes its place
(`runner`). The notebook's process cannot be replaced. What a learner sets there is theirs, so it is put aside while a
check runs, and is there again afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch.overrides import _pop_mode, _push_mode
from torch.utils import _python_dispatch as dispatch

from course_lib.checks.kit import definitions, settings
from course_lib.checks.kit.drawn import Drawn

_DIRECTS_RANKS = (b"COURSE_", b"CUDA_", b"GLOO_", b"NCCL_")  # a learner who sets these means the checks' ranks as well


class _Start(NamedTuple):
    """How a process was when nobody's answer had run in it."""

    process: int
    settings: list[Any]
    drawn: Drawn


_start: _Start | None = None


def remember() -> _Start:
    """Once in each process: from now on everything is to be as it is now. Cost: 8 ms."""
    global _start
    if _start is None or _start.process != os.getpid():
        definitions.remember()
        _start = _Start(os.getpid(), settings.read(), Drawn())
    return _start


def has_changed() -> bool:
    """Runs on a rank, before another answer: whether it is not as it was at its start. Cost: 2 ms."""
    remember().drawn.put_back()
    return settings.read() != remember().settings or bool(definitions.changes())


@contextmanager
def undisturbed() -> Iterator[None]:
    """Everything is as it was at the start of this process, as far as checks can feel it; then it is as before."""
    with ExitStack() as back:
        for change in (change for _ in range(2) for change in definitions.changes()):
            change.undo()
            back.callback(change.redo)
        back.callback(Drawn().put_back)
        if torch.is_inference_mode_enabled():
            back.enter_context(torch.inference_mode(mode=False))
        while torch._C._len_torch_function_stack():  # a default device is among these
            back.callback(_push_mode, _pop_mode())
        while torch._C._len_torch_dispatch_stack():
            back.callback(dispatch._push_mode, dispatch._pop_mode())
        for (read, write), at_start in zip(settings.SETTINGS, remember().settings, strict=True):
            now = read()
            wanted = _for_checks(at_start, now) if read is settings.environment else at_start
            if write is not None and now != wanted:
                write(wanted)
                back.callback(write, now)
        yield


def is_graded() -> bool:
    """Whether nbgrader executes this notebook, or who stands in for it."""
    return os.environ.get("NBGRADER_EXECUTION") == "autograde"


def _for_checks(at_start: dict[bytes, bytes], now: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """The variables of the start; a learner's own where they say how ranks talk, a submission's never."""
    kept = (b"NBGRADER_",) if is_graded() else _DIRECTS_RANKS
    theirs = {name: value for name, value in now.items() if name.startswith(kept)}
    return theirs | {name: value for name, value in at_start.items() if not name.startswith(kept)}
