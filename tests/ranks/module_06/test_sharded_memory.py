"""What a rank keeps during a step, from instant to instant: the run's storages against the formulas."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.distributed import get_world_size

from course_lib import comm
from course_lib.config import ModelConfig, TrainConfig
from course_lib.costs.model.conventions import CONVENTIONS
from course_lib.costs.model.parameters import model_parameters
from course_lib.costs.model.states import state_bytes
from course_lib.costs.model.step_memory import NumberBytes, peak, step_memory, unit_activations
from course_lib.costs.model.units import decoder_units
from course_lib.gauges.track import between_micro_batches, track_step
from course_lib.models.decoder import Decoder
from course_lib.parallel.sharding.quantised import BLOCK
from course_lib.parallel.sharding.wrapping import by_block_and_size, by_block_group
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import ledger, run_ranks
from course_lib.training.batches import Batches
from course_lib.training.sharding import fully_shard, zero
from course_lib.training.techniques import replicate
from course_lib.training.trainer import Trainer

EVEN = ModelConfig(
    name="even", hidden_size=32, n_layers=4, n_heads=4, n_kv_heads=2, ffn_size=64, vocab_size=50, tied=False
)
ODD = replace(EVEN, name="odd", ffn_size=61, vocab_size=301)  # an embedding larger than a block, pieces that differ
TEXT = bytes(torch.randint(50, (4096,), generator=torch.Generator().manual_seed(0)).tolist())
SEQUENCE, ROWS = 8, 2  # rows of a micro-batch
NAMED = ("weights", "gathered", "gradients", "reducing", "gradient_pieces")
COUNTER = 4  # bytes: AdamW counts the steps of each tensor
SMALL = 512  # rotary angles, numbers of targets, the loss
TENSORS = 9 * EVEN.n_layers + 3
BF16 = fully_shard(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
INT8 = fully_shard(gather_dtype=torch.int8)
NO_RESHARD, NO_SHARD = fully_shard(strategy="SHARD_GRAD_OP"), fully_shard(strategy="NO_SHARD")
HYBRID = fully_shard(by_block_group(3), strategy="HYBRID_SHARD", shards=2)


def tracked(technique, config, accumulation=1):
    """The second step of a rank: states are there, and the order of units is known."""
    torch.manual_seed(0)
    ranks = get_world_size()
    train = TrainConfig(optimizer="adamw", accumulation=accumulation)
    trainer = Trainer(Decoder(config), train, mesh=make_mesh(dp=ranks), apply=(technique,))
    batches = Batches(text=TEXT, batch_size=ROWS * ranks * accumulation, sequence=SEQUENCE)
    torch.backends.mkldnn.set_flags(_enabled=False)  # its room for bf16 depends on the processor
    try:
        trainer.step(batches.batch(0))
        comm.ledger.clear()
        return track_step(trainer, batches.batch(1))
    finally:
        torch.backends.mkldnn.set_flags(_enabled=True)


@pytest.mark.parametrize(
    ("strategy", "technique", "ranks", "wrapping", "options"),
    [
        ("DDP", replicate(), 2, ("by_block",), {}),
        ("ZeRO-1", zero(1), 2, ("by_block",), {}),
        ("ZeRO-2", zero(2), 2, ("by_block",), {}),
        ("NO_SHARD", NO_SHARD, 2, ("by_block",), {}),
        ("SHARD_GRAD_OP", NO_RESHARD, 2, ("by_block",), {}),
        ("FULL_SHARD", fully_shard(), 2, ("by_block",), {}),
        ("FULL_SHARD", fully_shard(overlap=False), 2, ("by_block",), {"overlap": False}),
        ("FULL_SHARD", BF16, 2, ("by_block",), {"numbers": NumberBytes(computing=2)}),
        ("FULL_SHARD", INT8, 2, ("by_block",), {"numbers": NumberBytes(block=BLOCK)}),
        ("FULL_SHARD", fully_shard(by_block_and_size), 4, ("by_block_and_size",), {}),
        ("HYBRID_SHARD", HYBRID, 4, ("by_block_group", 3), {"shards": 2}),
    ],
)
def test_every_instant_has_the_formula_s_bytes(strategy, technique, ranks, wrapping, options):
    """Exactly, but for a few small tensors. The peak has on top what a block uses while it computes: a norm's gradients
    in fp32, and under DDP the gradient that is being copied into its bucket."""
    config = ODD if ranks == 4 else EVEN
    units = decoder_units(config, *wrapping)
    itemsize = options["numbers"].computing if "numbers" in options else 4
    kept = unit_activations(config, units, batch=ROWS, sequence=SEQUENCE, itemsize=itemsize)
    by_rank = run_ranks(tracked, ranks, technique, config)
    assert len(by_rank) == ranks
    for rank, instants in enumerate(by_rank):
        moments = step_memory(units, kept, strategy=strategy, world_size=ranks, rank=rank, **options)
        wanted = {moment.name: moment for moment in moments}
        compared = [instant for instant in instants if instant.name in wanted]
        assert len(compared) == 3 + 2 * len([name for name in wanted if name.startswith("forward layers")])
        for found in compared:
            want = wanted[found.name]
            assert [getattr(found, kind) for kind in NAMED] == [getattr(want, kind) for kind in NAMED], found.name
            assert found.optimizer == want.optimizer + COUNTER * TENSORS
            assert 0 <= found.activations - want.activations <= SMALL, found.name
        used = (
            2 * 4 * ROWS * SEQUENCE * config.hidden_size
            + SMALL
            + (strategy == "DDP") * 4 * config.ffn_size * config.hidden_size
        )
        most = max(instant.peak for instant in instants if instant.name != "gradients")
        assert 0 <= most - peak(moments).total <= used


STAGES = {0: replicate(), 1: zero(1), 2: zero(2), 3: fully_shard()}


def test_the_table_of_zero_is_measured():
    """Weights, gradients and states that last, between two micro-batches; all pieces of this model are equal."""
    ranks, parameters, fp32 = 4, model_parameters(EVEN), CONVENTIONS["fp32"]
    totals = []
    for stage, technique in STAGES.items():
        want = state_bytes(parameters, fp32, zero_stage=stage, shards=ranks)
        for instants in run_ranks(tracked, ranks, technique, EVEN, 2):
            found = between_micro_batches(instants)
            root_is_whole = found.gathered  # the first block has begun: its unit, the next and the root's are there
            assert (found.weights, found.gradients + found.gradient_pieces) == (want.weights, want.gradients)
            assert found.optimizer == want.optimizer + COUNTER * TENSORS
            assert (root_is_whole > 0) == (stage == 3) and found.reducing == 0
        totals.append(want.total)
    assert totals == sorted(totals, reverse=True) and totals[0] == 16 * parameters == ranks * totals[3]


def for_a_while(technique, layers):
    """The most bytes of whole units, and of a row under way, at any instant."""
    instants = tracked(technique, replace(EVEN, n_layers=layers))
    return max(instant.gathered for instant in instants), max(instant.reducing for instant in instants)


@pytest.mark.parametrize("technique", [zero(1), zero(2), fully_shard(), INT8])
def test_buffers_do_not_grow_with_the_number_of_layers(technique):
    """ZeRO-R asks for buffers of constant size: here a unit is what is fused, and the policy says how large it is."""
    found = []
    for layers in (3, 6):
        most = run_ranks(for_a_while, 2, technique, layers)
        found.append((most, max(event.nbytes for event in ledger().events)))
    (shallow, longest), (deep, as_long) = found
    assert shallow == deep and longest == as_long > 0


def test_units_that_stay_whole_do():
    shallow, deep = (run_ranks(for_a_while, 2, NO_RESHARD, layers) for layers in (3, 6))
    assert all(more > less and row == as_large > 0 for (less, row), (more, as_large) in zip(shallow, deep, strict=True))
