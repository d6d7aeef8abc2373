"""The verification ladder on real ranks: what equals one device passes, whatever the model and the batch."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch
from ladder_models import EVEN, GPT, TEXT, UNEVEN, Replicated, Toy, alone, data_parallel, in_parts, some_ignored
from torch import nn

from course_lib import ranks
from course_lib.costs import comm_time
from course_lib.costs.comm.ddp import ddp_step, ddp_wrapping
from course_lib.models.decoder import Decoder
from course_lib.models.mlp import MLP
from course_lib.training.batches import Batches
from course_lib.training.trainer import Trainer
from course_lib.units import MiB
from course_lib.verify import RUNGS, NotEqual, assert_parallel_equals
from course_lib.verify.clipping import norm_that_clips
from course_lib.verify.diagnosis import BYTES, compare_bytes

BOTH = {"tied": True, "frozen": True}


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_ranks_equal_one_device_on_uneven_batches(world_size, dtype):
    started = time.perf_counter()
    report = assert_parallel_equals(alone, data_parallel, UNEVEN, world_size=world_size, dtype=dtype)
    whole_s = time.perf_counter() - started
    assert 0 < report.step_s < whole_s and 0 < report.alone_step_s < whole_s
    assert report.world_size == len(report.peak_state_bytes) == world_size
    assert tuple(report.deviations) == RUNGS
    assert report.tolerance == {torch.float64: 1e-11, torch.float32: 1e-5}[dtype]
    assert len(report.losses) == 3 and len(report.adamw_losses) == 6
    assert report.losses[2] < report.losses[0]


@pytest.mark.parametrize(
    ("reference", "parallel", "batches"),
    [
        (partial(alone, tied=True), partial(data_parallel, tied=True), UNEVEN),
        (partial(alone, frozen=True), partial(data_parallel, frozen=True), UNEVEN),
        (alone, partial(in_parts, accumulation=2), UNEVEN),
        (partial(alone, **BOTH), partial(in_parts, accumulation=3, **BOTH), EVEN),
        (alone, data_parallel, some_ignored),
    ],
    ids=["tied", "frozen", "accumulation", "all at once", "a rank without targets"],
)
def test_every_kind_of_training_climbs(reference, parallel, batches):
    assert assert_parallel_equals(reference, parallel, batches, world_size=4).max_deviation <= 1e-11


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_gradient_that_is_zero_by_mathematics_holds_rounding_alone(dtype):
    """A key's bias: its gradients differ from device to device, and mean nothing."""
    assert_parallel_equals(
        lambda config: Trainer(Decoder(GPT), config),
        lambda config: Replicated(Decoder(GPT), config),
        UNEVEN,
        world_size=3,
        dtype=dtype,
    )


