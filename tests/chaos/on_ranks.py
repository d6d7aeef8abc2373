"""Faults in `run_ranks` and in a `%%ranks` cell: the same code, once as a function and once as a cell."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

from tests.chaos.faults import FAULTS, NOTHING, Fault
from tests.chaos.line import Line, Seen
from tests.chaos.scene import Scene

PARTS = ("run_ranks", "%%ranks")
WORLD_SIZE = 3
_FULL = "'the disk is full meanwhile'"
_BUSY = (
    "import os, torch.distributed as dist\nopen(f'ready-{rank}', 'w').close()\n"
    "if rank == 0:\n    sum(range(10**11))\nif rank == 1:\n    os.kill(os.getpid(), 19)\n"
    "dist.recv(__import__('torch').ones(1), 0)"
)


def lines() -> Iterator[Line]:
    """All lines of both parts."""
    for part in PARTS:
        for fault in FAULTS:
            yield Line(
                part=part,
                fault=fault.name,
                done=fault.done,
                do=partial(_with_fault, part, fault),
                said=fault.said,
                lost=fault.lost,
                within_s=fault.within_s,
            )
        yield Line(
            part=part,
            fault="kernel killed",
            done="one rank in C code, one stopped, one waiting; SIGKILL to the kernel",
            do=partial(_with_killed_kernel, part),
            said="^$",
            lost="the kernel",
            within_s=3.0,
        )
        yield Line(
            part=part,
            fault="disk full",
            done="the ranks start anew, the temporary folder has no room meanwhile",
            do=partial(_with_full_disk, part),
            said=r"No space left on device",
            lost="the ranks' variables",
            within_s=20.0,
        )
        yield Line(
            part=part,
            fault="/dev/shm full",
            done="no room in shared memory",
            do=partial(_with_full_memory, part),
            said="^$",
            lost=NOTHING,
            within_s=20.0,
        )


def _with_fault(part: str, fault: Fault, folder: Path) -> Seen:
    scene = Scene(folder)
    return _report(scene, scene.start(__file__, part, fault.code, str(fault.limit_s)))


def _with_full_disk(part: str, folder: Path) -> Seen:
    scene = Scene(folder)
    before = scene.small_disk(scene.temporary, "1M")
    return _report(scene, scene.start(__file__, part, _FULL, "20", before=before))


def _with_full_memory(part: str, folder: Path) -> Seen:
    scene = Scene(folder)
    (folder / "shm").mkdir()
    before = scene.small_disk(folder / "shm", "4k", 'mount --bind "$0" /dev/shm')
    return _report(scene, scene.start(__file__, part, "dist.all_reduce(torch.ones(10**6))", "20", before=before))


def _report(scene: Scene, program: object) -> Seen:
    """What the program has written in its last line."""
    output, errors = program.communicate(timeout=300)
    last = output.splitlines()[-1] if output else errors
    if not last.startswith("{"):
        return Seen(said=f"the program failed: {errors[-300:]}", seconds=0.0, lost="everything", left=scene.left())
    found = json.loads(last)
    left = scene.left()
    return Seen(**{**found, "said": found["said"] + errors, "lost": found["lost"] + scene.files_left()}, left=left)


def _with_killed_kernel(part: str, folder: Path) -> Seen:
    scene = Scene(folder)
    program = scene.start(__file__, part, _BUSY, "60")
    deadline = time.monotonic() + 60
    while len(list(folder.glob("ready-*"))) < WORLD_SIZE and time.monotonic() < deadline:
        time.sleep(0.05)
    program.kill()
    started = time.monotonic()
    program.communicate()
    left = scene.left()
    seconds = time.monotonic() - started
    return Seen(said="", seconds=seconds, lost=f"the kernel{scene.files_left()}", left=left)


# What follows runs in the program of a line.


def _main(part: str, code: str, limit: str) -> None:
    """Do it, then ask the ranks whether they are right and what they remember; write what was seen."""
    run = _calling(code, limit) if part == "run_ranks" else _in_cells(code, limit)
    run("keep")
    with _no_room() if code == _FULL else nullcontext():
        started = time.monotonic()
        said = run("fault")
        seconds = time.monotonic() - started
    if not said and "late" in code:
        said = run("fault")
    print("\n" + json.dumps({"said": said, "seconds": seconds, "lost": run("kept")}))


@contextmanager
def _no_room() -> Iterator[None]:
    """End the ranks; while the next ones start, the temporary folder is full."""
    from course_lib import ranks

    ranks.shutdown()
    with TemporaryFile(buffering=0) as file:
        with suppress(OSError):
            while True:
                file.write(bytes(2**12))
        yield


def _calling(code: str, limit: str) -> Callable[[str], str]:
    """`run_ranks` with three functions; a call returns what was said."""
    import torch
    import torch.distributed as dist

    from course_lib.ranks import run_ranks

    def fault() -> object:
        names = {"rank": dist.get_rank(), "torch": torch, "dist": dist}
        exec(compile(code, "<fault>", "exec"), names)
        return names.get("result")

    def keep() -> None:
        sys.modules["__main__"].kept = True

    def kept() -> tuple[int, bool]:
        return dist.get_rank(), hasattr(sys.modules["__main__"], "kept")

    functions = {"fault": fault, "keep": keep, "kept": kept}

    def call(name: str) -> str:
        options = {"timeout": float(limit)} if name == "fault" else {}
        values, said = _told(lambda: run_ranks(functions[name], WORLD_SIZE, **options))
        return _memory(values) if name == "kept" else said

    import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules["__main__"])
    return call


def _in_cells(code: str, limit: str) -> Callable[[str], str]:
    """Three cells in a shell without a screen."""
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.history_manager.enabled = False
    pull = " --pull result" if "result" in code else ""
    cells = {
        "fault": f"%%ranks {WORLD_SIZE} --timeout {limit}{pull}\n{code}",
        "keep": f"%%ranks {WORLD_SIZE}\nkept = True",
        "kept": f"%%ranks {WORLD_SIZE} --pull found\nfound = (rank, 'kept' in globals())",
    }

    def run(name: str) -> str:
        def cell() -> object:
            result = shell.run_cell(cells[name])
            if error := result.error_before_exec or result.error_in_exec:
                raise error
            return shell.user_ns.get("found")

        values, said = _told(cell)
        return _memory(values) if name == "kept" else said

    _told(lambda: shell.run_line_magic("load_ext", "course_lib"))
    return run


def _told(call: Callable[[], object]) -> tuple[object, str]:
    """What a call returned, and what it said: its error, or the pool's own line among what it printed."""
    from contextlib import redirect_stderr, redirect_stdout
    from io import StringIO

    printed = StringIO()
    value: object = None
    try:
        with redirect_stdout(printed), redirect_stderr(StringIO()):
            value = call()
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"
    return value, next((text for text in printed.getvalue().splitlines() if "left out" in text), "")


def _memory(values: object) -> str:
    if not isinstance(values, list) or [rank for rank, _ in values] != list(range(WORLD_SIZE)):
        return f"the next call, which gave {values}"
    return NOTHING if all(kept for _, kept in values) else "the ranks' variables"


if __name__ == "__main__":
    _main(*sys.argv[1:])
