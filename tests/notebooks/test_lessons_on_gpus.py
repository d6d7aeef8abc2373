"""Lessons 00 and 08 with the switch at `cuda`, on GPUs that are not there (`tools.pretended`)."""

from __future__ import annotations

import pytest

from tools import gpu_files, gpu_lessons

GPUS = 4
LESSONS = ("00", "08")  # the others take minutes of computing: `python -m tools.gpu_lessons --pretend 4`


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_cell_runs_on_gpus_as_on_the_cpu(lesson):
    name, folder, notebook = next(gpu_lessons.sources(lesson))
    assert gpu_lessons.execute(name, folder, notebook, "cuda", GPUS).failures == ()


def test_without_a_gpu_it_says_so_in_one_line(monkeypatch):
    monkeypatch.setattr(gpu_files, "gpus_here", lambda: 0)
    monkeypatch.setattr("sys.argv", ["gpu_lessons"])
    with pytest.raises(SystemExit, match="^gpu_lessons: PyTorch sees no GPU; what runs here needs one; .*--pretend 4$"):
        gpu_lessons.main()
