"""Data parallelism over pipelines, by the same trainer: the whole ladder, and checkpoints from layout to layout."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from math import prod

import pytest
import torch
from ladder_models import STEPS
from pipeline_models import LLAMA, MODELS, alone, staged, tokens
from torch import nn

from course_lib import comm
from course_lib.config import TrainConfig
from course_lib.models.decoder import Decoder
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import ledger, run_ranks
from course_lib.schedules import make_schedule
from course_lib.training.techniques import replicate, stages
from course_lib.training.tensor_technique import tensor
from course_lib.training.torch_techniques import torch_replicate, torch_tensor
from course_lib.training.trainer import Trainer
from course_lib.verify import RUNGS, assert_parallel_equals

ADAMW = TrainConfig(optimizer="adamw", learning_rate=0.01, weight_decay=0.1, max_norm=0.05)


def eleven(step):
    """Two pipelines get 6 and 5 rows, three get 4, 4 and 3: shares and micro-batches are unequal."""
    inputs, targets = tokens(step)
    return inputs[:11], targets[:11]


def both(config, name, pp, dp, m, model="tied", v=1):
    return staged(MODELS[model](), config, make_schedule(name, pp, m, stages_per_rank=v), dp=dp)


@pytest.mark.parametrize(
    ("name", "pp", "dp", "m", "v", "model"),
    [
        ("gpipe", 2, 2, 3, 1, "tied"),
        ("1f1b", 2, 2, 4, 1, "frozen"),
        ("interleaved", 2, 2, 2, 2, "tied"),
        ("zb-h1", 2, 2, 3, 1, "tied"),
        ("gpipe", 2, 3, 2, 1, "tied and frozen"),
        ("1f1b", 2, 3, 3, 1, "tied"),
        ("interleaved", 2, 3, 2, 2, "tied"),
        ("zb-h1", 2, 3, 3, 1, "tied"),
        ("zb-h1", 3, 2, 4, 1, "frozen"),
        ("interleaved", 1, 2, 2, 3, "tied"),  # a tied weight in two stages of one rank
    ],
)
def test_it_equals_one_device(name, pp, dp, m, v, model):
    parallel = partial(both, name=name, pp=pp, dp=dp, m=m, v=v, model=model)
    report = assert_parallel_equals(partial(alone, model=model), parallel, eleven, world_size=pp * dp, steps=STEPS)
    assert tuple(report.deviations) == RUNGS and report.max_deviation <= 1e-11


def test_buffers_too():
    parallel = partial(both, name="1f1b", pp=2, dp=2, m=3, model="chain")

    def numbers(step):
        generator = torch.Generator().manual_seed(step)
        return torch.randn(7, 6, generator=generator), torch.randint(2, (7,), generator=generator)

    assert_parallel_equals(partial(alone, model="chain"), parallel, numbers, world_size=4, steps=STEPS)


def test_in_float32_too():
    parallel = partial(both, name="zb-h1", pp=2, dp=3, m=3)
    assert_parallel_equals(alone, parallel, eleven, world_size=6, dtype=torch.float32, steps=STEPS)


def copies():
    """This rank's copies of the tied weight after steps in float32, where the order of a sum shows."""
    torch.manual_seed(0)
    trainer = both(ADAMW, "1f1b", 2, 3, 3)
    for number in range(10):
        trainer.step(eleven(number))
    return trainer.local.parameters["embedding.weight"].detach()


def test_all_copies_of_a_tied_weight_stay_equal_bit_by_bit():
    """Averaged over dp first, then summed over pp: in the other order rings would add in different orders."""
    first, *others = run_ranks(copies, 6)
    assert len(others) == 5 and all(torch.equal(first, other) for other in others)


def added_up():
    """The gradients after two passes without a step between."""
    torch.manual_seed(0)
    trainer = both(TrainConfig(), "zb-h1", 2, 2, 3)
    for number in range(2):
        trainer.compute_gradients(eleven(number))
    return trainer.gradients()


def test_gradients_of_two_passes_add_up():
    found = run_ranks(added_up, 4)
    torch.manual_seed(0)
    reference = Trainer(MODELS["tied"](), TrainConfig())
    for number in range(2):
        reference.compute_gradients(eleven(number))
    for gradients in found:
        assert gradients.keys() == reference.gradients().keys()
        for name, gradient in reference.gradients().items():
            torch.testing.assert_close(gradients[name], gradient)


