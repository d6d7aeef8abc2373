"""What sharded data parallelism sends, to the byte and the message: the run against the formulas."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from sharded_models import MODELS, TOKENS, batch_of, sharded

from course_lib import comm
from course_lib.comm.traces import Traffic
from course_lib.config import TrainConfig
from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.sharding import sharding_rows, sharding_step
from course_lib.costs.model.units import UnitShapes
from course_lib.parallel.sharding.quantised import BLOCK
from course_lib.parallel.sharding.units import label_of, weights_of_units
from course_lib.parallel.sharding.wrapping import by_block, by_block_and_size, by_block_group, size_based
from course_lib.ranks import ledger, run_ranks
from course_lib.training.sharding import fully_shard, zero
from course_lib.training.techniques import replicate

MIXED = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
OPENING = ("embedding.weight",)
TECHNIQUES = {
    "DDP": lambda policy, **options: replicate(),
    "ZeRO-1": lambda policy, **options: zero(1, policy, **options),
    "ZeRO-2": lambda policy, **options: zero(2, policy, **options),
}


def technique_of(strategy, policy, options):
    if strategy in TECHNIQUES:
        return TECHNIQUES[strategy](policy, **options)
    return fully_shard(policy, strategy=strategy, **options)


def units_of(model, policy):
    """The units as the formulas take them."""
    found = []
    for group, named in weights_of_units(model, policy).items():
        shapes = {name: tuple(p.shape) for name, p in named.items()}
        trained = [name for name, p in named.items() if p.requires_grad]
        opening = [name for name in trained if not group and name in OPENING]
        found.append(
            UnitShapes(
                label=label_of(group),
                trained=tuple(shapes[name] for name in trained if name not in opening),
                frozen=tuple(shapes[name] for name in named if name not in trained),
                opening=tuple(shapes[name] for name in opening),
            )
        )
    return tuple(found)


def one_step(strategy, policy, options, model, accumulation):
    """The second step, in which each unit's successor is known; the calls of wrapping are not counted."""
    torch.manual_seed(0)
    technique = technique_of(strategy, policy, options)
    trainer = sharded(TrainConfig(accumulation=accumulation), technique, model)
    batch = replace(TOKENS, batch_size=11).batch if batch_of(model) == TOKENS.batch else batch_of(model)
    trainer.step(batch(0))
    comm.ledger.clear()
    trainer.compute_gradients(batch(1))
    trainer.update()


def reports(world_size):
    """What the trainer's two small all-gathers send: samples and targets, and the losses, as float64."""
    sizes = {"world_size": world_size, "length": world_size}
    return [comm_time("all_gather", "ring", itemsize=8 * numbers, **sizes) for numbers in (2, 1)]


ONE_UNIT = size_based(10**6)  # DDP has one bucket: the root's row
CASES = [  # each strategy meets wrappings, models, ranks and numbers of micro-batches that differ from case to case
    ("DDP", ONE_UNIT, {}, "llama", 3, 2),
    ("DDP", ONE_UNIT, {}, "frozen", 2, 1),
    ("ZeRO-1", by_block, {}, "frozen", 3, 2),
    ("ZeRO-1", size_based(150), {}, "tied", 4, 1),
    ("ZeRO-2", by_block_group(2), {}, "llama", 4, 2),
    ("ZeRO-2", by_block, {"algorithm": "naive"}, "buffers", 3, 1),
    ("NO_SHARD", by_block, {"reduce_dtype": torch.float32}, "tied", 3, 2),
    ("NO_SHARD", by_block_and_size, MIXED, "frozen", 2, 1),
    ("SHARD_GRAD_OP", by_block_and_size, {}, "llama", 2, 2),
    ("SHARD_GRAD_OP", by_block, MIXED, "frozen", 4, 1),
    ("FULL_SHARD", by_block, {}, "llama", 3, 1),
    ("FULL_SHARD", by_block, MIXED, "tied", 4, 2),
    ("FULL_SHARD", size_based(150), {"param_dtype": torch.bfloat16}, "frozen", 3, 2),
    ("FULL_SHARD", size_based(150), {}, "frozen embedding", 3, 1),
    ("FULL_SHARD", by_block_group(2), {"overlap": False}, "frozen", 2, 1),
    ("FULL_SHARD", by_block, {"algorithm": "naive"}, "mlp", 4, 1),
    ("FULL_SHARD", by_block, {"secondary": 2}, "frozen", 4, 2),
    ("FULL_SHARD", by_block_group(2), MIXED | {"secondary": 3}, "tied", 6, 1),
    ("FULL_SHARD", by_block, {"gather_dtype": torch.int8}, "frozen", 3, 2),
    ("FULL_SHARD", by_block_group(2), MIXED | {"gather_dtype": torch.int8, "secondary": 2}, "tied", 4, 1),
    ("DDP", ONE_UNIT, {}, "lora", 3, 2),  # what adapters share is their gradients alone …
    ("FULL_SHARD", by_block, MIXED, "lora", 4, 1),  # … and frozen weights, where these are shared
    ("HYBRID_SHARD", by_block, MIXED | {"shards": 2}, "frozen", 4, 2),
    ("HYBRID_SHARD", by_block_and_size, {"shards": 2, "overlap": False}, "tied", 4, 1),
]


@pytest.mark.parametrize(
    ("strategy", "policy", "options", "model", "ranks", "accumulation"), sorted(CASES, key=lambda case: case[4])
)
def test_bytes_and_messages_equal_the_formula(strategy, policy, options, model, ranks, accumulation):
    run_ranks(one_step, ranks, strategy, policy, options, model, accumulation)
    gathered, reduced = options.get("param_dtype", torch.float32), options.get("reduce_dtype")
    rows = sharding_rows(
        units_of(MODELS[model](), policy),
        strategy=strategy,
        world_size=ranks,
        shards=options.get("shards"),
        secondary=options.get("secondary"),
        itemsize=gathered.itemsize,
        reduce_itemsize=reduced.itemsize if reduced else None,
        block=BLOCK if "gather_dtype" in options else None,
        microbatches=accumulation,
    )
    step = sharding_step(rows, algorithm=options.get("algorithm", "ring"))
    assert Traffic.measured(ledger()) == Traffic.predicted([step, *reports(ranks)])
    if "shards" not in options and "secondary" not in options:  # whose groups count their calls apart
        calls = Counter({"all_gather": len(reports(ranks))})
        for row in rows:
            calls[row.operation] += row.times
        assert Counter(operation for _, operation, _ in ledger().calls()) == calls
