"""Anybody's trainer climbs the same ladder: plain loops, PyTorch's own engines, and trainers that show little."""

from __future__ import annotations

import pytest
import torch
from ladder_models import EVEN, UNEVEN, Toy
from torch import nn

from course_lib.training.trainer import Trainer
from course_lib.verify import RUNGS, NotEqual, Trainable, assert_parallel_equals
from course_lib.verify.adapters.ddp import DDP
from course_lib.verify.adapters.loop import Loop


def plain(config):
    return Loop(Toy(), config)


class Bare:
    """A trainer that shows its weights alone."""

    def __init__(self, config, of=Loop):
        self._inner = of(Toy(), config)

    def parameters(self):
        return self._inner.parameters()

    def step(self, batch):
        self._inner.step(batch)


class Summed(Loop):
    """Four micro-batches, each the mean over its own targets: what many loops do."""

    def step(self, batch):
        self.optimizer.zero_grad()
        parts, whole = list(zip(*(x.tensor_split(3) for x in batch), strict=True)), 0.0
        for inputs, targets in parts:
            loss = nn.functional.cross_entropy(self.model(inputs).flatten(0, -2), targets.flatten()) / len(parts)
            loss.backward()
            whole += loss.item()
        self.optimizer.step()
        return whole


def test_a_plain_loop_is_our_trainer_but_for_a_millionth_in_clipping():
    def ours(config):
        return Trainer(Toy(), config)

    report = assert_parallel_equals(ours, plain, UNEVEN, world_size=1, rungs=RUNGS[:5])
    assert tuple(report.deviations) == RUNGS[:5] and report.left_out == {} and report.notes == ()
    assert str(report).startswith("1 rank against one device, float64, tolerance 1e-11\n")
    with pytest.raises(NotEqual, match="it adds 1e-6 to the norm, so clip with it on both sides or on none") as caught:
        assert_parallel_equals(ours, plain, UNEVEN, world_size=1)
    assert (caught.value.rung, caught.value.causes) == ("AdamW", ("PyTorch's clipping",))


def test_torch_ddp_climbs_all_rungs():
    assert isinstance(plain, object) and issubclass(Loop, Trainable)
    report = assert_parallel_equals(plain, lambda config: DDP(Toy(), config), UNEVEN, world_size=2)
    assert tuple(report.deviations) == RUNGS


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_two_methods_are_enough(dtype):
    report = assert_parallel_equals(plain, lambda config: Bare(config, DDP), UNEVEN, world_size=2, dtype=dtype)
    assert tuple(report.deviations) == ("gradients", "parameters", "AdamW")
    assert report.left_out == {
        "output": "the parallel side has no output(inputs)",
        "gradient norm": "the parallel side has no norm",
        "loss curve": "the parallel side has no loss from step",
        "save and load": "the parallel side has no save(folder) and load(folder)",
    }
    buffers, note = report.notes
    assert buffers == "buffers are not compared: the parallel side has no buffers()"
    assert note.startswith("gradients of the parallel side were read from one step of SGD, which rounds them by u")
    assert "  output        left out: the parallel side has no output(inputs)\n" in str(report)


class Renamed(Loop):
    """Its own names for the same tensors."""

    def parameters(self):
        return {f"module.{name}": tensor for name, tensor in super().parameters().items()}

    def gradients(self):
        return {f"module.{name}": tensor for name, tensor in super().gradients().items()}


def test_other_names_are_matched_by_shape_and_value():
    report = assert_parallel_equals(plain, lambda config: Renamed(Toy(), config), UNEVEN, world_size=1)
    assert tuple(report.deviations) == RUNGS
    (note,) = report.notes
    assert note.startswith("names differ, tensors were matched by shape and value: module.embedding.weight is embedd")


@pytest.mark.parametrize("reference", [plain, Bare])
def test_a_mean_of_micro_batch_means_is_named_without_being_told_of_micro_batches(reference):
    with pytest.raises(NotEqual, match="each micro-batch counts the same, however many targets it has") as caught:
        assert_parallel_equals(reference, lambda config: Summed(Toy(), config), UNEVEN, world_size=1)
    assert (caught.value.rung, caught.value.causes) == ("gradients", ("mean of micro-batch means",))
    assert "; 1 rank equals one device on the same batch within 1e-11; " in str(caught.value)


def steep(step):
    """Three micro-batches of 20, 12 and 8 targets: in a mean of means the last one's weigh as if they came twice."""
    inputs, targets = EVEN.batch(step)
    counting = torch.tensor([5, 3, 2]).repeat_interleave(4).unsqueeze(1)
    return inputs, targets.masked_fill(torch.arange(5) >= counting, -100)


def test_a_mean_of_very_different_means_is_no_micro_batch_that_came_twice():
    with pytest.raises(NotEqual, match="each micro-batch counts the same, however many targets it has") as caught:
        assert_parallel_equals(plain, lambda config: Summed(Toy(), config), steep, world_size=1)
    assert caught.value.causes == ("mean of micro-batch means",)
    assert 1e-6 < caught.value.loss_apart < caught.value.deviation / 10  # the loss curve would have told nobody
