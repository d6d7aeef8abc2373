"""Our executor against PyTorch's `torch.distributed.pipelining`, on the same stages: the same gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from pipeline_models import LLAMA, staged, tokens

from course_lib.config import TrainConfig
from course_lib.models.decoder import Decoder
from course_lib.parallel.pipelines.stages import cut
from course_lib.ranks import run_ranks
from course_lib.schedules import make_schedule
from course_lib.split import split_sizes
from course_lib.training.step import count_targets, loss_of

UNTIED = replace(LLAMA, tied=False)
TOLERANCE = 1e-10


def model():
    torch.manual_seed(0)
    return Decoder(UNTIED).double()


def batch():
    return tokens(0)


def ours(schedule):
    trainer = staged(model(), TrainConfig(), schedule)
    return trainer.compute_gradients(batch()), trainer.gradients()


def theirs(name, microbatches, stages_per_rank):
    """Gradients of this rank's stages, and the losses that PyTorch gives on the last one."""
    from torch.distributed import pipelining

    rank, p = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(range(p), use_local_synchronization=True)
    modules = cut(model(), split_sizes(UNTIED.n_layers + 2, p * stages_per_rank))
    mine = {number: modules[number] for number in range(rank, len(modules), p)}
    stages = [
        pipelining.PipelineStage(module, number, len(modules), torch.device("cpu"), group=group)
        for number, module in mine.items()
    ]
    inputs, targets = batch()
    schedule = getattr(pipelining, name)(
        stages if stages_per_rank > 1 else stages[0],
        microbatches,
        loss_fn=lambda output, target: loss_of(output, target) / count_targets(batch()),
        scale_grads=False,
    )
    losses: list[torch.Tensor] = []
    schedule.step(*([inputs] if 0 in mine else []), target=targets, losses=losses)
    found = {name: p.grad for module in mine.values() for name, p in module.named_parameters()}
    return [loss.item() for loss in losses], found


CASES = [  # our schedule, PyTorch's, ranks, micro-batches, stages on each rank of PyTorch's
    *[("gpipe", "ScheduleGPipe", p, m, 1) for p, m in ((2, 4), (3, 6), (4, 4))],
    *[("1f1b", "Schedule1F1B", p, m, 1) for p, m in ((2, 4), (3, 6), (4, 4))],
    *[("interleaved", "ScheduleInterleaved1F1B", p, m, 2) for p, m in ((2, 4), (3, 6), (4, 4))],
    *[("zb-h1", "ScheduleInterleavedZeroBubble", p, m, 2) for p, m in ((2, 4), (3, 6), (4, 4))],
]


@pytest.mark.parametrize("case", sorted(CASES, key=lambda case: case[2]), ids=str)
def test_gradients_are_those_of_pytorch(case):
    name, peer, p, m, v = case
    schedule = make_schedule(name, p, m, stages_per_rank=v if name == "interleaved" else 1)
    results = run_ranks(ours, p, schedule)
    peers = run_ranks(theirs, p, peer, m, v, timeout=120.0)
    loss, gradients = results[0]
    assert all(one[0] == loss for one in results)
    assert sum(peers[-1][0]) == pytest.approx(loss, rel=TOLERANCE)
    expected = {name: gradient for _, part in peers for name, gradient in part.items()}
    assert gradients.keys() == expected.keys() == dict(model().named_parameters()).keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=TOLERANCE, atol=TOLERANCE)
