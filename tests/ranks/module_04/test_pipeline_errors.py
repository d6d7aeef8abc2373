"""What a pipeline refuses: the same error on every rank, and nobody waits."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from pipeline_models import MODELS, numbers, pipeline, staged, tokens

from course_lib.config import TrainConfig
from course_lib.ranks import run_ranks
from course_lib.schedules import make_schedule
from course_lib.training.batches import IGNORED


def text_of(work):
    """What the error says on this rank."""
    try:
        work()
    except ValueError as error:
        return str(error)
    return "no error"


def on_all(world_size, message, work, *args):
    """Every rank raises the same error."""
    found = run_ranks(lambda: text_of(lambda: work(*args)), world_size)
    assert len(found) == world_size and len(set(found)) == 1, found
    assert re.match(message, found[0]), found[0]


def trained(rows, m):
    trainer = pipeline(TrainConfig(), "1f1b", 2, m)
    inputs, targets = tokens(0)
    trainer.step((inputs[:rows], targets[:rows]))


@pytest.mark.parametrize(
    ("rows", "m", "message"),
    [
        (
            3,
            4,
            "stages: 3 samples, 4 micro-batches; every micro-batch has a sample; give at least 4 samples, or",
        ),
        (1, 1, "Trainer: 1 samples without a target; the mean loss is taken over the targets that count; mark fewer"),
        (0, 4, "Trainer: 0 samples in 1 share, none for rank 0; every rank needs a sample; give at least 1"),
    ],
)
def test_a_batch_that_cannot_be_cut(rows, m, message):
    on_all(2, message, trained, rows, m)


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        (("2f2b", 2, 4), {}, "make_schedule: name='2f2b'; no schedule is called so; choose one of gpipe, 1f1b"),
        (("interleaved", 2, 3, 2), {}, "make_schedule: interleaved, n_microbatches=3, n_ranks=2; .*; choose 2 or 4"),
        (
            ("gpipe", 3, 4),
            {},
            "stages: a schedule for 3 ranks, 2 ranks along pp; .*; make it with n_ranks=2",
        ),
        (
            ("interleaved", 2, 4, 5),
            {},
            "cut: 10 stages of 1, .* 8 layers in the model; every stage has a layer; choose at",
        ),
        (
            ("1f1b", 2, 4),
            {"sizes": (8, 0)},
            "cut: 2 stages of 8, 0 layers, 8 layers in the model; every stage has a layer",
        ),
        (
            ("1f1b", 2, 4),
            {"sizes": (4, 5)},
            r"cut: sizes=\(4, 5\), 8 layers in the model; every layer lies on one stage;",
        ),
        (
            ("interleaved", 2, 4, 3),
            {"model": "chain", "sizes": (1, 1, 1, 1, 1, 2)},
            "cut: stage 1 holds 1 alone; every stage has parameters; give it a neighbour's layer too, or choose fewer",
        ),
    ],
    ids=["unknown", "impossible", "other ranks", "too many stages", "an empty stage", "sizes", "no parameters"],
)
def test_stages_and_schedules_that_do_not_fit(args, options, message):
    on_all(2, message, lambda: pipeline(TrainConfig(), *args, **options))


def stuck():
    """Rank 1 waits for a micro-batch that rank 0 sends only after its gradient."""
    schedule = make_schedule("1f1b", 2, 2)
    (first, second), swapped = schedule.lists, []
    swapped = [second[1], second[0], *second[2:]]
    return replace(schedule, lists=(first, tuple(swapped)))


def test_a_list_of_one_s_own_that_would_hang_is_refused_before_it_runs():
    message = r"stages: .*; the ranks must come to the end of their lists; let `schedules.problems` look"
    on_all(2, message, lambda: staged(MODELS["tied"](), TrainConfig(), stuck()))


def test_ranks_with_different_schedules_are_named():
    def work():
        pipeline(TrainConfig(), "1f1b" if dist.get_rank() else "gpipe", 2, 4)

    on_all(2, r"stages: schedule is 'gpipe \(lists .*' on rank 0 and '1f1b .*' on rank 1; all ranks wrap", work)


def test_accumulation_belongs_to_the_schedule():
    message = "stages: accumulation=2; the schedule says into how many micro-batches a batch is cut; give n_mic"
    on_all(2, message, lambda: pipeline(TrainConfig(accumulation=2), "1f1b", 2, 4))


def test_a_model_that_is_all_frozen_has_nothing_to_train():
    def work():
        model = MODELS["tied"]().requires_grad_(False)
        staged(model, TrainConfig(), make_schedule("1f1b", 2, 4))

    on_all(2, "Trainer: every parameter is frozen; an optimizer needs something to train; set requires_grad", work)


def poisoned():
    trainer = pipeline(TrainConfig(), "1f1b", 2, 4, model="MLP")
    inputs, targets = numbers(0)
    inputs[5] = float("inf")
    before = trainer.parameters()
    message = text_of(lambda: trainer.step((inputs, targets)))
    unchanged = all(torch.equal(before[name], weight) for name, weight in trainer.parameters().items())
    trainer.step(numbers(0))  # and it can go on
    return message, unchanged, all(weight.isfinite().all() for weight in trainer.parameters().values())


def test_a_loss_that_is_no_number_is_told_to_all_ranks_and_leaves_nothing_behind():
    for message, unchanged, finite in run_ranks(poisoned, 2):
        assert message.startswith(
            "Trainer: loss nan on rank 1; one such loss would spoil the weights of all ranks; look"
        )
        assert unchanged and finite


def test_a_micro_batch_without_targets_is_none_the_matter():
    def work():
        trainer = pipeline(TrainConfig(), "1f1b", 2, 4, model="MLP")
        inputs, targets = numbers(0)
        targets[:3] = IGNORED
        return trainer.step((inputs, targets))

    first, second = run_ranks(work, 2)
    assert first == second > 0
