"""A loss in pieces equals the whole one: whoever shares words, tokens or weights, tied heads, targets that do not count."""

from __future__ import annotations

import pytest
from sequence_models import climbs


@pytest.mark.parametrize(
    "case",
    [
        {"dp": 2, "data": "ddp", "pieces": 5},
        {"dp": 2, "data": "fsdp", "pieces": 3, "shape": "gpt", "accumulation": 2},  # its head is the embedding
        {"dp": 2, "data": "zero2", "pieces": 1000},  # one for each token
        {"tp": 2, "pieces": 4, "shape": "gpt"},
        {"tp": 3, "pieces": 3, "recomputed": {}, "shape": "one kv head"},  # 16 words on 3 ranks
        {"tp": 2, "pieces": 4, "sequence_parallel": "keep"},
        {"tp": 2, "dp": 2, "data": "fsdp", "pieces": 2, "sequence_parallel": "regather"},
        {"pp": 2, "schedule": "1f1b", "pieces": 3},
        {"pp": 2, "tp": 2, "schedule": "zb-h1", "pieces": 3, "recomputed": {}},
        {"cp": 2, "method": "ring", "pieces": 3, "data": "ddp"},
        {"ep": 2, "spread_experts": True, "shape": "moe", "pieces": 3, "balance": 0.1},
    ],
    ids=str,
)
def test_it_equals_one_device(case):
    climbs(**case)
