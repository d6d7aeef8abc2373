"""Data parallelism on real ranks: equal to one device, bytes as the formula, planted bugs found."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib import comm
from course_lib.config import ModelConfig
from course_lib.costs import comm_time
from course_lib.costs.states import sgd_state_bytes
from course_lib.models.decoder import Decoder
from course_lib.parallel.ddp import average_gradients, broadcast_parameters
from course_lib.ranks import ledger, run_ranks
from course_lib.training.batches import Batches
from course_lib.verify import Experiment, NotEqual, Technique, assert_parallel_equals
from course_lib.verify.equality import RUNGS, in_words

TINY = ModelConfig(
    name="tiny", hidden_size=12, n_layers=1, n_heads=2, n_kv_heads=1, ffn_size=20, vocab_size=256, tied=False
)
TEXT = bytes((17 * torch.randint(16, (4096,), generator=torch.Generator().manual_seed(0))).tolist())  # 16 of 256 bytes
BATCHES = Batches(text=TEXT, batch_size=12, sequence=9)
DDP = Technique(prepare=broadcast_parameters, after_backward=average_gradients)


def decoder(config=TINY, frozen=()):
    model = Decoder(config).double()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(tuple(frozen) or "nothing"))
    return model


def experiment(make_model=decoder, **changes):
    return Experiment(make_model=make_model, batches=BATCHES, **changes)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_ranks_equal_one_device(world_size):
    report = assert_parallel_equals(experiment(), DDP, world_size=world_size, tolerance=1e-11)
    assert report.world_size == len(report.peak_state_bytes) == world_size
    assert tuple(report.deviations) == RUNGS
    assert len(report.losses) == 3 and report.losses[2] < report.losses[0]


@pytest.mark.parametrize("algorithm", ["naive", "tree", "recursive_doubling", "halving_doubling", "native"])
def test_any_all_reduce_will_do(algorithm):
    technique = replace(DDP, after_backward=partial(average_gradients, algorithm=algorithm))
    assert assert_parallel_equals(experiment(), technique, world_size=3, tolerance=1e-11).max_deviation <= 1e-11


@pytest.mark.parametrize(
    "make_model",
    [
        partial(decoder, replace(TINY, tied=True)),
        partial(decoder, frozen=("embedding", "layers.0")),
    ],
    ids=["tied", "frozen"],
)
def test_tied_and_frozen_parameters(make_model):
    assert_parallel_equals(experiment(make_model), DDP, world_size=3, tolerance=1e-11)


class TwoWays(nn.Module):
    """Tokens above 127 pass through one matrix, the others through another, and nothing through the third."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(256, 6)
        self.ways = nn.ModuleList(nn.Linear(6, 256, bias=False) for _ in range(3))

    def forward(self, tokens):
        high = int(tokens.float().mean() > 127)
        return self.ways[high](self.embedding(tokens))


def gradients_of_two_ways():
    torch.manual_seed(0)
    model = TwoWays()
    rank = dist.get_rank()
    model(torch.full((1, 4), 200 * (rank == 1))).sum().backward()
    missing = [way.weight.grad is None for way in model.ways]
    average_gradients(model)
    return missing, [way.weight.grad for way in model.ways]


def test_a_gradient_that_a_rank_does_not_have_counts_as_zero():
    results = run_ranks(gradients_of_two_ways, 2)
    assert [missing for missing, _ in results] == [[False, True, True], [True, False, True]]
    for _, (low, high, unused) in results:
        assert torch.equal(low, results[0][1][0]) and torch.equal(high, results[0][1][1])
        assert low.abs().sum() > 0 and high.abs().sum() > 0
        assert not unused.any()


