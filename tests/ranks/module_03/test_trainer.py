"""The trainer on one device and on ranks: what it computes, what it refuses on all ranks, what it leaves on disk."""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ladder_models import Replicated
from torch import nn

from course_lib.config import TrainConfig
from course_lib.ranks import RankError, run_ranks
from course_lib.training import checkpoint
from course_lib.training.batches import IGNORED
from course_lib.training.step import micro_batches
from course_lib.training.trainer import Trainer

ADAMW = TrainConfig(optimizer="adamw", learning_rate=0.01, weight_decay=0.1, max_norm=0.05)


def model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 4)).double()


def batch(rows=7, seed=1):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 5, generator=generator, dtype=torch.float64)
    targets = torch.randint(4, (rows,), generator=generator)
    targets[1] = IGNORED
    return inputs, targets


def test_gradients_are_those_of_the_mean_over_the_targets_that_count():
    ours, theirs = Trainer(model(), TrainConfig()), model()
    loss = F.cross_entropy(theirs(batch()[0]), batch()[1])
    loss.backward()
    assert ours.compute_gradients(batch()) == pytest.approx(loss.item(), rel=1e-12)
    assert list(ours.gradients()) == [name for name, _ in theirs.named_parameters()]
    for gradient, parameter in zip(ours.gradients().values(), theirs.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


@pytest.mark.parametrize("accumulation", [2, 3, 7, 20])
def test_accumulation_changes_nothing(accumulation):
    whole, parts = Trainer(model(), TrainConfig()), Trainer(model(), TrainConfig(accumulation=accumulation))
    assert parts.compute_gradients(batch()) == pytest.approx(whole.compute_gradients(batch()), rel=1e-12)
    for name, gradient in whole.gradients().items():
        torch.testing.assert_close(parts.gradients()[name], gradient)


def test_micro_batches_hold_every_row_once_and_none_is_empty():
    parts = micro_batches(batch(5), 3)
    assert [len(inputs) for inputs, _ in parts] == [2, 2, 1]
    assert torch.equal(torch.cat([inputs for inputs, _ in parts]), batch(5)[0])
    assert [len(inputs) for inputs, _ in micro_batches(batch(2), 3)] == [1, 1]


def test_a_step_is_torch_s_adamw_with_torch_s_clipping():
    ours, theirs = Trainer(model(), ADAMW), model()
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=0.01, weight_decay=0.1)
    for seed in range(3):
        ours.step(batch(seed=seed))
        optimizer.zero_grad()
        F.cross_entropy(theirs(batch(seed=seed)[0]), batch(seed=seed)[1]).backward()
        norm = nn.utils.clip_grad_norm_(theirs.parameters(), 0.05)
        optimizer.step()
        assert norm > 0.05  # so that clipping is tested
    for mine, his in zip(ours.parameters().values(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, his.detach(), rtol=1e-5, atol=1e-7)  # torch adds 1e-6 to the norm
    assert ours.gradients() == {}


def test_clip_returns_the_norm_before_and_leaves_small_gradients_alone():
    ours = Trainer(model(), TrainConfig(max_norm=100.0))
    ours.compute_gradients(batch())
    before = {name: gradient.clone() for name, gradient in ours.gradients().items()}
    flat = torch.cat([gradient.flatten() for gradient in before.values()])
    assert ours.clip() == pytest.approx(flat.norm().item(), rel=1e-12)
    assert all(torch.equal(before[name], gradient) for name, gradient in ours.gradients().items())


def test_saved_training_goes_on_as_if_it_had_not_stopped(tmp_path):
    first, second, never_stopped = Trainer(model(), ADAMW), Trainer(model(seed=9), ADAMW), Trainer(model(), ADAMW)
    first.step(batch(seed=0))
    first.save(tmp_path / "a" / "b")
    second.load(tmp_path / "a" / "b")
    for trainer, seeds in ((second, [1, 2]), (never_stopped, [0, 1, 2])):
        for seed in seeds:
            trainer.step(batch(seed=seed))
    for name, parameter in never_stopped.parameters().items():
        assert torch.equal(second.parameters()[name], parameter)


def test_an_interrupted_save_leaves_the_last_one_whole(tmp_path, monkeypatch):
    ours = Trainer(model(), ADAMW)
    ours.save(tmp_path)
    before = (tmp_path / checkpoint.FILE).read_bytes()
    ours.step(batch())

    def half(content, file):
        file.write(b"half")
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(OSError, match="no space left"):
        ours.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.FILE]
    assert (tmp_path / checkpoint.FILE).read_bytes() == before


