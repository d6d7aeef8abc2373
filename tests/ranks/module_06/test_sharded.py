"""Sharded data parallelism against one device: ZeRO-1 to 3, every strategy, every wrapping, the whole ladder."""

from __future__ import annotations

from functools import partial

import pytest
from ladder_models import STEPS
from sharded_models import alone, batch_of, sharded

from course_lib.config import TrainConfig
from course_lib.parallel.sharding.wrapping import by_block_and_size, by_block_group, by_name, size_based
from course_lib.ranks import run_ranks
from course_lib.training.sharding import fully_shard, zero
from course_lib.verify import RUNGS, assert_parallel_equals

HYBRID = fully_shard(strategy="HYBRID_SHARD", shards=2)


def climb(technique, model, world_size):
    """The whole ladder against one device."""
    together = partial(sharded, technique=technique, model=model)
    return assert_parallel_equals(
        partial(alone, model=model), together, batch_of(model), world_size=world_size, steps=STEPS
    )


@pytest.mark.parametrize(
    ("technique", "model", "world_size"),
    [  # by their number of ranks, so that neighbours share one pool
        (fully_shard(), "llama", 1),
        (zero(1), "frozen", 2),
        (fully_shard(algorithm="native"), "tied", 2),
        (fully_shard(overlap=False), "llama", 2),
        (fully_shard(strategy="SHARD_GRAD_OP"), "buffers", 2),
        (fully_shard(size_based(150)), "llama", 2),
        (fully_shard(by_name("layers.*.ffn", "layers.*")), "llama", 2),
        (zero(2), "tied", 2),
        (zero(1), "llama", 3),
        (zero(2), "buffers", 3),
        (fully_shard(), "frozen", 3),
        (fully_shard(strategy="SHARD_GRAD_OP"), "frozen", 3),
        (fully_shard(strategy="NO_SHARD"), "tied", 3),
        (fully_shard(by_block_group(2)), "tied", 3),
        (fully_shard(by_block_and_size), "llama", 3),
        (HYBRID, "frozen", 4),
        (fully_shard(strategy="HYBRID_SHARD", shards=3), "mlp", 6),
    ],
)
def test_it_equals_one_device(technique, model, world_size):
    report = climb(technique, model, world_size)
    assert tuple(report.deviations) == RUNGS and report.max_deviation <= 1e-11


def test_the_perceptron_has_19_of_its_38_parameters_on_each_of_two_ranks():
    report = climb(fully_shard(), "mlp", 2)
    assert report.max_deviation <= 1e-11

    def held():
        trainer = sharded(TrainConfig(), fully_shard(), "mlp")
        return sum(p.numel() for p in trainer.model.parameters()), sum(
            p.numel() for p in trainer.local.parameters.values()
        )

    assert run_ranks(held, 2) == [(19, 19)] * 2
