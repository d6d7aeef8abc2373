"""Faults in `python -m course_lib train` on two ranks: after each, the same command goes on to the same losses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

from tests.chaos.line import Line, Seen
from tests.chaos.scene import Scene

PART = "train"
STEPS, EVERY = 60, 10
SMALL = (f"steps={STEPS}", "batch=4", "sequence=16", "precision=fp32", "model=tiny_gpt", "dp=2")
ASKED = (*SMALL, f"checkpoint_every={EVERY}", "out=run")
COMMAND = ("-m", "course_lib", "train", *ASKED)
IMPATIENT = (__file__, *ASKED)  # the same with another limit
LIMIT_S = 2.0  # for a step, in place of ten minutes
AT_MOST = rf"steps since the last checkpoint: (?:\d|{EVERY})"
AGAIN = r"keeps step \d+: the same command goes on from there"
NOTHING = "nothing"
Fault = Callable[[Scene, subprocess.Popen[str]], object]


def lines() -> Iterator[Line]:
    """All lines of this part."""
    stopped = (
        rf"no progress for {LIMIT_S:g} s: rank 0 waits in .*; rank 1 did not answer.*stopped by a signal; .*{AGAIN}"
    )
    under_way: dict[str, tuple[str, Fault, str]] = {
        "SIGSTOP": (f"rank 1 is stopped, limit {LIMIT_S:g} s", partial(_signal_rank, signal.SIGSTOP), stopped),
        "SIGKILL": ("rank 1 is killed", partial(_signal_rank, signal.SIGKILL), rf"^train: .*rank 1 died.*{AGAIN}"),
        "SIGINT": ("the command is interrupted", lambda scene, run: run.send_signal(signal.SIGINT), AGAIN),
        "SIGTERM": ("the command is ended", lambda scene, run: run.send_signal(signal.SIGTERM), AGAIN),
        "kernel killed": ("the command is killed", lambda scene, run: run.kill(), "^$"),
        "second run": ("the same command once more, meanwhile", _second_run, "another run writes there now"),
    }
    for fault, (done, do, said) in under_way.items():
        yield _line(fault, f"{done}, after step {EVERY}", partial(_under_way, do), said, AT_MOST)
    nan, full, taken = "^Trainer: loss nan on ranks 0, 1; ", rf"No space left.*{AGAIN}", "it is there already"
    yield _line("raise", "the loss is not finite (seconds of the whole command)", _with_nan, nan, NOTHING)
    yield _line("disk full", "no room for the second checkpoint (likewise)", _with_full_disk, full, AT_MOST)
    yield _line("folder that appears", "out= is another's folder (likewise)", _with_folder, taken, NOTHING)
    yield _line(
        "truncated checkpoint",
        "half of the last checkpoint is missing (likewise)",
        _with_half_a_checkpoint,
        r"step-\d+/trainer\.pt, \d+ bytes; it is truncated or altered.*and the same command goes on from there",
        "the checkpoint",
    )


def _line(fault: str, done: str, do: Callable[[Path], Seen], said: str, lost: str) -> Line:
    return Line(part=PART, fault=fault, done=done, do=do, said=said, lost=lost, within_s=40.0)


@cache
def _whole_losses() -> list[float]:
    """The losses of a run that nothing happened to."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        scene = Scene(Path(folder))
        scene.start(*COMMAND).communicate()
        return _losses(scene)


def _losses(scene: Scene) -> list[float]:
    with suppress(FileNotFoundError), open(scene.folder / "run/metrics.jsonl") as file:
        return [json.loads(line)["loss"] for line in file]
    return []


def _started(scene: Scene) -> tuple[subprocess.Popen[str], int]:
    """A run that has shown a step after its first checkpoint, which is written meanwhile, and that step."""
    run = scene.start(*IMPATIENT)
    assert run.stdout is not None
    for line in run.stdout:
        found = re.match(r"step +(\d+)/", line)
        if found and int(found[1]) > EVERY and (scene.folder / "run/LATEST").exists():
            return run, int(found[1])
    raise AssertionError(f"the run ended by itself: {run.communicate()[1]}")


