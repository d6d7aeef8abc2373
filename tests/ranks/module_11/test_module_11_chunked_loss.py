"""A loss in pieces equals the whole one: whoever shares words, tokens or weights, also with tied heads."""

from __future__ import annotations

import pytest
from sequence_models import climbs, model_of

from course_lib.config import TrainConfig
from course_lib.models.mlp import MLP
from course_lib.training.balance import balanced
from course_lib.training.loss_technique import chunked_loss
from course_lib.training.trainer import Trainer


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


def refused():
    found = []
    for model, apply in (
        (model_of("llama"), (chunked_loss(0),)),
        (MLP(), (chunked_loss(2),)),
        (model_of("moe"), (balanced(0.1), chunked_loss(2))),  # each piece would have the load's loss again
    ):
        with pytest.raises(ValueError) as caught:
            Trainer(model, TrainConfig(), apply=apply)
        found.append(str(caught.value))
    return found


def test_what_it_cannot_cut_is_refused():
    no_pieces, other, balanced_before = refused()
    assert no_pieces == "ChunkedLoss: pieces=0; a loss is made of pieces; give pieces >= 1"
    assert other.startswith("chunked_loss: a MLP; what its head gives must go into the loss as it is; ")
    assert balanced_before.startswith("chunked_loss: applied after balanced; ")
