"""What a call takes memory for: its result, and nothing else from the second call on."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from course_lib import comm
from course_lib.comm import ring
from course_lib.config import TrainConfig
from course_lib.models.decoder import Decoder
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import run_ranks
from course_lib.training.techniques import replicate
from course_lib.training.tensor_technique import tensor
from course_lib.training.trainer import Trainer
from tests.ranks.module_05.test_tensor import LLAMA, TOKENS

RANKS, NUMBERS = 3, 60_000


def taken_by(work):
    """Bytes that this thread takes for tensors meanwhile, and what the work gives."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = work()
    pieces = [event.nbytes() for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    return sum(piece for piece in pieces if piece > 0), result


def three_times(call):
    with comm.settings(guard=False):
        return [taken_by(call)[0] for _ in range(3)]


def of_each_algorithm():
    """By call, what each of three takes."""
    x = torch.ones(NUMBERS)
    names = [name for name in comm.ALGORITHMS["all_reduce"] if name != "hierarchical"]
    found = {name: three_times(lambda name=name: comm.all_reduce_(x, algorithm=name)) for name in names}
    found["hierarchical"] = three_times(lambda: comm.all_reduce_(x, algorithm="hierarchical", node_size=RANKS))
    for name in ("naive", "ring"):
        found[f"{name} reduce_scatter"] = three_times(lambda name=name: comm.reduce_scatter(x, algorithm=name))
        found[f"{name} reduce_scatter_"] = three_times(lambda name=name: comm.reduce_scatter_(x, algorithm=name))
    return found


def test_from_the_second_call_on_only_for_its_result():
    for found in run_ranks(of_each_algorithm, RANKS):
        assert found.pop("naive reduce_scatter")[1:] == found.pop("ring reduce_scatter")[1:] == [NUMBERS * 4 // 3] * 2
        assert all(later == [0, 0] for _, *later in found.values()), found


def watched(plain, found):
    """A reduce-scatter that writes down what it takes, on whatever thread it runs."""

    def reduce_scatter(*args):
        nbytes, result = taken_by(partial(plain, *args))
        found.append(nbytes)
        return result

    return reduce_scatter


def no_copy(*_, **__):
    raise AssertionError("a training step adds up in place")


def training(axis, technique):
    """What the rings of each of three steps take, of which no all-reduce makes a copy."""
    torch.manual_seed(0)
    trainer = Trainer(Decoder(LLAMA), TrainConfig(), mesh=make_mesh(**{axis: RANKS}), apply=(technique,))
    by_step = [[], [], []]
    with comm.settings(guard=False), pytest.MonkeyPatch.context() as patch:
        patch.setattr(comm, "all_reduce", no_copy)
        plain = ring.reduce_scatter
        for step, found in enumerate(by_step):
            patch.setattr(ring, "reduce_scatter", watched(plain, found))
            trainer.compute_gradients(TOKENS.batch(step))
    return by_step


@pytest.mark.parametrize(("axis", "technique"), [("tp", tensor()), ("dp", replicate(bucket_cap_mb=0.004))])
def test_a_training_step_takes_none_for_its_all_reduces(axis, technique):
    for first, *later in run_ranks(training, RANKS, axis, technique):
        assert len(first) > 3 and max(first) > 100 and later == [[0] * len(first)] * 2
