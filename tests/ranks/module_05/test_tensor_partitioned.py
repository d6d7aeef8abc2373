"""Partitioned activation checkpoints: a rank keeps a piece of a recomputed layer's input, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from ladder_models import STEPS

from course_lib import comm
from course_lib.comm.traces import Traffic
from course_lib.config import ParallelConfig, TrainConfig
from course_lib.costs.comm.tensor import tensor_step
from course_lib.costs.model.activations import bytes_on_rank, checkpointed_activations
from course_lib.gauges.allocated import allocated_bytes
from course_lib.models.decoder import Decoder
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import ledger, run_ranks
from course_lib.training.recompute_technique import recompute
from course_lib.training.sharding import fully_shard
from course_lib.training.tensor_technique import tensor
from course_lib.training.trainer import Trainer
from course_lib.verify import RUNGS, assert_parallel_equals
from tests.ranks.module_05.test_tensor import LLAMA, SHAPES, TOKENS, alone

ROWS, SEQUENCE = 7, 5
PARTITIONED = {"partitioned": True}


def recomputed(train, config, *, dp=1, then=(), partitioned=False, **options):
    """A trainer whose layers are recomputed."""
    mesh = make_mesh(dp=dp, tp=dist.get_world_size() // dp)
    apply = (tensor(**options), recompute(partitioned=partitioned), *then)
    return Trainer(Decoder(config), train, mesh=mesh, apply=apply)


@pytest.mark.parametrize(
    ("shape", "ranks", "options"),
    [
        ("llama, 1 kv head", 1, {}),
        ("gpt", 2, {}),
        ("llama", 3, {}),
        ("llama, 2 kv heads", 4, {"dp": 2, "then": (fully_shard(),)}),
    ],
)
def test_it_equals_one_device(shape, ranks, options):
    """Seven rows of five positions: no number of ranks divides an input evenly."""
    together = partial(recomputed, config=SHAPES[shape], **PARTITIONED, **options)
    report = assert_parallel_equals(partial(alone, shape=shape), together, TOKENS, world_size=ranks, steps=STEPS)
    assert tuple(report.deviations) == RUNGS and report.max_deviation <= 1e-11


def one_backward(config, accumulation, options):
    torch.manual_seed(0)
    trainer = recomputed(TrainConfig(accumulation=accumulation), config, **options)
    comm.ledger.clear()
    trainer.compute_gradients(TOKENS.batch(0))


@pytest.mark.parametrize(
    ("shape", "ranks", "accumulation", "options", "kind"),
    [
        ("gpt", 3, 2, PARTITIONED, {"recompute": "partitioned"}),
        ("olmo", 4, 1, PARTITIONED, {"recompute": "partitioned"}),
        ("llama, 2 kv heads", 2, 1, {}, {"recompute": "full"}),
        ("llama", 3, 1, {"sequence_parallel": "regather"}, {"recompute": "full", "sequence_parallel": "regather"}),
    ],
)
def test_bytes_and_messages_equal_the_formula(shape, ranks, accumulation, options, kind):
    config = SHAPES[shape]
    run_ranks(one_backward, ranks, config, accumulation, options)
    step = tensor_step(config, tp=ranks, batch=ROWS, sequence=SEQUENCE, microbatches=accumulation, **kind)
    assert Traffic.measured(ledger()) == Traffic.predicted([step])


def kept_by_two_layers(options):
    """Bytes that exist after forward with four layers, beyond those with two: the allocator's count."""
    found = []
    for layers in (2, 4):
        trainer = recomputed(TrainConfig(), replace(LLAMA, n_kv_heads=12, n_layers=layers), **options)
        inputs, targets = replace(TOKENS, batch_size=6, sequence=10, ragged=False).batch(0)
        trainer.engine.ends.told(inputs)
        with comm.settings(guard=False):  # what ranks compare is small, and freed by other threads
            found.append(allocated_bytes(partial(_loss, trainer, inputs, targets)))
    return found[1] - found[0]


def _loss(trainer, inputs, targets):
    return trainer.engine.ends.loss(trainer.model(inputs), targets)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_what_layers_keep_is_divided_by_the_ranks(ranks):
    whole = 2 * 6 * 10 * LLAMA.hidden_size * 4
    sizes = {"batch": 6, "sequence": 10, "itemsize": 4}
    layer = checkpointed_activations(LLAMA, **sizes, partitioned=True)
    assert 2 * bytes_on_rank(layer, ParallelConfig(tp=ranks)) * ranks == whole
    assert run_ranks(kept_by_two_layers, ranks, PARTITIONED) == [whole // ranks] * ranks


def test_under_sequence_parallelism_an_input_is_a_piece_already():
    whole = 2 * 6 * 10 * LLAMA.hidden_size * 4
    assert run_ranks(kept_by_two_layers, 2, {}) == [whole] * 2
    assert run_ranks(kept_by_two_layers, 2, {"sequence_parallel": "keep"}) == [whole // 2] * 2


def refused():
    found = []
    for cuts in ((tensor(sequence_parallel="keep"),), ()):
        with pytest.raises(ValueError) as caught:
            Trainer(Decoder(LLAMA), TrainConfig(), mesh=make_mesh(tp=2), apply=(*cuts, recompute(**PARTITIONED)))
        found.append(str(caught.value))
    return found


def test_where_the_ranks_have_other_inputs_it_is_refused():
    for cut, other in run_ranks(refused, 2):
        assert cut.startswith("recompute: partitioned with sequence parallelism; pieces are cut from an input that ")
        assert other.startswith("recompute: partitioned with no tensor technique; ")
    with pytest.raises(ValueError, match="recompute='partitioned', sequence_parallel='keep'; .*; choose recompute='f"):
        tensor_step(LLAMA, tp=2, batch=1, sequence=4, recompute="partitioned", sequence_parallel="keep")