def rows_of_numbers(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(5, 6, generator=generator), torch.randint(2, (5,), generator=generator)


def test_inputs_that_are_no_tokens_take_the_dtype():
    report = assert_parallel_equals(
        lambda config: Trainer(MLP(gelu=True), config),
        lambda config: Replicated(MLP(gelu=True), config),
        rows_of_numbers,
        world_size=3,
    )
    assert report.max_deviation <= 1e-11


@pytest.mark.parametrize(
    "options",
    [
        *({"algorithm": algorithm} for algorithm in ("naive", "tree", "recursive_doubling", "native")),
        {"bucket_cap_mb": 64 / MiB},
        {"overlap": False},
        {"static_graph": True},
    ],
    ids=str,
)
def test_however_gradients_are_averaged(options):
    def parallel(config):
        return Replicated(Toy(), config, **options)

    assert_parallel_equals(alone, parallel, UNEVEN, world_size=3, rungs=RUNGS[:5])


def test_bytes_are_those_of_training_alone_and_memory_is_weights_and_gradients():
    world_size, steps = 3, 2
    config = replace(GPT, name="Llama", tied=False, positions="rotary", norm="rms", gated_ffn=True, biases=())
    report = assert_parallel_equals(
        lambda c: Trainer(Decoder(config), c),
        lambda c: Replicated(Decoder(config), c),
        EVEN,
        world_size=world_size,
        steps=steps,
    )
    lengths = [parameter.numel() for parameter in Decoder(config).parameters()]
    gather = partial(comm_time, "all_gather", "ring", world_size=world_size, itemsize=8)
    expected = [
        ddp_wrapping([(lengths, 8)], world_size=world_size),
        *[ddp_step(lengths, world_size=world_size, itemsize=8)] * steps,
        *[gather(length=count * world_size) for count in (2, 1)] * steps,
    ]
    for rank in range(world_size):
        assert report.ledger.bytes_sent(rank) == sum(call.sent_bytes[rank] for call in expected)
        assert report.ledger.messages(rank) == sum(call.messages[rank] for call in expected)
    assert report.ledger.events == ranks.ledger().events  # what the ladder sends for itself is not in it
    assert set(report.peak_state_bytes) == {2 * 8 * sum(lengths)}


def sends(accumulation, no_sync=True):
    """A sound trainer of the plain toy, which may forget no_sync."""

    def parallel(config):
        trainer = in_parts(config, accumulation)
        if not no_sync:
            trainer.engine.ends.no_sync = nullcontext
        return trainer

    return parallel


def test_bytes_follow_the_formula_that_is_given():
    lengths, world_size, steps = [p.numel() for p in Toy().parameters()], 2, 3
    gather = partial(comm_time, "all_gather", "ring", world_size=world_size, itemsize=8)
    calls = [
        ddp_wrapping([([*lengths, 30], 8), ([16], 1)], world_size=world_size),
        *[ddp_step(lengths, world_size=world_size, itemsize=8)] * steps,
        *[ddp_wrapping([([30], 8), ([16], 1)], world_size=world_size)] * (steps - 1),  # the ladder's look took one
        *[gather(length=count * world_size) for count in (2, 1)] * steps,
    ]
    cost = [sum(call.sent_bytes[rank] for call in calls) for rank in range(world_size)]
    report = assert_parallel_equals(alone, sends(3), EVEN, world_size=2, cost=cost, rungs=RUNGS[:5])
    assert report.deviations[BYTES] == 0.0 and str(report).endswith(" 0.0e+00")
    message = r"bytes that rank 0 sends: [\d,]+, by the formula [\d,]+, 2.\d+ x it; .* all but the last under no_sync"
    with pytest.raises(NotEqual, match=message) as caught:
        assert_parallel_equals(alone, sends(3, no_sync=False), EVEN, world_size=2, cost=cost, rungs=RUNGS[:5])
    assert (caught.value.rung, caught.value.causes) == (BYTES, ("sent in every micro-batch",))
    with pytest.raises(NotEqual, match="by the formula .*; the formula counts something that is not sent"):
        compare_bytes(report.ledger, [10**9] * 2, 1)


class Norm32(nn.Module):
    """A norm as `transformers` has it: in float32, whatever the model is in."""

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def normed(*, ratio=1.0):
    model = Toy()
    model.inner = nn.Sequential(model.inner, Norm32())
    if ratio != 1.0:
        model.head.weight.register_hook(lambda gradient: gradient * ratio)
    return model


def test_float32_inside_a_float64_run_is_recognised_and_said():
    def reference(config):
        return Trainer(normed(), config)

    report = assert_parallel_equals(reference, lambda config: Replicated(normed(), config), UNEVEN, world_size=3)
    assert (report.narrow, report.tolerance) == (torch.float32, 1e-5)
    assert 1e-11 < report.max_deviation <= 1e-5
    assert str(report).startswith("3 ranks against one device, float64 (float32 inside), tolerance 1e-05")
    with pytest.raises(NotEqual, match="gradients, head.weight on rank 0: 2.0 x .* within 1e-05; "):
        assert_parallel_equals(reference, lambda config: Replicated(normed(ratio=2.0), config), UNEVEN, world_size=3)


@pytest.mark.parametrize(
    ("norms", "limit"), [([4.0, 1.0, 2.0], 2.0), ([3.0, 3.0], 1.5), ([0.0, 2.0], 1.0), ([0.0, 0.0], None)]
)
def test_clipping_acts_in_one_step_and_not_in_another_where_it_can(norms, limit):
    assert norm_that_clips(norms) == limit


def test_fewer_rungs_train_less():
    report = assert_parallel_equals(alone, data_parallel, EVEN, world_size=2, rungs=("gradients", "AdamW"))
    assert tuple(report.deviations) == ("gradients", "AdamW") and len(report.adamw_losses) == 3
    report = assert_parallel_equals(alone, data_parallel, EVEN, world_size=2, rungs=("output",))
    assert report.adamw_losses == ()
    assert str(report).splitlines()[0] == "2 ranks against one device, float64, tolerance 1e-11"


def test_what_cannot_be_compared_is_refused():
    message = (
        r"^assert_parallel_equals: rungs=\('logits',\); rungs are known by name, at least one; choose from output, "
    )
    with pytest.raises(ValueError, match=message):
        assert_parallel_equals(alone, data_parallel, EVEN, world_size=2, rungs=("logits",))
    message = "^assert_parallel_equals: dtype=bfloat16; only float64 and float32 have a tolerance .*; give tolerance=$"
    with pytest.raises(ValueError, match=message):
        assert_parallel_equals(alone, data_parallel, EVEN, world_size=2, dtype=torch.bfloat16)


def test_ranks_without_a_sample_are_named():
    one_row = Batches(text=TEXT, batch_size=1, sequence=5)
    with pytest.raises(ranks.RankError, match="1 samples in 2 shares, none for rank 1; every rank needs a sample"):
        assert_parallel_equals(alone, data_parallel, one_row, world_size=2)
