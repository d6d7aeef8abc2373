"""Activation checkpointing equals keeping everything, beside every other technique; and what it refuses."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from sequence_models import LLAMA, SHAPES, batches, climbs
from torch import nn

from course_lib.config import ModelConfig, TrainConfig
from course_lib.models.decoder import Decoder
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import run_ranks
from course_lib.training.recompute_technique import recompute
from course_lib.training.techniques import replicate
from course_lib.training.trainer import Trainer

WHOLE, PAIRS = {}, {"group": 2}
MATMULS, ATTENTION = {"keep": "matmuls"}, {"keep": "attention"}


@pytest.mark.parametrize(
    "case",
    [
        {"dp": 3, "data": "ddp", "recomputed": PAIRS, "shape": "five layers", "accumulation": 2},
        {"dp": 2, "data": "zero2", "recomputed": ATTENTION, "accumulation": 2},
        {"dp": 2, "data": "fsdp", "recomputed": WHOLE},
        {"dp": 3, "data": "fsdp", "recomputed": PAIRS, "shape": "five layers"},
        {"dp": 2, "data": "fsdp", "recomputed": MATMULS, "shape": "gpt"},
        {"tp": 2, "recomputed": WHOLE, "shape": "gpt"},
        {"tp": 3, "recomputed": PAIRS, "shape": "one kv head"},
        {"tp": 2, "recomputed": ATTENTION, "sequence_parallel": "keep"},
        {"tp": 2, "recomputed": PAIRS, "sequence_parallel": "regather"},
        {"tp": 2, "dp": 2, "data": "fsdp", "recomputed": MATMULS, "sequence_parallel": "keep"},
        {"tp": 2, "dp": 2, "data": "fsdp", "recomputed": {"group": 2, "partitioned": True}},
    ],
    ids=str,
)
def test_it_equals_one_device(case):
    climbs(**case)


@pytest.mark.parametrize(
    "case",
    [
        {"pp": 2, "schedule": "gpipe", "recomputed": PAIRS, "shape": "five layers"},  # a stage of three, and of two
        {"pp": 2, "schedule": "zb-h1", "recomputed": PAIRS, "shape": "five layers", "data": "ddp", "dp": 2},
        {"pp": 4, "schedule": "1f1b", "recomputed": WHOLE},  # the first stage has the embedding, the last the head
        {"pp": 2, "tp": 2, "schedule": "1f1b", "recomputed": ATTENTION},
        {"pp": 2, "tp": 2, "schedule": "1f1b", "recomputed": {"partitioned": True}},
        {"dp": 2, "data": "zero1", "recomputed": MATMULS},
        {"cp": 2, "method": "ulysses", "recomputed": ATTENTION, "data": "fsdp"},
        {"cp": 3, "method": "all_gather", "recomputed": PAIRS, "data": "ddp"},
        {"cp": 2, "method": "ring", "recomputed": MATMULS, "pp": 2, "schedule": "1f1b"},
        {"ep": 2, "spread_experts": True, "shape": "moe", "recomputed": PAIRS, "balance": 0.1},
        {"ep": 2, "spread_experts": True, "shape": "deepseek", "recomputed": MATMULS, "data": "fsdp"},
        {"ep": 2, "spread_experts": True, "shape": "moe", "recomputed": MATMULS, "balance": 0.1},
    ],
    ids=str,
)
def test_it_equals_one_device_beside_other_axes(case):
    climbs(**case)


class Dropping(Decoder):
    """A decoder that drops some of what each of its blocks gives."""

    def __init__(self, config: ModelConfig, rate: float) -> None:
        super().__init__(config)
        for layer in self.layers:
            layer.ffn = nn.Sequential(layer.ffn, nn.Dropout(rate))


def gradients_with_dropout(recomputed):
    """Every rank draws from the same state in both runs."""
    config = SHAPES["five layers"]
    torch.manual_seed(0)
    apply = [recompute(**recomputed)] if recomputed is not None else []
    model, mesh = Dropping(config, 0.3).double(), make_mesh(dp=2)
    trainer = Trainer(model, TrainConfig(accumulation=2), mesh=mesh, apply=[*apply, replicate()])
    torch.manual_seed(7 + dist.get_rank())
    loss = trainer.compute_gradients(batches().batch(0))
    drawn_after = torch.rand(3).tolist()
    return loss, torch.cat([g.flatten() for g in trainer.gradients().values()]), drawn_after


@pytest.mark.parametrize("recomputed", [WHOLE, PAIRS, MATMULS, ATTENTION], ids=str)
def test_what_was_dropped_is_dropped_again_and_numbers_go_on_as_before(recomputed):
    plain, again = (run_ranks(gradients_with_dropout, 2, how) for how in (None, recomputed))
    for (loss, gradients, after), (same_loss, same_gradients, same_after) in zip(plain, again, strict=True):
        assert loss == same_loss and torch.equal(gradients, same_gradients) and after == same_after


def what_is_refused():
    found = []
    for apply in (
        (replicate(), recompute()),
        (recompute(), recompute()),
        (recompute(group=0),),
        (recompute(keep="all"),),
    ):
        with pytest.raises(ValueError) as caught:
            Trainer(Decoder(LLAMA), TrainConfig(), mesh=make_mesh(dp=2), apply=apply)
        found.append(str(caught.value))
    return found


def test_its_place_and_its_options():
    late, twice, empty, unknown = run_ranks(what_is_refused, 2)[0]
    assert late.startswith("recompute: applied after replicate; each technique takes what the one before left; ")
    assert twice.startswith("recompute: applied after recompute; ")
    assert empty.startswith("checkpoint_layers: group=0, keep='nothing'; a group has layers; give group >= 1, and ")
    assert unknown.endswith("as keep one of nothing, matmuls, attention")
