"""What ranks of a training run hold: their own parts, from the beginning on; measured."""

from __future__ import annotations

import gc

import torch
import torch.distributed as dist

from course_lib.cli import train_run
from course_lib.cli.train_config import read_train
from course_lib.config import parse_model
from course_lib.gauges.allocated import peak_bytes
from course_lib.models.decoder import Decoder
from course_lib.parallel.pipelines.stages import layer_parameters
from course_lib.parallel.table.local import own_part
from course_lib.presets import read
from course_lib.ranks import devices, run_ranks, shutdown
from course_lib.training.batches import Batches


class Watched(Batches):
    """Notes how many weights are in memory when a step asks for its batch."""

    def batch(self, step):
        gc.collect()
        parameters = [x for x in gc.get_objects() if type(x) is torch.nn.Parameter and not x.is_meta]
        WEIGHTS.append(sum(parameter.numel() for parameter in parameters))
        return super().batch(step)


WEIGHTS = []


def weights_of_a_step():
    asked = read_train(["pp=2", "batch=2", "sequence=16", "steps=1", "optimizer=sgd"])
    batches = Watched(text=bytes(range(32, 127)) * 20, batch_size=2, sequence=16)
    WEIGHTS.clear()
    train_run.work(asked, batches, devices.choose(dist.get_rank(), 2, "cpu"), live=True, asked=bool)
    return WEIGHTS


def test_while_it_trains_a_rank_keeps_no_weights_but_its_own():
    parts = layer_parameters(Decoder(parse_model(read("tiny", "tiny_llama")).config))
    shutdown()  # what earlier tests left on the ranks
    assert run_ranks(weights_of_a_step, 2) == [[sum(parts[:2])], [sum(parts[2:])]]


BIG = ["model.hidden_size=64", "model.ffn_size=160", "model.n_layers=8", "model.vocab_size=64", "batch=4"]
CUT = [("dp=2", "tp=2", "zero_stage=3"), ("dp=2", "tp=2", "zero_stage=3", "engine=torch"), ("pp=4",)]


def held_while_begun(*overrides):
    """Bytes at the worst moment, and what the parts take."""
    run, made = read_train(overrides), []
    most = peak_bytes(lambda: made.append(train_run.begun(run, torch.device("cpu"))))
    ((trainer, _),) = made
    return most, sum(own_part(x.detach()).nbytes for x in trainer.local.parameters.values())


def each_held_while_begun():
    return [held_while_begun(*BIG, *degrees) for degrees in CUT]


def test_no_rank_ever_has_the_whole_model():
    with torch.device("meta"):
        tensors = [x.nbytes for x in Decoder(read_train(BIG).model).parameters()]
    for found in run_ranks(each_held_while_begun, 4):
        for most, parts in found:
            assert parts < 0.4 * sum(tensors) and parts < most < parts + 4 * max(tensors) < 0.5 * sum(tensors)
