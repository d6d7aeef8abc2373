"""Bugs of somebody who had not seen the table: all 28 were caught, 22 with the right cause first, 1 with a wrong one.

These are what taught the table something, some of them on a model with a gradient that is zero by mathematics.
"""

from __future__ import annotations

import torch.distributed as dist
from planted import RANKS, Planted, instead
from planted_models import gpt

from course_lib import comm


def summed_each_time(trainer):
    """What .grad holds is summed over the ranks after each micro-batch: the earlier ones again and again."""

    def run(inputs, loss):
        with trainer.model.no_sync():
            for number, x in enumerate(inputs):
                loss(trainer.model(x), number).backward()
                for gradient in trainer.local.gradients().values():
                    comm.all_reduce_(gradient)
        for gradient in trainer.local.gradients().values():
            gradient.div_(RANKS)

    trainer.engine.run = run


def synchronised_first(trainer):
    """The first micro-batch is averaged, the others come on top."""

    def run(inputs, loss):
        loss(trainer.model(inputs[0]), 0).backward()
        with trainer.model.no_sync():
            for number, x in enumerate(inputs[1:], start=1):
                loss(trainer.model(x), number).backward()

    trainer.engine.run = run


def own_rate(trainer):
    """The learning rate falls on one rank."""
    update = trainer.update

    def updated():
        update()
        if dist.get_rank() == 1:
            for group in trainer.optimizer.param_groups:
                group["lr"] *= 0.9

    trainer.update = updated


def times_ranks(trainer):
    for group in trainer.optimizer.param_groups:
        group["lr"] *= RANKS


def leaving_out(number, *ranks):
    """An update that does not happen, on some ranks."""

    def plant(trainer):
        update, calls = trainer.update, []

        def updated():
            calls.append(1)
            if len(calls) == number and dist.get_rank() in ranks:
                trainer.zero_grad()
            else:
                update()

        trainer.update = updated

    return plant


not_zeroed = instead(update=lambda trainer: trainer.optimizer.step())

HELD_OUT = {
    "summed again after each micro-batch": Planted(
        cause="micro-batches repeated", plant=summed_each_time, accumulation=2
    ),
    "the first micro-batch averaged": Planted(cause="averaged early", plant=synchronised_first, accumulation=2),
    "one rank's rate falls": Planted(cause="one rank strays", plant=own_rate, only="sgd"),
    "one rank leaves out the second update": Planted(cause="one rank strays", plant=leaving_out(2, 1), only="sgd"),
    "GPT: one rank's rate falls": Planted(cause="one rank strays", plant=own_rate, only="sgd", sound=gpt),
    "GPT: the rate times the ranks": Planted(cause="rate by ranks", plant=times_ranks, only="sgd", sound=gpt),
    "GPT: not cleared": Planted(cause="not cleared", plant=not_zeroed, only="sgd", sound=gpt),
    "GPT: one rank leaves out the first update": Planted(
        cause="never updated", plant=leaving_out(1, 1), only="sgd", sound=gpt
    ),
    "GPT: nobody updates a second time": Planted(
        cause="later", plant=leaving_out(2, *range(RANKS)), only="sgd", sound=gpt
    ),
}
