"""Every command with settings at the edges of what Python's numbers and texts can be: one line, never a traceback.

A few of each stand in the tests; `make fuzz` goes on for as long as it is told: `python -m tests.fuzz 600 plan sweep`.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import fields
from pathlib import Path
from unittest.mock import patch

from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from course_lib.cli import (
    calibrate,
    plan_config,
    preflight,
    slurm_config,
    sweep_config,
    train_config,
    train_run,
    verify,
)
from course_lib.cli.main import main
from course_lib.config import ModelConfig
from course_lib.hardware import ClusterSpec, Device, Link

EDGES = (
    *("0", "-1", "1", "2", "3.5", "1e-5", "1e400", "1e308", "-1e308", "5e-324", "nan", "inf", "-inf", "-0.0", "0x10"),
    *("2147483648", "4294967296", "9223372036854775807", "99999999999999999999", "1_000", "9" * 400, "9" * 5000),
    *("''", "null", "true", "[]", "[1,2]", "[null]", "['']", "[[1]]", "{}", "{a:1}", "[nan]", "[99999999999999999999]"),
    *("x", "é", "/", "/dev/null", ".", "~", "~nobody/x", "${x}", "a b", "a=b", "'a\0b'", "x" * 5000, "\udcff"),
)
VALUES = st.one_of(st.sampled_from(EDGES), st.integers().map(str), st.floats().map(str), st.text(max_size=20))


def _fields(kind: type, prefix: str) -> list[str]:
    return [f"{plus}{prefix}.{field.name}" for field in fields(kind) for plus in ("", "+")]  # type: ignore[arg-type]


_MODEL = ["model", *_fields(ModelConfig, "model")]
_LINKS = [name for place in ("inside", "between") for name in _fields(Link, f"cluster.{place}")]
_RUN = [*train_config.OPTIONS, *_MODEL]
BASES = {  # by command: what is asked for besides, and what is drawn
    "sweep": (["model=llama3_1_8b", "gpus=8", "tp=1", "pp=1"], [*sweep_config.OPTIONS, *_MODEL, "device"]),
    "plan": (
        ["model=llama3_1_8b", "cluster=dgx_h100", "retime=0", "pp=1", "cp=1"],
        [*plan_config.OPTIONS, *_MODEL, "cluster", *_fields(ClusterSpec, "cluster"), *_LINKS],
    ),
    "train": (["model=tiny_llama"], _RUN),
    "doctor": (["model=tiny_llama"], [*_RUN, "device"]),
    "slurm": (["model=tiny_llama"], [*_RUN, *slurm_config.OPTIONS, "job"]),
    "predict": (["runs=runs.json", "out=runs.csv"], ["runs", "out", "calibrate"]),
    "calibrate": ([], ["out"]),
    "preflight": ([], ["ranks", "folder", "cluster"]),
    "watch": (["runs.json"], ["once"]),
    "verify": (["json:dumps", "json:loads"], ["ranks", "batches", "dtype", "out"]),
}
BASES["sweep"][1].extend([*_fields(Device, "device"), "+device.x"])
BASES["plan"][1].extend(["cluster.device.memory_gb", "+cluster.device.memory_gb"])
_WRITE = ("out", "train")  # to these a value that is a good path writes


@st.composite
def asked(draw: st.DrawFn, command: str) -> list[str]:
    """A command with up to three settings that are not what anybody means; sometimes a word that is no setting."""
    base, names = BASES[command]
    drawn = {draw(st.sampled_from(names)): draw(VALUES) for _ in range(draw(st.integers(1, 3)))}
    words = [word for word in base if word.partition("=")[0] not in drawn]
    words += [f"{name}={value}" for name, value in drawn.items() if name not in _WRITE or value in EDGES[-4:]]
    others = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=1).filter(_no_option)
    return [command, *words, *(draw(others) if draw(st.integers(0, 9)) == 0 else [])]


def _no_option(words: list[str]) -> bool:
    """argparse has its own word for these."""
    return not any(word.startswith("-") for word in words)


@contextmanager
def reading_alone() -> Iterator[None]:
    """Let commands read and check what they are asked, and not train, fit or climb."""

    def stop(*_: object, **__: object) -> object:
        raise ValueError("read: all of it; it is not run here; run it")

    with ExitStack() as stack:
        stack.enter_context(patch.object(train_run, "make_batches", stop))
        stack.enter_context(patch.object(calibrate, "calibrate", stop))
        stack.enter_context(patch.object(verify, "assert_parallel_equals", stop))
        stack.enter_context(patch.object(preflight, "run_ranks", stop))
        yield


def problem_of(arguments: list[str]) -> str:
    """Why a command's answer is none: a traceback, several lines, or a status that says nothing; empty if it is one."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with reading_alone(), redirect_stdout(out), redirect_stderr(err):
            status = main(arguments)
    except BaseException:  # whatever gets out ends the command with a traceback
        return traceback.format_exc()
    said = err.getvalue()
    if status not in (0, 1, 2) or (status == 2 and said.count("\n") != 1):
        return f"status {status}: {said}"
    return ""


def check(command: str, examples: int, number: int = 0) -> None:
    """Try so many; raise for the first, and smallest, that has a problem."""

    @seed(number)
    @settings(max_examples=examples, deadline=None, database=None, phases=(Phase.generate, Phase.shrink))
    @given(asked(command))
    def attempt(arguments: list[str]) -> None:
        problem = problem_of(arguments)
        assert not problem, f"{arguments}\n{problem}"

    attempt()


def _main(seconds: str, *commands: str) -> int:
    """Go on for so long with each command; 1 if one has a problem."""
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "runs.json").write_text(json.dumps([]))
        for command in commands or BASES:
            started, number = time.monotonic(), int(time.time())
            try:
                while time.monotonic() - started < float(seconds):
                    number += 1
                    check(command, 50, number)
                print(f"{command}: no traceback in {time.monotonic() - started:.0f} s", flush=True)
            except AssertionError as error:
                failed = True
                print(f"{command}: {error}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
