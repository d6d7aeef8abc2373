"""`make gpu`, its fourth part: what lesson 12 tells of GPUs over NCCL, seen on one.

A call that does not end and NCCL's flight recorder, two ranks that want one GPU, a snapshot of the memory with the line
behind its largest piece, and a profile with its streams. The outcome is a dated file beside `tests/gpu/README.md`.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

from course_lib.gauges import flight_calls
from course_lib.gauges.flight import dumps_in
from course_lib.units import MiB
from tools.gpu_files import asks_for_a_gpu, device_s_name, today
from tools.gpu_lessons import RESULTS

HANGS = """
import os, time
from datetime import timedelta
import torch
import torch.distributed as dist

torch.cuda.set_device(0)
dist.init_process_group("nccl", timeout=timedelta(seconds=3))
x = torch.ones(1024, device="cuda")
for _ in range(3):
    dist.all_reduce(x)
torch.cuda.synchronize()
torch.cuda._sleep(20 * 2_000_000_000)  # the GPU is busy for twenty seconds, and the next call waits behind that
dist.all_reduce(x)
time.sleep(15)
"""
SHARES = """
import torch
import torch.distributed as dist

torch.cuda.set_device(0)
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(1, device="cuda"))
"""
REMEMBERS = """
import sys
import torch
from course_lib.config import load_model
from course_lib.models.decoder import Decoder

torch.cuda.memory._record_memory_history()
with torch.device("cuda"):
    model = Decoder(load_model("llama3_2_1b")).to(torch.bfloat16)
    words = torch.arange(4096)[None]
torch.nn.functional.cross_entropy(model(words).flatten(0, 1).float(), words.flatten()).backward()
torch.cuda.memory._dump_snapshot(sys.argv[1])
"""
STREAMS = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.profiler import profile
from course_lib.config import load_model
from course_lib.models.decoder import Decoder

torch.cuda.set_device(0)
dist.init_process_group("nccl")
with torch.device("cuda"):
    model, words = Decoder(load_model("llama3_2_1b")), torch.arange(4096)[None]
for part in (*model.layers, model):
    fully_shard(part, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False))
for step in range(3):
    with profile() as seen:
        model(words).float().logsumexp(-1).mean().backward()
        torch.cuda.synchronize()
seen.export_chrome_trace(sys.argv[1])
dist.destroy_process_group()
"""


def main() -> None:
    """Each part in processes of its own; what could not be seen is written down as such."""
    asks_for_a_gpu("gpu_cluster")
    device = torch.cuda.get_device_name(0)
    head = f"# What lesson 12 tells of GPUs, {today()}: {device}, torch {torch.__version__}"
    lines = [head, "", "Written by `python -m tools.gpu_cluster`."]
    for title, part in {
        "A snapshot of the memory": remembers,
        "A profile with its streams": streams,
        "Two ranks, one GPU": shares,
        "A call that does not end": hangs,
    }.items():
        with tempfile.TemporaryDirectory() as folder:
            lines += ["", f"## {title}", "", *part(Path(folder))]
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{today()}-{device_s_name()}-cluster.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def started(script: str, folder: Path, *arguments: str, processes: int = 1, **variables: str) -> str:
    """What torchrun and its ranks say."""
    file = folder / "script.py"
    file.write_text(script)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    ran = subprocess.run(
        [*command, str(file), *arguments], capture_output=True, text=True, timeout=150, env={**os.environ, **variables}
    )
    return ran.stdout + ran.stderr


def hangs(folder: Path) -> Iterator[str]:
    """The watchdog's dump, written because the variable lets it, read by our own reader."""
    found = folder / "found"
    found.mkdir()
    variables = {
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": str(found / "trace_"),
    }
    said = started(HANGS, folder, **variables)
    yield from _lines_with(said, "Watchdog caught collective", "Flight Recorder", "flight recorder")
    for dump in dumps_in(found).values():
        states = Counter(entry["state"] for entry in dump["entries"])
        yield "- its `state`s: " + ", ".join(f"{n} {state}" for state, n in states.items())
        yield from (
            f"- call {one.number}: {one.operation}, done: {one.done}, {one.place}" for one in flight_calls(dump)
        )
    if not any(found.iterdir()):
        yield "- no dump was written"


def shares(folder: Path) -> Iterator[str]:
    """NCCL's refusal."""
    yield from _lines_with(started(SHARES, folder, processes=2, NCCL_DEBUG="WARN"), "Duplicate GPU", "ncclInvalidUsage")


def remembers(folder: Path) -> Iterator[str]:
    """The largest piece that was ever given, and the innermost line of the course's own files that asked for it."""
    said = started(REMEMBERS, folder, str(folder / "snapshot"))
    if not (folder / "snapshot").exists():
        yield said[-500:]
        return
    snapshot = pickle.loads((folder / "snapshot").read_bytes())  # which this very run has written
    given = [event for events in snapshot["device_traces"] for event in events if event["action"] == "alloc"]
    largest = max(given, key=lambda event: event["size"])
    own = [frame for frame in largest["frames"] if "course_lib" in frame["filename"] or "script" in frame["filename"]]
    yield f"- {len(given)} pieces were given"
    place = f"{Path(own[0]['filename']).name}, line {own[0]['line']}" if own else "no line of ours"
    yield f"- the largest has {largest['size'] / MiB:.0f} MiB, asked for in {place}"


def streams(folder: Path) -> Iterator[str]:
    """Which kernels and copies ran on which stream."""
    said = started(STREAMS, folder, str(folder / "trace.json"))
    if not (folder / "trace.json").exists():
        yield said[-500:]
        return
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    timed = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    for stream in sorted({event["args"]["stream"] for event in timed}):
        mine = [event for event in timed if event["args"]["stream"] == stream]
        usual = Counter(event["name"].partition("<")[0].partition("(")[0][:60] for event in mine).most_common(3)
        names = ", ".join(f"{n} x {name}" for name, n in usual)
        yield f"- stream {stream}: {len(mine)} in {sum(event['dur'] for event in mine) / 1000:.1f} ms; {names}"


def _lines_with(said: str, *words: str) -> list[str]:
    """The first line that has each of the words."""
    found = []
    for word in words:
        line = next((line for line in said.splitlines() if word in line), None)
        found.append(f"- `{line.strip()[:300]}`" if line else f"- nobody said {word!r}")
    return found


if __name__ == "__main__":
    main()
