"""What is run: OLMo-core's trainer under each data parallelism, and the classic package on the workshop's settings."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.paths import python_of
from tools.pip import SetupError
from tools.wild.environments import environment_for
from tools.wild.runs import variables

HERE = Path(__file__).parent
LIMIT_S = 180
PATIENCE_S = 60  # for a run that is known to hang


@dataclass(frozen=True, kw_only=True)
class Run:
    """One call of torchrun; runs of the same folder find each other's checkpoints."""

    name: str
    kind: str
    wrapping: str = "full"
    ranks: int = 2
    last_step: int = 10
    folder: str = ""  # where checkpoints lie before it begins; empty: nowhere
    metrics: str = "mended"


RUNS = (
    Run(name="one rank", kind="none", ranks=1),
    Run(name="DDP", kind="ddp"),
    Run(name="FSDP, full", kind="fsdp", wrapping="full"),
    Run(name="FSDP, blocks", kind="fsdp", wrapping="blocks"),
    Run(name="FSDP, fine_grained", kind="fsdp", wrapping="fine_grained"),
    Run(name="HSDP, 2 replicas x 2 shards", kind="hsdp", ranks=4),
    Run(name="FSDP, stopped after step 5", kind="fsdp", last_step=5, folder="stopped"),
    Run(name="FSDP, resumed on 2 ranks", kind="fsdp", folder="stopped"),
    Run(name="FSDP, resumed on 4 ranks", kind="fsdp", ranks=4, folder="stopped"),
    *(Run(name=f"FSDP, as released, try {turn}", kind="fsdp", metrics="as_released") for turn in (1, 2, 3)),
)


def train(run: Run, folder: Path) -> dict[str, Any]:
    """A row: what the last line says, and the seconds of the whole command; or that it did not end.

    Raises: SetupError if pip cannot install the package, or a run breaks that should not.
    """
    place = _place(run, folder)
    last = str(run.last_step)
    words = [str(HERE / "train.py"), run.kind, run.wrapping, str(place), last, run.metrics]
    limit = PATIENCE_S if run.metrics == "as_released" else LIMIT_S
    found = _torchrun(run.name, "core", run.ranks, words, limit)
    return {**{name: value for name, value in asdict(run).items() if name in ("name", "ranks", "metrics")}, **found}


def read(files: list[str], folder: Path) -> dict[str, Any]:
    """Units and losses by the classic package, of its reader's files or of ours.

    Raises: SetupError as `train`.
    """
    os.environ.setdefault("CHECKPOINTS_PATH", str(folder))  # that the workshop's files ask for
    return _torchrun("units", "classic", 2, [str(HERE / "units.py"), *files], LIMIT_S)


def pins(name: str) -> list[str]:
    """What an environment holds beside the learner's packages."""
    return (HERE / f"{name}.txt").read_text().split()


def _place(run: Run, folder: Path) -> Path:
    """A folder of its own; a run that resumes gets the checkpoint of the stopped one, which stays as it is."""
    place = folder / run.name.replace(" ", "_")
    if run.folder and (folder / run.folder).exists():
        subprocess.run(["cp", "-r", str(folder / run.folder), str(place)], check=True)
        return place
    return folder / run.folder if run.folder else place


def _torchrun(name: str, environment: str, ranks: int, words: list[str], limit_s: int) -> dict[str, Any]:
    """The JSON of the command's last such line, with the seconds; a time limit that was reached is no line at all."""
    python = python_of(environment_for(pins(environment)))
    command = [str(python), "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *words]
    print(f"{name} … ", end="", flush=True)
    begin = time.monotonic()
    process = subprocess.Popen(
        command, env=variables(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun ends its ranks
        process.communicate()
        print("hangs", flush=True)
        return {"ended": False, "seconds": limit_s}
    seconds = round(time.monotonic() - begin)
    print(f"{seconds} s", flush=True)
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        last = [line for line in (err or out).splitlines() if "Error" in line]
        raise SetupError(f"{name}: it broke: {last[0] if last else process.returncode}")
    return {"ended": True, "seconds": seconds, **json.loads(lines[-1])}
