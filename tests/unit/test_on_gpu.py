"""What one GPU showed: the formulas' bytes at every instant, the longest text, sound rounding, the ladder over NCCL."""

from __future__ import annotations

import re

import pytest
import torch
import yaml

from course_lib import presets
from course_lib.config import load_model
from course_lib.costs.model.longest_sequence import Room, longest_sequence
from course_lib.costs.model.step_memory import peak
from course_lib.costs.model.two_axes import TwoAxes, two_axes_moments
from course_lib.gauges import on_gpu, savers_on_gpu
from course_lib.units import MiB
from tools import gpu_checks, gpu_files, gpu_savers

CUBLAS = 64 * MiB  # two workspaces, which PyTorch allocates as it does tensors
SMALL = MiB // 2  # tokens, angles, Adam's counters, and what is rounded up to 512 bytes


@pytest.fixture(params=on_gpu.names())
def written(request):
    return presets.read("gpu", request.param)


def formula(case):
    run = TwoAxes(dp=1, checkpointing=case.checkpointing, offload=case.offload, fused_norms=True)
    moments = two_axes_moments(case.config, run, sequence=case.sequence)
    exact = {name: moments[name].total for name in ("start", "loss", "gradients")}
    return {**exact, "peak": peak([*moments.values()]).total}


@pytest.mark.parametrize("name", on_gpu.names())
def test_memory_is_the_formula_s_and_cublas_own_at_every_instant(name):
    for one in on_gpu.recorded(name):
        expected = formula(one.case)
        for instant, held in one.found.held.items():
            assert CUBLAS <= held - expected[instant] <= CUBLAS + SMALL, (one.case, instant)


def test_the_longest_text_by_the_formula_is_the_longest_that_ran(written):
    assert written["limits"]
    for row in written["limits"]:
        run = TwoAxes(dp=1, checkpointing=row["checkpointing"], fused_norms=True)
        assert row["longest"] == longest_sequence(load_model(row["model"]), run, Room(device=row["room"])).sequence
        assert row["fits 98 %"] and not row["fits 102 %"]


def test_every_technique_climbed_the_ladder_over_nccl_and_rounding_explains_bf16(written):
    assert {row["technique"] for row in written["ladder"]} == set(gpu_checks.TECHNIQUES)
    assert max(row["deviation"] for row in written["ladder"]) <= 1e-12
    assert all(row["sound"] == row["tensors"] for row in written["rounding"])


@pytest.mark.parametrize("name", presets.names("gpu_savers"))
def test_a_bill_that_was_paid_is_the_formula_s(name):
    paid = savers_on_gpu.recorded(name)
    assert len(paid) == 19  # recipes that fit, of two models and three lengths
    for one in paid:
        recipe = gpu_savers.RECIPES[one.recipe]
        due = gpu_savers.bytes_at_loss(load_model(one.model), recipe, sequence=one.sequence)
        assert due == one.formula and abs(one.off) < 0.006
        logits = 4 * one.sequence * load_model(one.model).vocab_size
        above = (one.found.peak - one.found.loss) / logits
        if recipe.pieces == 1:  # gradients of log-probabilities and of logits, in float32
            assert above == pytest.approx(2, abs=1e-4)
        else:
            assert 0 < above < 2


def test_a_file_says_when_and_on_what_it_was_measured(written):
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", written["date"]) and written["device"] and written["torch"]
    assert on_gpu.names()[-1].startswith(max(name[:10] for name in on_gpu.names()))


def test_the_file_is_read_as_it_was_written():
    rows = [{"model": "x", "held": {"start": 1}, "step_s": 0.5, "offload": False}]
    found = yaml.safe_load(gpu_files.text({"date": "2026-01-01", "cuda": "13.0"}, {"steps": rows}))
    assert found == {"date": "2026-01-01", "cuda": "13.0", "steps": rows}


def test_without_a_gpu_the_command_says_so_in_a_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as left:
        gpu_checks.main()
    assert str(left.value) == (
        "make gpu: PyTorch sees no GPU; what runs here needs one; "
        "start it where `nvidia-smi` shows one, with a PyTorch that was built for CUDA"
    )
