"""Batches that every rank can cut for itself, their order and its hash, uneven ones, and the sampler."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DistributedSampler as TorchSampler

from course_lib.training.batches import IGNORED, Batches
from course_lib.training.data_hash import DataHash
from course_lib.training.sampler import DistributedSampler

WORDS = bytes(range(256)) * 8
RANKS = [1, 2, 3, 4]


def test_targets_are_the_next_tokens():
    inputs, targets = Batches(text=WORDS, batch_size=5, sequence=7).batch(0)
    assert inputs.shape == targets.shape == (5, 7)
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal((inputs + 1) % 256, targets)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_a_batch_depends_on_seed_and_step_alone():
    batches = Batches(text=WORDS, batch_size=4, sequence=8, seed=3)
    torch.manual_seed(1)
    first = batches.batch(2)[0]
    torch.manual_seed(2)
    assert torch.equal(first, batches.batch(2)[0])
    assert not torch.equal(first, batches.batch(3)[0])
    assert not torch.equal(first, Batches(text=WORDS, batch_size=4, sequence=8, seed=4).batch(2)[0])


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_ranks_shards_are_the_batch(world_size):
    batches = Batches(text=WORDS, batch_size=7, sequence=8)
    shards = [batches.shard(1, rank, world_size) for rank in range(world_size)]
    for whole, parts in zip(batches.batch(1), zip(*shards, strict=True), strict=True):
        assert torch.equal(whole, torch.cat(parts))
    assert {len(inputs) for inputs, _ in shards} == {len(part) for part in torch.arange(7).tensor_split(world_size)}


def test_a_window_reaches_the_last_byte():
    batches = Batches(text=b"ab", batch_size=1, sequence=1)
    assert [tensor.tolist() for tensor in batches.batch(0)] == [[[97]], [[98]]]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"batch_size": 0, "sequence": 4}, r"^Batches: batch_size=0, sequence=4; both are positive; give at least 1"),
        (
            {"batch_size": 293, "sequence": 7},
            r"^Batches: batch_size=293, 292 windows; .* once; give batch_size <= 292,",
        ),
        ({"batch_size": 1, "sequence": 2048}, r"^Batches: 2048 tokens, sequence=2048; a window takes sequence \+ 1"),
    ],
)
def test_sizes_that_cannot_be_cut_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        Batches(text=WORDS, **sizes)


def test_a_rank_without_a_sequence_is_refused():
    message = "^Batches: batch_size=2, world_size=3; every rank needs a sequence; give batch_size >= 3"
    with pytest.raises(ValueError, match=message):
        Batches(text=WORDS, batch_size=2, sequence=4).shard(0, 0, 3)
    assert Batches(text=WORDS, batch_size=3, sequence=4).shard(0, 2, 3)[0].shape == (1, 4)


def test_an_epoch_serves_every_token_but_the_last_ones_once():
    text = bytes(torch.randperm(256, generator=torch.Generator().manual_seed(0)).tolist())  # every byte once
    batches = Batches(text=text, batch_size=4, sequence=3)
    assert (batches.n_windows, batches.steps_per_epoch) == (85, 21)
    for epoch in range(2):
        steps = range(21 * epoch, 21 * (epoch + 1))
        inputs, targets = (torch.cat(parts).flatten() for parts in zip(*map(batches.batch, steps), strict=True))
        assert len(inputs) == len(set(inputs.tolist())) == len(set(targets.tolist())) == 21 * 4 * 3


def test_each_epoch_has_its_own_order():
    batches = Batches(text=WORDS, batch_size=4, sequence=8)
    first, second = (batches.batch(epoch * batches.steps_per_epoch)[0] for epoch in range(2))
    assert not torch.equal(first, second)


def test_tokens_may_be_a_tokenizer_s_ids():
    ids = np.arange(1000, 1200, dtype=np.uint16)
    from_ids = Batches(text=ids, batch_size=5, sequence=7).batch(0)
    from_bytes = Batches(text=bytes(range(200)), batch_size=5, sequence=7).batch(0)
    for one, other in zip(from_ids, from_bytes, strict=True):
        assert one.dtype == torch.int64
        assert torch.equal(one, other + 1000)


def test_batches_travel_to_other_processes():
    batches = Batches(text=np.arange(99), batch_size=2, sequence=5, ragged=True)
    assert pickle.loads(pickle.dumps(batches)).fingerprint(9) == batches.fingerprint(9)


def test_the_fingerprint_is_that_of_the_data_in_its_order():
    batches = Batches(text=WORDS, batch_size=4, sequence=8)
    same = Batches(text=np.frombuffer(WORDS, np.uint8).astype(np.int32), batch_size=4, sequence=8)
    assert batches.fingerprint(5) == same.fingerprint(5)
    others = [
        batches.fingerprint(6),
        *(
            Batches(**{"text": WORDS, "batch_size": 4, "sequence": 8, **change}).fingerprint(5)
            for change in ({"seed": 1}, {"batch_size": 5}, {"sequence": 9}, {"ragged": True}, {"text": WORDS[1:]})
        ),
    ]
    assert len({batches.fingerprint(5), *others}) == 7
    assert len(batches.fingerprint(5)) == 16


@pytest.mark.parametrize("world_size", RANKS)
def test_the_shards_in_rank_order_have_the_hash_of_the_whole(world_size):
    batches = Batches(text=WORDS, batch_size=7, sequence=8)
    served = DataHash()
    for step in range(3):
        for rank in range(world_size):
            served.add(*batches.shard(step, rank, world_size))
    assert served.text == batches.fingerprint(3)


def test_a_rank_that_reads_another_s_data_changes_the_hash():
    batches = Batches(text=WORDS, batch_size=4, sequence=8)
    served = DataHash()
    for rank in (0, 0):
        served.add(*batches.shard(0, rank, 2))
    assert served.text != batches.fingerprint(1)


def test_ragged_sequences_have_1_to_s_targets_by_the_seed():
    whole, ragged, other = (
        Batches(text=WORDS, batch_size=200, sequence=8, seed=seed, ragged=ragged)
        for seed, ragged in ((0, False), (0, True), (1, True))
    )
    inputs, targets = ragged.batch(0)
    assert torch.equal(inputs, whole.batch(0)[0])
    real = targets != IGNORED
    assert torch.equal(targets[real], whole.batch(0)[1][real])
    lengths = real.sum(dim=1)
    assert torch.equal(real, torch.arange(8) < lengths[:, None])
    assert set(lengths.tolist()) == set(range(1, 9))
    numbers = torch.arange(200)
    assert torch.equal(ragged.windows(numbers)[1], ragged.windows(numbers)[1])
    assert not torch.equal(ragged.windows(numbers)[1], other.windows(numbers)[1])


def test_a_window_has_the_same_length_in_every_epoch():
    batches = Batches(text=bytes(range(200)), batch_size=22, sequence=9, ragged=True)  # one batch holds all windows
    seen = [
        {row[0]: (target != IGNORED).sum().item() for row, target in zip(inputs.tolist(), targets, strict=True)}
        for inputs, targets in map(batches.batch, range(2))
    ]
    assert seen[0] == seen[1]
    assert len(seen[0]) == 22


def test_with_ragged_sequences_the_mean_of_means_is_not_the_mean():
    batches = Batches(text=WORDS, batch_size=8, sequence=16, ragged=True)
    logits = torch.randn(256, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def loss(inputs, targets):
        return F.cross_entropy(logits[inputs].flatten(0, 1), targets.flatten())

    shards = [batches.shard(0, rank, 2) for rank in range(2)]
    counts = torch.tensor([(targets != IGNORED).sum() for _, targets in shards])
    means = torch.stack([loss(*shard) for shard in shards])
    whole = loss(*batches.batch(0))
    torch.testing.assert_close((means * counts).sum() / counts.sum(), whole)
    assert abs(means.mean() - whole) > 1e-3 * whole


def torch_indices(n_samples, rank, world_size, seed, epoch, drop_last):
    sampler = TorchSampler(range(n_samples), world_size, rank, seed=seed, drop_last=drop_last)
    sampler.set_epoch(epoch)
    return list(sampler)


@pytest.mark.parametrize("world_size", RANKS)
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("n_samples", [4, 12, 13, 14, 15, 101])
def test_the_sampler_is_pytorch_s_index_for_index(n_samples, drop_last, world_size):
    for rank in range(world_size):
        ours = DistributedSampler(n_samples, rank=rank, world_size=world_size, seed=3, drop_last=drop_last)
        for epoch in range(3):
            ours.set_epoch(epoch)
            expected = torch_indices(n_samples, rank, world_size, 3, epoch, drop_last)
            assert list(ours) == expected
            assert len(ours) == len(expected) > 0


def test_fewer_samples_than_ranks_are_served_again_as_pytorch_does():
    for rank in range(4):
        assert list(DistributedSampler(1, rank=rank, world_size=4)) == torch_indices(1, rank, 4, 0, 0, False) == [0]


@pytest.mark.parametrize("world_size", RANKS)
def test_the_ranks_shares_are_disjoint_and_complete(world_size):
    shares = [list(DistributedSampler(24, rank=rank, world_size=world_size)) for rank in range(world_size)]
    assert sorted(number for share in shares for number in share) == list(range(24))
    assert {len(share) for share in shares} == {24 // world_size}


def test_forgetting_set_epoch_repeats_the_order():
    sampler = DistributedSampler(50, rank=0, world_size=2)
    first, again = list(sampler), list(sampler)
    assert first == again
    sampler.set_epoch(1)
    assert list(sampler) != first


@pytest.mark.parametrize("world_size", [2, 4])
def test_the_sampler_s_ranks_together_read_the_batch_of_one_device(world_size):
    batches = Batches(text=WORDS, batch_size=8, sequence=8, seed=5, ragged=True)
    samplers = [DistributedSampler(batches.n_windows, rank=r, world_size=world_size, seed=5) for r in range(world_size)]
    each = batches.batch_size // world_size
    for epoch, place in ((0, 0), (0, 3), (1, 2)):
        rows = []
        for sampler in samplers:
            sampler.set_epoch(epoch)
            rows += torch.cat(batches.windows(list(sampler)[place * each : (place + 1) * each]), dim=1).tolist()
        whole = torch.cat(batches.batch(epoch * batches.steps_per_epoch + place), dim=1).tolist()
        assert sorted(rows) == sorted(whole)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n_samples": 3, "rank": 0, "world_size": 4, "drop_last": True}, "n_samples=3, world_size=4, .*; every rank"),
        (
            {"n_samples": 0, "rank": 0, "world_size": 1},
            "n_samples=0, world_size=1, .*; every rank needs a sample; give",
        ),
        ({"n_samples": 9, "rank": 2, "world_size": 2}, "rank=2, world_size=2; ranks are 0 to world_size - 1; give"),
    ],
)
def test_a_rank_without_samples_is_refused(given, message):
    with pytest.raises(ValueError, match=f"^DistributedSampler: {message}"):
        DistributedSampler(**given)