def test_bytes_and_calls_equal_the_formula():
    world_size, steps = 3, 2
    assert_parallel_equals(experiment(steps=steps), DDP, world_size=world_size)
    sizes = [parameter.numel() for parameter in decoder().parameters()]

    def sent(operation, algorithm):
        costs = [comm_time(operation, algorithm, world_size=world_size, length=n, itemsize=8) for n in sizes]
        return [sum(cost.sent_bytes[rank] for cost in costs) for rank in range(world_size)]

    reduced, copied = ledger().of("all_reduce"), ledger().of("broadcast")
    assert [reduced.bytes_sent(r) for r in range(world_size)] == [steps * n for n in sent("all_reduce", "ring")]
    assert [copied.bytes_sent(r) for r in range(world_size)] == sent("broadcast", "tree")
    assert len(reduced.calls()) == steps * len(sizes) and len(copied.calls()) == len(sizes)


def test_state_memory_equals_the_formula():
    report = assert_parallel_equals(experiment(), DDP, world_size=2)
    assert set(report.peak_state_bytes) == {sgd_state_bytes(TINY, itemsize=8)}
    tied = replace(TINY, tied=True)
    report = assert_parallel_equals(experiment(partial(decoder, tied)), DDP, world_size=2)
    assert set(report.peak_state_bytes) == {sgd_state_bytes(tied, itemsize=8)}


def sum_gradients(model):
    for parameter in model.parameters():
        parameter.grad = comm.all_reduce(parameter.grad)


def average_twice(model):
    average_gradients(model)
    for parameter in model.parameters():
        parameter.grad /= dist.get_world_size()


def forget_one(model):
    kept = model.head.weight.grad.clone()
    average_gradients(model)
    model.head.weight.grad = kept


def nothing(model):
    """Neither prepare nor reduce."""


def from_the_second_step_on(model, counts={"calls": 0}):  # noqa: B006  one count per process is meant
    counts["calls"] += 1
    average_gradients(model)
    if counts["calls"] > 1:
        model.head.weight.grad *= 2


@pytest.mark.parametrize(
    ("hooks", "rung", "ratio", "message"),
    [
        (
            {"after_backward": sum_gradients},
            "gradients",
            4,
            r"^assert_parallel_equals: gradients, embedding.weight on rank 0: 4.0 x one device's, deviation 3; "
            r"4 ranks on shards equal one device on the whole batch within 1e-05; "
            r"divide the sum over the ranks by their number$",
        ),
        ({"after_backward": average_twice}, "gradients", 0.25, "on rank 0: 1/4 x one .* the average was divided"),
        (
            {"after_backward": forget_one},
            "gradients",
            None,
            "head.weight on rank 0: no multiple .* look at what reaches",
        ),
        ({"after_backward": nothing}, "gradients", None, "embedding.weight on rank 0: no multiple of one device's"),
        ({"prepare": nothing}, "first loss", ..., "first loss: .* start all ranks from the same weights"),
        (
            {"after_backward": from_the_second_step_on},
            "parameters",
            ...,
            "head.weight on rank 0: .* look at the update",
        ),
    ],
    ids=["summed", "averaged twice", "one forgotten", "never reduced", "other weights", "wrong later"],
)
def test_planted_bugs_are_named(hooks, rung, ratio, message):
    with pytest.raises(NotEqual, match=message) as caught:
        assert_parallel_equals(experiment(steps=2), replace(DDP, **hooks), world_size=4)
    assert caught.value.rung == rung
    if ratio is not ...:
        assert caught.value.ratio == (pytest.approx(ratio) if ratio else None)


def test_uneven_shards_are_found():
    """Seven sequences on three ranks: the mean of means is not the mean."""
    uneven = Experiment(make_model=decoder, batches=replace(BATCHES, batch_size=7))
    with pytest.raises(NotEqual, match="gradients, .* are the shards even"):
        assert_parallel_equals(uneven, DDP, world_size=3)


@pytest.mark.parametrize(
    ("ratio", "words"), [(4.0, "4.0"), (1 / 3, "1/3"), (-1.0, "-1.0"), (0.0, "0.0"), (1.37, "1.37")]
)
def test_ratios_in_words(ratio, words):
    assert in_words(ratio) == words
