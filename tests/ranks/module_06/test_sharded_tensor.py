"""Two axes at once: ranks along "dp" share the weights of which the ranks along "tp" have parts."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from math import prod
from types import SimpleNamespace

import pytest
import torch
from ladder_models import STEPS
from sharded_models import TOKENS, VOCABULARY

from course_lib import comm
from course_lib.comm.traces import Traffic
from course_lib.config import ModelConfig, TrainConfig
from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.sharding import sharding_rows, sharding_step
from course_lib.costs.comm.tensor import rows_traffic, tensor_rows
from course_lib.costs.model.units import decoder_units
from course_lib.models.decoder import Decoder
from course_lib.parallel.sharding.wrapping import by_block_group, size_based
from course_lib.parallel.table.layout import coordinates
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import ledger, run_ranks
from course_lib.split import split_sizes
from course_lib.training.sharded_checkpoint import load_pieces, save_pieces
from course_lib.training.sharding import fully_shard, zero
from course_lib.training.techniques import replicate
from course_lib.training.tensor_technique import tensor
from course_lib.training.trainer import Trainer
from course_lib.verify import RUNGS, assert_parallel_equals
from tests.ranks.module_07.test_two_axes import assert_same_state

LLAMA = ModelConfig(  # heads divide by 2 and 4 ranks, nothing else does
    name="small Llama",
    hidden_size=8,
    n_layers=3,
    n_heads=4,
    n_kv_heads=2,
    ffn_size=13,
    vocab_size=VOCABULARY,
    tied=False,
)
GPT = replace(
    LLAMA,
    n_kv_heads=4,
    gated_ffn=False,
    positions="learned",
    max_sequence=8,
    norm="layer",
    biases=("qkv", "attention_output", "ffn"),
    tied=True,
)
EVEN = replace(LLAMA, n_kv_heads=4, ffn_size=16, vocab_size=20)
ADAMW = TrainConfig(optimizer="adamw", learning_rate=0.01, weight_decay=0.1, max_norm=0.05)
KEEP, REGATHER = tensor(sequence_parallel="keep"), tensor(sequence_parallel="regather")
QUANTISED = fully_shard(gather_dtype=torch.int8)


def frozen():
    model = Decoder(LLAMA)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("norm" not in name and "v_proj" not in name and "layers.1" not in name)
    return model


MODELS = {
    "llama": lambda: Decoder(LLAMA),
    "tied": lambda: Decoder(replace(LLAMA, tied=True)),
    "gpt": lambda: Decoder(GPT),
    "frozen": frozen,
    "even": lambda: Decoder(EVEN),
    "one kv head": lambda: Decoder(replace(LLAMA, n_kv_heads=1)),
}


def alone(config, model="llama"):
    return Trainer(MODELS[model](), config)


def both(config, dp, tp, apply, model="llama"):
    return Trainer(MODELS[model](), config, mesh=make_mesh(dp=dp, tp=tp), apply=apply)


@pytest.mark.parametrize(
    ("dp", "tp", "apply", "model"),
    [
        (1, 2, (tensor(), fully_shard()), "llama"),
        (2, 2, (tensor(), fully_shard()), "llama"),
        (2, 2, (KEEP, fully_shard(algorithm="native")), "tied"),
        (2, 2, (REGATHER, fully_shard(size_based(300))), "llama"),
        (2, 2, (tensor(), fully_shard(strategy="SHARD_GRAD_OP")), "gpt"),
        (2, 2, (KEEP, zero(1)), "frozen"),
        (2, 2, (tensor(), zero(2)), "tied"),
        (2, 2, (tensor(), fully_shard(strategy="NO_SHARD", overlap=False)), "frozen"),
        (3, 2, (KEEP, fully_shard(by_block_group(2))), "frozen"),
        (3, 2, (KEEP, fully_shard()), "even"),  # some ranks have no number of any norm
        (2, 2, (KEEP, fully_shard()), "one kv head"),  # which has two copies
        (4, 2, (KEEP, fully_shard(strategy="HYBRID_SHARD", shards=2)), "llama"),
    ],
)
def test_it_equals_one_device(dp, tp, apply, model):
    together = partial(both, dp=dp, tp=tp, apply=apply, model=model)
    report = assert_parallel_equals(
        partial(alone, model=model), together, TOKENS.batch, world_size=dp * tp, steps=STEPS
    )
    assert tuple(report.deviations) == RUNGS and report.max_deviation <= 1e-11


def kept_after_steps(apply):
    """What is equal on all ranks along tp, whole, after steps in float32, where the order of a sum shows."""
    torch.manual_seed(0)
    trainer = both(ADAMW, 3, 2, apply)
    for number in range(4):
        trainer.step(TOKENS.batch(number))
    layout = trainer.local.layout
    return {name: x for name, x in trainer.parameters().items() if "tp" not in layout.places[name].shard}


@pytest.mark.parametrize("form", [tensor(), KEEP], ids=["whole sequence", "cut sequence"])
def test_copies_stay_equal_bit_by_bit(form):
    """On three ranks a ring adds up in another order where a number lies elsewhere in its row."""
    found = run_ranks(kept_after_steps, 6, (form, fully_shard()))
    assert len(found) == 6 and len(found[0]) == 7
    for name, x in found[0].items():
        assert all(torch.equal(other[name], x) for other in found)


def held():
    trainer = both(ADAMW, 2, 2, (tensor(), fully_shard()))
    layout, at = trainer.local.layout, trainer.local.at
    numbers = {name: p.numel() for name, p in trainer.local.parameters.items()}
    assert numbers == {name: layout.size_at(name, at) for name in layout.parameters}
    return sum(numbers.values())


def test_every_rank_keeps_its_part_of_a_part():
    every = sum(p.numel() for p in Decoder(LLAMA).parameters())
    copied = sum(p.numel() for name, p in Decoder(LLAMA).named_parameters() if "norm" in name)
    found = run_ranks(held, 4)
    assert sum(found) == every + copied and max(found) - min(found) < 0.15 * min(found)


ROWS, SEQUENCE = 7, 5


def second_step(dp, tp, config, form, options):
    """In it each unit's successor is known; the calls of wrapping are not counted. How many numbers tp ranks add up."""
    torch.manual_seed(0)
    apply = tensor(sequence_parallel=form), fully_shard(**options)
    trainer = Trainer(Decoder(config), TrainConfig(), mesh=make_mesh(dp=dp, tp=tp), apply=apply)
    trainer.step(TOKENS.batch(0))
    comm.ledger.clear()
    trainer.compute_gradients(TOKENS.batch(1))
    trainer.update()
    layout, at = trainer.local.layout, trainer.local.at
    return sum(layout.size_at(name, at) for name, place in layout.places.items() if "tp" in place.partial)


