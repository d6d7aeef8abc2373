"""`make peers` without its packages: what is pinned, and the committed page."""

from __future__ import annotations

import subprocess

import pytest

from course_lib import presets
from tools.peers import __main__ as peers
from tools.peers import page
from tools.pip import SetupError
from tools.wild.exhibits import PIN


def test_every_pin_is_exact_and_none_is_torch():
    pins = (peers.HERE / "pins.txt").read_text().split()
    assert all(PIN.fullmatch(pin) for pin in pins) and not any(pin.startswith("torch==") for pin in pins)
    assert presets.read("wild", "peers")["pins"] == pins


def test_the_committed_page_is_what_the_kept_rows_say():
    kept = presets.read("wild", "peers")
    assert page.PAGE.read_text() == page.page(kept)
    assert page.unequal(kept) == [] and {row["library"] for row in kept["rows"]} == {"bitsandbytes", "peft", "torchao"}


def test_adapters_and_the_optimizer_agree_in_every_bit():
    exact = [row["what"] for row in presets.read("wild", "peers")["rows"] if not row["off"] and not row["limit"]]
    assert {
        "LoRA, 5 steps of AdamW in float64: output",
        "(IA)^3, 5 steps of AdamW in float64: output",
        "AdamW8bit, 5 steps, with its codes",
        "NF4, double: codes of weights, share that differs",
    } <= {*exact}


def test_what_is_further_off_than_it_may_be_is_told():
    kept = presets.read("wild", "peers")
    wrong = {**kept["rows"][0], "off": 0.5, "what": "levels"}
    assert page.unequal({**kept, "rows": [wrong, *kept["rows"]]}) == ["bitsandbytes, levels: 5.0e-01"]


def test_a_comparison_that_breaks_is_told_in_its_last_line(monkeypatch):
    broken = subprocess.CompletedProcess([], 1, stdout="", stderr="Traceback\nImportError: no peft\n")
    monkeypatch.setattr(peers, "environment_for", lambda pins: peers.HERE)
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: broken)
    with pytest.raises(SetupError, match="ImportError: no peft"):
        peers.compared(["peft==0"])
