"""What a run on one device holds, against the table of bytes for a parameter; and that it trains."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from course_lib.gauges import plain_run
from course_lib.savers import AdamW8bit, add_lora

VOCABULARY, WIDTH = 32, 128
NUMBERS = 2 * VOCABULARY * WIDTH


@dataclass
class Rows:
    """The same few rows in every step."""

    def batch(self, _step):
        return torch.randint(0, VOCABULARY, (2, 4, 6), generator=torch.Generator().manual_seed(0))


def words():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False))


@pytest.mark.parametrize(
    ("prepare", "options", "each"),
    [
        (lambda model: model, {}, 4 + 4 + 8),
        (lambda model: model, {"autocast": True}, 4 + 4 + 8),
        (nn.Module.bfloat16, {"rounding": "master"}, 2 + 2 + 4 + 8),
        (nn.Module.bfloat16, {}, 2 + 2 + 4),
        (nn.Module.bfloat16, {"rounding": "stochastic"}, 2 + 2 + 8),
    ],
)
def test_bytes_of_a_parameter(prepare, options, each):
    run = plain_run(prepare(words()), Rows(), steps=3, rate=1e-2, **options)
    assert run.lasting_bytes == each * NUMBERS
    assert run.losses[-1] < run.losses[0] and run.seconds > 0 and run.waiting_bytes > 0


def test_averages_in_eight_bits_and_adapters_hold_less():
    eight = plain_run(words(), Rows(), steps=2, rate=1e-2, optimizer=AdamW8bit)
    assert eight.lasting_bytes == (4 + 4 + 2) * NUMBERS + 2 * 4 * NUMBERS // 256  # a scale for each block of 256
    lora = plain_run(add_lora(words(), rank=2, targets=("1",)), Rows(), steps=2, rate=1e-2)
    assert lora.lasting_bytes == 4 * NUMBERS + 16 * 2 * (WIDTH + VOCABULARY)