FOUR_HEADS = replace(LLAMA, n_heads=4, n_kv_heads=2)  # over 4 ranks each head of keys and values has copies
OURS, THEIRS = (tensor, replicate), (torch_tensor, torch_replicate)
CHAIN = [  # degrees; a pipeline's schedule and micro-batches; whose techniques
    ({"pp": 2, "dp": 2}, ("1f1b", 3), OURS),
    ({"pp": 4}, ("gpipe", 2), OURS),
    ({"dp": 2, "tp": 2}, None, OURS),
    ({"pp": 2, "tp": 2}, ("1f1b", 3), OURS),
    ({"dp": 2, "tp": 2}, None, THEIRS),
    ({"tp": 4}, None, OURS),
    ({}, None, OURS),
    ({"dp": 3}, None, OURS),
    ({"pp": 2, "dp": 3}, ("zb-h1", 2), OURS),
    ({"pp": 2, "dp": 2}, ("1f1b", 3), OURS),
]


def at(degrees, schedule, techniques):
    """A trainer at one of the layouts; born with other weights than what it loads."""
    torch.manual_seed(sum(degrees.values()))
    share_matrices, replicated = techniques
    apply = [share_matrices()] if "tp" in degrees else []
    apply += [stages(make_schedule(schedule[0], degrees["pp"], schedule[1]))] if schedule else []
    apply += [replicated()] if "dp" in degrees else []
    return Trainer(Decoder(FOUR_HEADS), ADAMW, mesh=make_mesh(**degrees) if degrees else None, apply=apply)


def pass_on(layout, load, save):
    """Load, keep what was loaded, train a step, save."""
    trainer = at(*layout)
    if load:
        trainer.load(load)
    loaded = copy.deepcopy(trainer.state())
    trainer.step(tokens(0))
    trainer.save(save)
    return loaded, trainer.state()


def test_a_checkpoint_is_taken_over_bit_by_bit_from_layout_to_layout(tmp_path):
    before = None
    for number, layout in enumerate(CHAIN):
        ranks = prod(layout[0].values())
        args = layout, before and tmp_path / str(number - 1), tmp_path / str(number)
        results = run_ranks(pass_on, ranks, *args) if ranks > 1 else [pass_on(*args)]
        assert len(results) == ranks
        for loaded, _ in results:
            if before:
                assert_same_state(loaded, before)
        before = results[0][1]
        assert_same_state(torch.load(tmp_path / str(number) / "trainer.pt", weights_only=True), before)


def assert_same_state(got, want):
    """Weights, aliases, and AdamW's states, to the last bit."""
    assert got["model"].keys() == want["model"].keys() and "head.weight" in got["model"]
    assert all(torch.equal(got["model"][name], x) for name, x in want["model"].items())
    mine, theirs = got["optimizer"]["state"], want["optimizer"]["state"]
    assert mine.keys() == theirs.keys() and len(theirs) > 10
    for number, kinds in theirs.items():
        assert kinds.keys() == mine[number].keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(mine[number][kind], x) for kind, x in kinds.items())
    assert got["optimizer"]["param_groups"] == want["optimizer"]["param_groups"]


def step_with_unused(find_unused):
    """A linear map that no micro-batch passes: it has no gradient, which is not a gradient of zero."""

    class Idle(nn.Linear):
        def forward(self, x):
            return x

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), Idle(5, 5), nn.Linear(5, 2))
    apply = stages(make_schedule("1f1b", 2, 2), sizes=(2, 1)), replicate(find_unused_parameters=find_unused)
    trainer = Trainer(model, ADAMW, mesh=make_mesh(pp=2, dp=2), apply=apply)
    batch = torch.randn(8, 6), torch.randint(2, (8,))
    before = trainer.parameters()["1.weight"].clone()
    try:
        trainer.step(batch)
    except ValueError as error:
        return str(error)
    return torch.equal(before, trainer.parameters()["1.weight"])


def test_a_weight_without_a_gradient_is_refused_or_left_alone():
    message = "DistributedDataParallel: no gradient of 1.weight, 1.bias on rank 0 and no gradient of"
    found = run_ranks(step_with_unused, 4, False)
    assert all(str(text).startswith(message.replace("1.weight, 1.bias", "1.bias, 1.weight")) for text in found[:2])
    assert run_ranks(step_with_unused, 4, True) == [True] * 4  # decay would have changed it


def interleaved_step():
    trainer = both(TrainConfig(), "interleaved", 2, 2, 2, v=2)
    trainer.compute_gradients(tokens(0))  # the first step is slower
    comm.ledger.clear()
    trainer.compute_gradients(tokens(1))


def test_a_stage_is_averaged_while_the_other_still_computes():
    """Each rank has two stages; the later one is complete first."""
    run_ranks(interleaved_step, 4)
    for rank in range(4):
        events = [event for event in ledger().events if event.rank == rank]
        averaged = [event.start_s for event in events if event.operation == "all_reduce"]
        computed = [event.end_s for event in events if event.kind == "compute"]
        assert len({event.call for event in events if event.operation == "all_reduce"}) == 2  # a bucket for each stage
        assert averaged and min(averaged) < max(computed)
