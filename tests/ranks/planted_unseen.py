"""Bugs that were written when the table of causes was done: all were caught, of 9 in 15 the first cause was right.

What they taught is in the table since.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from planted import RANKS, Planted, added, average, from_all, hooked, loads
from torch import nn

from course_lib.training.batches import IGNORED
from course_lib.verify import changes


def row_means(setup):
    """Each row's loss is the mean over its own targets."""
    cut, run, parts = setup.engine.cut, setup.engine.run, []

    def kept(batch):
        parts[:] = cut(batch)
        return parts

    def on_means(inputs, loss):
        def mean(output, number):
            loss(output, number)
            targets = parts[number][1]
            each = F.cross_entropy(output.mT, targets, ignore_index=IGNORED, reduction="none").sum(1)
            return (each / (targets != IGNORED).sum(1)).sum() * RANKS / 13

        run(inputs, mean)

    setup.engine.cut, setup.engine.run = kept, on_means


def tokens_cut(trainer):
    """One rank leaves out the last targets of its rows."""
    cut = trainer.engine.cut

    def shorter(batch):
        targets = batch[1].clone()
        targets[:, -2:] = IGNORED
        return cut((batch[0], targets) if dist.get_rank() == 1 else batch)

    trainer.engine.cut = shorter


def with_sgd(**options):
    def plant(trainer):
        parameters = trainer.optimizer.param_groups[0]["params"]
        trainer.optimizer = torch.optim.SGD(parameters, lr=trainer.config.learning_rate, **options)

    return plant


def clipped_unasked(trainer):
    update = trainer.update

    def updated():
        nn.utils.clip_grad_norm_(list(trainer.local.parameters.values()), 0.05)
        update()

    trainer.update = updated


def one_step_old(trainer):
    """The weights of the step before go into the checkpoint."""
    step, save, before = trainer.step, trainer.save, {}

    def stepped(batch):
        before.update({name: p.detach().clone() for name, p in trainer.local.parameters.items()})
        return step(batch)

    def saved(folder):
        for name, parameter in trainer.local.parameters.items():
            parameter.data.copy_(before[name])
        save(folder)

    trainer.step, trainer.save = stepped, saved


def last_under_no_sync(trainer):
    def run(inputs, loss):
        for number, x in enumerate(inputs):
            last = number == len(inputs) - 1
            with trainer.model.no_sync() if last else nullcontext():
                loss(trainer.model(x), number).backward()

    trainer.engine.run = run


def half_a_bucket(plan, bucket):
    average(bucket.flat[: len(bucket.flat) // 2])


def every_second(trainer):
    calls = []

    def update():
        calls.append(1)
        if len(calls) % 2 == 0:
            trainer.optimizer.step()
            trainer.zero_grad()

    trainer.update = update


def loss_before(trainer):
    mean_loss, losses = trainer.mean_loss, [0.0]

    def reported(*args):
        losses.append(mean_loss(*args))
        return losses[-2]

    trainer.mean_loss = reported


def drops_on_rank_1(trainer):
    trainer.model.module.head.register_forward_pre_hook(
        lambda _, inputs: (F.dropout(inputs[0], 0.3, training=dist.get_rank() == 1),)
    )


def amsgrad(trainer):
    group = trainer.optimizer.param_groups[0]
    options = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
    trainer.optimizer = torch.optim.AdamW(group["params"], amsgrad=True, **options)


UNSEEN_EARLY = {
    "the mean of the rows' means": Planted(cause="mean of row means", technique=row_means),
    "one rank's rows are cut short": Planted(cause="other rows", plant=tokens_cut),
    "momentum on the ranks alone": Planted(cause="later", plant=with_sgd(momentum=0.9), only="sgd"),
    "weight decay on the ranks alone": Planted(cause="update", plant=with_sgd(weight_decay=0.1), only="sgd"),
    "clipped where nobody asked": Planted(cause="rate", plant=clipped_unasked, only="sgd"),
    "averaged with every second rank": Planted(
        cause="within groups", plant=from_all(lambda rows: rows[dist.get_rank() % 2 :: 2].mean(0))
    ),
    "divided by all but one": Planted(cause="one factor", plant=added(1 / (RANKS - 1))),
    "the last micro-batch under no_sync": Planted(cause="averaged early", plant=last_under_no_sync, accumulation=2),
    "half of a bucket": Planted(cause="left out", plant=hooked(half_a_bucket)),
    "an update for two batches": Planted(cause="never updated", plant=every_second),
    "the loss of the step before": Planted(cause="late loss", plant=loss_before),
    "dropout on one rank": Planted(cause="some ranks compute otherwise", plant=drops_on_rank_1),
}
UNSEEN_LATE = {
    "a checkpoint one step old": Planted(cause="weights not loaded", plant=one_step_old, only="adamw"),
    "another learning rate after loading": Planted(
        cause="save and load", plant=loads(changes.option(lr=1e-2)), only="adamw"
    ),
    "the largest second moment": Planted(cause="AdamW", plant=amsgrad, only="adamw"),
}
