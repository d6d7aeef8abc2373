"""Lesson 11 says that what learns more forgets more: its shown table says so, and another model too."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from course_lib.config import ModelConfig
from course_lib.gauges import plain_run
from course_lib.savers import add_ia3
from course_lib.training import Batches, Decoder, load_text, load_tokens
from tools.paths import ROOT


def test_what_learns_more_forgets_more_in_lesson_11():
    """The table that is shown, and its ends once more with another model."""
    text = (ROOT / "notebooks/src/11_memory_savers.py").read_text(encoding="utf-8")
    assert "here, whatever learns more Python forgets more Shakespeare. The ends are clear." in text
    page = (ROOT / "notebooks/11_memory_savers.ipynb").read_text(encoding="utf-8")
    rows = re.findall(r"^(.+?) +Python (\d\.\d\d), Shakespeare (\d\.\d\d)$", _shown_text(page), flags=re.MULTILINE)
    shown = {name: (float(new), float(old)) for name, new, old in rows}
    assert len(shown) == 5 and shown.pop("before")[1] < min(old for _, old in shown.values())
    by_new = sorted(shown, key=lambda name: shown[name][0])
    assert by_new == sorted(shown, key=lambda name: -shown[name][1])
    assert (by_new[0], by_new[-1]) == ("full training", "(IA)^3")
    full, least = (_learnt_and_forgotten(make) for make in (lambda model: model, add_ia3))
    assert full[0] < least[0] - 0.5 and full[1] > least[1] + 0.3


def _shown_text(page: str) -> str:
    outputs = (output for cell in json.loads(page)["cells"] for output in cell.get("outputs", []))
    return "\n".join("".join(output.get("data", {}).get("text/plain", [])) for output in outputs)


def _learnt_and_forgotten(make) -> tuple[float, float]:
    """Losses on rows that no run has read, of Python's own sources and of plays; one thread, one layer."""
    shape = {"hidden_size": 64, "n_layers": 1, "n_heads": 4, "n_kv_heads": 4, "ffn_size": 128, "vocab_size": 256}
    tokenizer, tokens = load_tokens(load_text(), 256)
    code = tokenizer.encode(Path(functional.__file__).read_bytes())
    plays, python = (Batches(text=text, batch_size=4, sequence=64) for text in (tokens, code))
    torch.manual_seed(0)
    model = Decoder(ModelConfig(name="small", **shape, tied=False))
    plain_run(model, plays, steps=100, rate=3e-3)
    model = make(model)
    plain_run(model, python, steps=60, rate=1e-3 if make is not add_ia3 else 1e-2)
    with torch.no_grad():
        return tuple(
            float(np.mean([functional.cross_entropy(model(x).flatten(0, 1), y.flatten()) for x, y in found]))
            for found in ([rows.batch(step) for step in range(100, 108)] for rows in (python, plays))
        )