@pytest.mark.parametrize(
    ("dp", "tp", "form", "options"),
    [
        (2, 2, None, {"strategy": "SHARD_GRAD_OP"}),
        (2, 4, "regather", {}),
        (3, 2, "keep", {"policy": by_block_group(2)}),
    ],
)
def test_bytes_and_messages_are_those_of_both_formulas(dp, tp, form, options):
    """Along dp go units whose tensors are parts, along tp what a share of the batch needs, and pieces of norms."""
    pieces = run_ranks(second_step, dp * tp, dp, tp, EVEN, form, options)
    at = list(coordinates({"dp": dp, "tp": tp}))
    units = decoder_units(EVEN, *(("by_block_group", 2) if "policy" in options else ()), tp=tp)
    strategy = options.get("strategy", "FULL_SHARD")
    along_dp = [sharding_step(sharding_rows(units, strategy=strategy, world_size=dp))]
    along_dp += [comm_time("all_gather", "ring", world_size=dp, length=dp, itemsize=8 * n) for n in (2, 1)]  # reports
    found = [cost.in_rows([each["dp"] for each in at]) for cost in along_dp]
    of_share = []
    for share, batch in enumerate(split_sizes(ROWS, dp)):
        rows = tensor_rows(EVEN, tp=tp, batch=batch, sequence=SEQUENCE, sequence_parallel=form)
        cost = rows_traffic((row for row in rows if row.when != "step"), tp=tp)
        if summed := pieces[share * tp]:
            cost += comm_time("all_reduce", "ring", world_size=tp, length=summed, itemsize=4)
        of_share.append(Traffic.predicted([cost]))
    along_tp = SimpleNamespace(
        **{
            kind: tuple(getattr(of_share[each["dp"]], kind)[each["tp"]] for each in at)
            for kind in ("sent_bytes", "received_bytes", "messages")
        }
    )
    assert bool(sum(pieces)) == (form is not None)
    assert Traffic.measured(ledger()) == Traffic.predicted([*found, along_tp])


CHAIN = [  # degrees and techniques
    ({"dp": 2, "tp": 2}, (tensor(), fully_shard())),
    ({"dp": 4}, (fully_shard(strategy="HYBRID_SHARD", shards=2),)),
    ({"dp": 3, "tp": 2}, (KEEP, fully_shard(by_block_group(2)))),
    ({"tp": 4}, (tensor(),)),
    ({"dp": 2, "tp": 2}, (tensor(), zero(2))),
    ({}, ()),
    ({"dp": 2, "tp": 2}, (REGATHER, fully_shard(size_based(300)))),
    ({"dp": 2}, (replicate(),)),
]


def pass_on(degrees, apply, load, save):
    """Load, keep what was loaded, train a step, save in pieces."""
    torch.manual_seed(sum(degrees.values()))
    mesh = make_mesh(**degrees) if degrees else None
    trainer = Trainer(Decoder(replace(LLAMA, tied=True)), ADAMW, mesh=mesh, apply=apply)
    if load:
        load_pieces(trainer, load)
    loaded = copy.deepcopy(trainer.state())
    trainer.step(TOKENS.batch(0))
    save_pieces(trainer, save)
    return loaded, trainer.state()


def test_pieces_are_taken_over_bit_by_bit_from_layout_to_layout(tmp_path):
    before = None
    for number, (degrees, apply) in enumerate(CHAIN):
        args = degrees, apply, before and tmp_path / str(number - 1), tmp_path / str(number)
        results = run_ranks(pass_on, ranks, *args) if (ranks := prod(degrees.values())) > 1 else [pass_on(*args)]
        assert len(results) == ranks
        for loaded, _ in results:
            if before:
                assert_same_state(loaded, before)
        before = results[0][1]


def refused(apply, model, degrees):
    with comm.settings(ledger=False):
        try:
            Trainer(model(), TrainConfig(), mesh=make_mesh(**degrees), apply=apply)
        except ValueError as error:
            return str(error)
    return None


def test_what_does_not_go_together_is_refused_on_all_ranks():
    order = "apply each once, in the order tensor, context, packed, experts, stages, autocast, recompute, chunked_loss,"
    cases = [
        ((fully_shard(), tensor()), MODELS["llama"], {"dp": 2, "tp": 2}, order),
        ((fully_shard(), fully_shard()), MODELS["llama"], {"dp": 4}, order),
        ((tensor(), QUANTISED), MODELS["llama"], {"dp": 2, "tp": 2}, "leave one of them out"),
    ]
    for apply, model, degrees, way_out in cases:
        found = run_ranks(refused, prod(degrees.values()), apply, model, degrees)
        assert len(set(found)) == 1 and way_out in str(found[0]), found[0]
