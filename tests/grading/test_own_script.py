"""What is told of a script of the learner's own that ends badly."""

from __future__ import annotations

import subprocess
import sys

from course_lib.checks import check, save_script
from course_lib.checks.module_08.made_trace import made_trace
from tests.grading.conftest import answer_of

ONE_FAILS = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    raise ValueError("mine")
dist.barrier()
"""


def test_the_error_of_the_rank_that_failed_is_told_and_not_that_of_one_which_lost_it():
    assert "an error on rank 1: line 6: ValueError: mine" in check("03.11", ONE_FAILS).reason


def test_what_lies_beside_a_task_is_written_for_a_start_by_hand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_script("08.11", "pass", seed=3)
    folder = tmp_path / "own-08.11"
    assert {path.name for path in folder.iterdir()} == {"script.py", "task.pt", "made.json"}
    assert (folder / "made.json").read_text() == made_trace(3)


def test_what_was_given_is_not_told_as_saved():
    reason = check("08.11", "open(__import__('sys').argv[1] + '/mine.txt', 'w')").reason
    assert reason.endswith("what it saved there: mine.txt")


def test_one_that_reads_a_run_s_files_needs_python_alone(tmp_path, monkeypatch, answers, capsys):
    monkeypatch.chdir(tmp_path)
    save_script("12.4", answer_of("12.4", answers, "solutions"))
    assert capsys.readouterr().out.endswith("In a terminal: python own-12.4/script.py own-12.4\n")
    words = [sys.executable, "-I", "-S", "own-12.4/script.py", "own-12.4"]  # without what pip has installed
    ran = subprocess.run(words, capture_output=True, text=True, check=True)
    assert [line.split()[:2] for line in ran.stdout.splitlines()][:2] == [
        ["ddp_rank0.json", "AllReduce"],
        ["fsdp_rank0.json", "AllReduce"],
    ]
