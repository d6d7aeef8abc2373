"""Small decoders and batches for long contexts and experts: few heads, uneven lengths, uneven experts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

import torch
from ladder_models import STEPS

from course_lib.config import ModelConfig, TrainConfig
from course_lib.models.decoder import Decoder
from course_lib.models.moe import MoEDecoder, mixtures_of
from course_lib.parallel.table.mesh import AXES, make_mesh
from course_lib.schedules import make_schedule
from course_lib.training.balance import balanced
from course_lib.training.batches import Batches
from course_lib.training.context_technique import context
from course_lib.training.expert_technique import experts
from course_lib.training.loss_technique import chunked_loss
from course_lib.training.packed import packed
from course_lib.training.recompute_technique import recompute
from course_lib.training.sharding import fully_shard, zero
from course_lib.training.techniques import replicate, stages
from course_lib.training.tensor_technique import tensor
from course_lib.training.trainer import Trainer
from course_lib.verify import RUNGS, assert_parallel_equals

VOCABULARY = 16
TEXT = bytes(torch.randint(VOCABULARY, (4096,), generator=torch.Generator().manual_seed(0)).tolist())
LLAMA = ModelConfig(
    name="small Llama",
    hidden_size=16,
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    ffn_size=20,
    vocab_size=VOCABULARY,
    tied=False,
)
SHAPES = {
    "llama": LLAMA,
    "five layers": replace(LLAMA, name="five layers", n_layers=5),
    "one kv head": replace(LLAMA, name="one kv head", hidden_size=12, n_heads=3, n_kv_heads=1),
    "gpt": replace(LLAMA, name="GPT", n_kv_heads=4, tied=True, max_sequence=16, positions="learned", norm="layer"),
    "moe": replace(LLAMA, name="MoE", n_experts=4, experts_per_token=2, ffn_size=8),
    "six experts": replace(LLAMA, name="six experts", n_experts=6, experts_per_token=2, ffn_size=8),
    "deepseek": replace(  # a dense first layer, and a block that every token passes
        LLAMA,
        name="DeepSeek's shape",
        n_experts=4,
        experts_per_token=2,
        ffn_size=8,
        shared_ffn_size=12,
        dense_layers=1,
        dense_ffn_size=20,
    ),
    "sixteen experts": replace(LLAMA, name="16 experts", n_experts=16, experts_per_token=1, ffn_size=4),
    "top-1": replace(LLAMA, name="top-1", n_experts=4, experts_per_token=1, ffn_size=8),
}
DATA = {
    "ddp": replicate,
    "zero1": lambda: zero(1),
    "zero2": lambda: zero(2),
    "fsdp": fully_shard,
}


def model_of(shape, *, capacity=None, one_choice=False):
    """With `one_choice` all tokens choose the same experts."""
    config = SHAPES[shape]
    model = MoEDecoder(config, capacity) if config.n_experts > 1 else Decoder(config)
    for mixture in mixtures_of(model) if one_choice else ():
        mixture.router.requires_grad_(False).weight.data.zero_()
    return model


def alone(config, *, shape="llama", balance=0.0, end=None, **kind):
    """One device."""
    apply = [balanced(balance)] if balance else []
    return Trainer(model_of(shape, **kind), config, apply=[*apply, packed(end)] if end is not None else apply)


def spread(
    config,
    *,
    shape="llama",
    method=None,
    order="zigzag",
    data=None,
    spread_experts=False,
    cut_inner=False,
    sequence_parallel=None,
    schedule=None,
    balance=0.0,
    recomputed=None,
    pieces=None,
    end=None,
    **kind_and_degrees,
):
    """The same on a mesh; `recomputed` are the options of `recompute`, `pieces` those of the loss."""
    degrees = {axis: kind_and_degrees.pop(axis) for axis in AXES if axis in kind_and_degrees}
    model = model_of(shape, **kind_and_degrees)
    apply = []
    if degrees.get("tp", 1) > 1:
        apply.append(tensor(sequence_parallel=sequence_parallel))
    if method is not None:
        apply.append(context(method, order=order))
    if end is not None:
        apply.append(packed(end))
    if spread_experts:
        apply.append(experts(cut_inner=cut_inner))
    if schedule is not None:
        apply.append(stages(make_schedule(schedule, degrees["pp"], 3)))
    if recomputed is not None:
        apply.append(recompute(**recomputed))
    if pieces is not None:
        apply.append(chunked_loss(pieces))
    if balance:
        apply.append(balanced(balance))
    if data is not None:
        apply.append(DATA[data]())
    return Trainer(model, config, mesh=make_mesh(**degrees), apply=apply)


def batches(sequence=13, rows=8):
    """Thirteen positions divide by nothing, and sequences of a batch end at different places."""
    return Batches(text=TEXT, batch_size=rows, sequence=sequence, ragged=True)


def climbs(*, accumulation=1, data_of=None, **case):
    """The whole ladder, from outputs to a checkpoint, for a case and its degrees."""
    degrees = [case[axis] for axis in AXES if axis in case]
    shared = {name: case[name] for name in ("shape", "balance", "capacity", "one_choice", "end") if name in case}

    def make(build, options, config):
        return build(replace(config, accumulation=accumulation), **options)

    one, many = partial(make, alone, shared), partial(make, spread, case)
    report = assert_parallel_equals(one, many, data_of or batches(), world_size=prod(degrees), steps=STEPS)
    assert tuple(report.deviations) == RUNGS and report.max_deviation <= 1e-11


def said(work):
    """The one line of a ValueError."""
    try:
        work()
    except ValueError as error:
        return str(error)
    return ""


def train(apply, batch=None, shape="llama", capacity=None, **degrees):
    """Make a trainer of some techniques, and let it take a step."""
    model = model_of(shape, capacity=capacity)
    trainer = Trainer(model, TrainConfig(), mesh=make_mesh(**degrees), apply=[make() for make in apply])
    if batch is not None:
        trainer.step(batch.batch(0))
