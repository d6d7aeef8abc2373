"""Take-home scripts: PyTorch alone, short enough to read at a stretch, and right under torchrun."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

from tools.paths import ROOT

SCRIPTS = sorted((ROOT / "notebooks/scripts").glob("*.py"))


@pytest.fixture(params=SCRIPTS, ids=lambda path: path.stem)
def script(request):
    return request.param


def test_there_are_scripts():
    assert SCRIPTS


def test_a_script_has_at_most_60_lines_and_a_main(script):
    text = script.read_text()
    assert len(text.splitlines()) <= 60
    assert "main" in {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}


def test_a_script_needs_pytorch_alone(script):
    nodes = list(ast.walk(ast.parse(script.read_text())))
    found = {alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    found |= {(node.module or "").split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
    assert "torch" in found and found - {"torch"} <= sys.stdlib_module_names


def test_each_block_has_one_comment_that_is_a_sentence(script):
    comments = [line.strip() for line in script.read_text().splitlines() if line.strip().startswith("#")]
    assert len(comments) >= 3
    assert [line for line in comments if not (line[2].isupper() and line.endswith("."))] == []


AT_THE_END = """
import atexit, pathlib, sys
def gloo_is_left():
    left = sum("gloo_runloop" in name.read_text() for name in pathlib.Path("/proc/self/task").glob("*/comm"))
    left and sys.stderr.write(f"{left} of gloo's threads are alive while Python ends; they may abort it")
atexit.register(gloo_is_left)
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_script_runs_under_torchrun_and_no_thread_can_abort_its_end(script, ranks, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(AT_THE_END)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(script)]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    quiet = {**environment, "OMP_NUM_THREADS": "1"}  # torchrun would set it, and say so on stderr
    ran = subprocess.run(command, cwd=tmp_path, env=quiet, capture_output=True, text=True, timeout=100, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith(f"{ranks} ranks agree")