def _under_way(do: Fault, folder: Path) -> Seen:
    scene = Scene(folder)
    run, reached = _started(scene)
    started = time.monotonic()
    told = do(scene, run)
    if isinstance(told, str):  # it happened to another command
        seconds = time.monotonic() - started
        run.kill()
    output, errors = run.communicate(timeout=300)
    if not isinstance(told, str):
        seconds, told = time.monotonic() - started, errors
    return Seen(said=told.strip(), seconds=seconds, left=scene.left(), lost=_gone_on(scene, reached, output))


def _gone_on(scene: Scene, reached: int, output: str = "") -> str:
    """Give the same command again; say what had to be done twice, or what is wrong in the end."""
    reached = max([reached, *(int(step) for step in re.findall(r"^step +(\d+)/", output, re.MULTILINE))])
    output, errors = scene.start(*COMMAND).communicate(timeout=300)
    found = re.search(r"goes on after step (\d+) of", output)
    if not found:
        return f"the run: {errors or output}"
    if _losses(scene) != _whole_losses():
        return "the right losses"
    again = max(0, reached - int(found[1]))
    return f"steps since the last checkpoint: {again}{scene.files_left()}"


def _signal_rank(number: int, scene: Scene, run: subprocess.Popen[str]) -> None:
    """Send a signal to the last rank, which is the youngest process that the fork server started."""
    os.kill(max(pid for pid in scene.processes() if _parent(_parent(pid)) == run.pid), number)


def _parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    return 0


def _second_run(scene: Scene, run: subprocess.Popen[str]) -> str:
    run.send_signal(signal.SIGSTOP)  # so that it is not over before
    return scene.start(*COMMAND).communicate(timeout=300)[1]


def _ended(scene: Scene, *words: str, before: tuple[str, ...] = ()) -> tuple[str, float]:
    """What a command said, and after how many seconds."""
    started = time.monotonic()
    errors = scene.start(*words, before=before).communicate(timeout=300)[1]
    return errors.strip(), time.monotonic() - started


def _with_nan(folder: Path) -> Seen:
    scene = Scene(folder)
    said, seconds = _ended(scene, *COMMAND, "lr=1e30", "optimizer=sgd")
    lost = f"{NOTHING if _losses(scene) else 'what the steps took'}{scene.files_left()}"
    return Seen(said=said, seconds=seconds, lost=lost, left=scene.left())


def _with_folder(folder: Path) -> Seen:
    scene = Scene(folder)
    (folder / "run").mkdir()
    (folder / "run/mine.txt").write_text("mine")
    said, seconds = _ended(scene, *COMMAND)
    kept = [path.name for path in (folder / "run").iterdir()] == ["mine.txt"]
    return Seen(said=said, seconds=seconds, lost=NOTHING if kept else "the other's files", left=scene.left())


def _with_full_disk(folder: Path) -> Seen:
    """The run's folder lies on a disk that holds one checkpoint; what is on it outlives the disk as a copy."""
    scene = Scene(folder)
    (folder / "run").mkdir()
    before = scene.small_disk(folder / "run", "3M")
    keep = ("sh", "-c", '"$@"; cp -r run kept', "sh")
    said, seconds = _ended(scene, *COMMAND, before=(*before, *keep))
    (folder / "run").rmdir()
    (folder / "kept").rename(folder / "run")
    return Seen(said=said, seconds=seconds, left=scene.left(), lost=_gone_on(scene, 2 * EVERY))


def _with_half_a_checkpoint(folder: Path) -> Seen:
    scene = Scene(folder)
    run, _ = _started(scene)
    run.kill()
    run.communicate()
    scene.left()
    latest = folder / "run" / (folder / "run/LATEST").read_text().strip() / "trainer.pt"
    content = latest.read_bytes()
    latest.write_bytes(content[: len(content) // 2])
    said, seconds = _ended(scene, *COMMAND)
    return Seen(said=said, seconds=seconds, lost="the checkpoint", left=scene.left())


def _impatient(*asked: str) -> int:
    """In a program of its own: train with a short limit, which the batches bring to the ranks."""
    from course_lib.cli import train_run
    from course_lib.cli.main import main
    from course_lib.training.batches import Batches

    class Impatient(Batches):
        def batch(self, step: int) -> object:
            vars(train_run).update({"STEP_S": LIMIT_S, "_LONGEST_STEPS": 0})
            return Batches.batch(self, step)

    make = train_run.make_batches
    train_run.make_batches = lambda run: Impatient(**vars(make(run)))
    return main(["train", *asked])


if __name__ == "__main__":
    sys.exit(_impatient(*sys.argv[1:]))
