"""`python -m tests.chaos.kills`: training runs are killed thirty times each way, and end as if nothing had happened.

A run with its own ranks, or torchrun's, is killed at a random step (the command itself, or one of its ranks), started
again by the same command, and killed again. In the end its losses are those of a run that nothing happened to, bit by
bit. Last, what a killed run has left goes on at another layout, within rounding.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tools.paths import ROOT

SMALL = ("batch=4", "sequence=16", "precision=fp64", "model=tiny_gpt", "steps=60", "checkpoint_every=3", "lr=0.001")
WAYS = {
    "own ranks": ("-m", "course_lib"),
    "torchrun": ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "course_lib"),
}
LAYOUTS = {
    "dp": ("dp=2",),
    "zero_stage=1": ("dp=2", "zero_stage=1"),
    "zero_stage=3": ("dp=2", "zero_stage=3"),
    "tp": ("tp=2",),
    "pp": ("pp=2",),
}
KILLS = 6  # of each layout: thirty each way
LIMIT_S = 300.0


def start(way: str, layout: tuple[str, ...], folder: Path) -> subprocess.Popen[bytes]:
    """Give the command, in a session of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, *WAYS[way], "train", *SMALL, *layout, f"out={folder}"]
    with open(f"{folder}.said", "ab") as said:
        return subprocess.Popen(words, env=environment, start_new_session=True, stdout=said, stderr=said)


def losses(folder: Path) -> list[float]:
    """Of the steps that the folder has."""
    with suppress(FileNotFoundError):
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["loss"] for line in lines]
    return []


def processes(session: int, folder: Path) -> list[int]:
    """All that the command has started, itself first: of its session, or told to write into the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, ProcessLookupError):
            told = (path / "cmdline").read_bytes().split(b"\0")  # torchrun's ranks have sessions of their own
            if os.getsid(int(path.name)) == session or f"out={folder}".encode() in told:
                found.append(int(path.name))
    return sorted(found)


def kill_at(step: int, run: subprocess.Popen[bytes], folder: Path, draw: random.Random) -> bool:
    """Kill the command or one of its processes once so many steps are done; whether it came to that."""
    deadline = time.monotonic() + LIMIT_S
    while run.poll() is None and len(losses(folder)) < step and time.monotonic() < deadline:
        time.sleep(0.005)
    if run.poll() is not None:
        return False
    victim = draw.choice([run.pid, processes(run.pid, folder)[-1]])
    with suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
    run.wait(LIMIT_S)
    for pid in processes(run.pid, folder):  # the ranks of a killed torchrun would train on, to the end
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return True


def folder_of(folder: Path, *words: str) -> Path:
    """A name that stands behind `out=` without quotes."""
    return folder / re.sub(r"\W+", "-", "-".join(words))


def chain(way: str, name: str, folder: Path) -> str:
    """Kill a run again and again, let it end, and say what came of it."""
    draw = random.Random(f"{way} {name}")
    layout, whole, parts = LAYOUTS[name], folder_of(folder, way, name, "whole"), folder_of(folder, way, name)
    if start(way, layout, whole).wait(LIMIT_S):
        return f"the whole run failed: {Path(f'{whole}.said').read_text()[-300:]}"
    kills = 0
    while kills < KILLS:
        done = len(losses(parts))
        kills += kill_at(min(58, done + draw.randint(1, 9)), start(way, layout, parts), parts, draw)
    if start(way, layout, parts).wait(LIMIT_S):
        return f"it did not end: {Path(f'{parts}.said').read_text()[-300:]}"
    went_on = re.findall(r"goes on after step (\d+)", Path(f"{parts}.said").read_text())
    same = losses(parts) == losses(whole)
    return (
        f"{kills} kills, gone on after steps {', '.join(went_on)}: {'bit by bit the same' if same else 'OTHER LOSSES'}"
    )


def elsewhere(folder: Path) -> str:
    """What a killed run at zero_stage=3 has left goes on at tp=2, then on one device."""
    parts, draw = folder / "elsewhere", random.Random(0)
    for step, layout in ((20, LAYOUTS["zero_stage=3"]), (40, LAYOUTS["tp"])):
        kill_at(step, start("own ranks", layout, parts), parts, draw)
    if start("own ranks", (), parts).wait(LIMIT_S):
        return f"it did not end: {Path(f'{parts}.said').read_text()[-300:]}"
    wanted = losses(folder_of(folder, "own ranks", "zero_stage=3", "whole"))
    off = max(abs(a - b) for a, b in zip(losses(parts), wanted, strict=True))
    return f"zero_stage=3, then tp=2, then one device: losses off by {off:.0e} at most"


def main() -> int:
    """Print the table; 0 if all chains held."""
    results = []
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        for way in WAYS:
            for layout in LAYOUTS:
                results.append(chain(way, layout, Path(name)))
                print(f"| {way} | {layout} | {results[-1]} |", flush=True)
        results.append(elsewhere(Path(name)))
        print(f"| own ranks | other layouts | {results[-1]} |", flush=True)
    off = float(results[-1].rpartition(" by ")[2].split()[0]) if " by " in results[-1] else 1.0
    return int(not all("bit by bit the same" in one for one in results[:-1]) or off > 1e-9)


if __name__ == "__main__":
    sys.exit(main())