def test_nothing_to_load_and_nothing_to_train_are_errors(tmp_path):
    message = r"^Trainer.load: no .*trainer.pt; a checkpoint is a file trainer.pt; give the folder"
    with pytest.raises(ValueError, match=message):
        Trainer(model(), ADAMW).load(tmp_path)
    message = "^Trainer: every parameter is frozen; an optimizer needs something to train; set requires_grad"
    with pytest.raises(ValueError, match=message):
        Trainer(model().requires_grad_(False), ADAMW)


def test_a_batch_without_targets_and_a_loss_that_is_no_number_are_errors():
    inputs, targets = batch()
    message = "^Trainer: 7 samples without a target; the mean loss is taken over the targets that count; mark fewer"
    with pytest.raises(ValueError, match=message):
        Trainer(model(), ADAMW).step((inputs, torch.full_like(targets, IGNORED)))
    with pytest.raises(ValueError, match="^Trainer: loss nan on rank 0; one such loss would spoil"):
        Trainer(model(), ADAMW).step((inputs * float("nan"), targets))


def one_step(rows, accumulation, poison=None):
    ours = Replicated(model(dist.get_rank()), TrainConfig(accumulation=accumulation))
    inputs, targets = batch(rows)
    if poison is not None:
        inputs[poison] = float("inf")
    loss = ours.compute_gradients((inputs, targets))
    return loss, ours.gradients(), ours.output(inputs), ours.clip()


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_on_ranks_it_is_one_device_on_the_whole_batch(world_size, accumulation):
    alone = Trainer(model(), TrainConfig())
    expected = alone.compute_gradients(batch())
    results = run_ranks(one_step, world_size, 7, accumulation)
    assert len(results) == world_size
    for loss, gradients, output, norm in results:
        assert loss == pytest.approx(expected, rel=1e-12)
        assert norm == pytest.approx(alone.clip(), rel=1e-12)
        torch.testing.assert_close(output, alone.output(batch()[0]))
        for name, gradient in alone.gradients().items():
            torch.testing.assert_close(gradients[name], gradient)


def refused(*args):
    """The error's text on this rank."""
    try:
        one_step(*args)
    except ValueError as error:
        return str(error)
    return "no error"


def test_a_rank_without_a_sample_is_named_on_all_ranks():
    message = "Trainer: 2 samples in 4 shares, none for ranks 2, 3; every rank needs a sample; give at least 4"
    assert run_ranks(refused, 4, 2, 1) == [message] * 4


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_loss_that_is_no_number_is_named_on_all_ranks(accumulation):
    found = run_ranks(refused, 3, 7, accumulation, 5)  # rows 5, 6 are rank 2's
    assert len(set(found)) == 1
    assert re.match(r"Trainer: loss nan on rank 2; one such loss would spoil the weights of all ranks; look", found[0])


def save_into(folder):
    ours = Replicated(model(dist.get_rank()), ADAMW)
    ours.step(batch())
    ours.save(folder)


def test_if_rank_0_cannot_write_all_ranks_say_so(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RankError, match=r"OSError: .*File exists: .* \(on the rank that writes\)"):
        run_ranks(save_into, 2, tmp_path / "file")
    run_ranks(save_into, 2, tmp_path / "folder")
    assert [path.name for path in (tmp_path / "folder").iterdir()] == [checkpoint.FILE]


def resume(folder):
    ours = Replicated(model(5 + dist.get_rank()), ADAMW)
    ours.load(folder)
    ours.step(batch(seed=2))
    return ours.parameters()


def test_what_two_ranks_saved_three_ranks_and_one_device_go_on_with(tmp_path):
    run_ranks(save_into, 2, tmp_path)
    alone = Trainer(model(), ADAMW)
    alone.step(batch())
    alone.step(batch(seed=2))
    for parameters in run_ranks(resume, 3, tmp_path):
        for name, parameter in alone.parameters().items():
            torch.testing.assert_close(parameters[name], parameter)
