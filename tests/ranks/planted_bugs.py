"""Bugs that people make, each named by what it does, with the cause that the ladder should name first."""

from __future__ import annotations

import torch
import torch.distributed as dist
from ladder_models import Toy
from planted import (
    HEAD,
    RANKS,
    SHARED,
    AloneFromStepTwo,
    OneStepLate,
    Planted,
    added,
    after,
    clipped_before_averaging,
    drifting,
    first_rank_updates,
    forget_bias,
    from_all,
    from_another_seed,
    gradients,
    half_on_the_wire,
    hooked,
    in_another_order,
    in_bf16,
    instead,
    keeps_its_own_bias,
    knows_the_share,
    last_rank_sends_zeros,
    loads,
    loads_nothing_on,
    losses_times,
    moments_in_bf16,
    norm,
    nudged,
    other_batch,
    own_buffers,
    own_norm,
    reborn,
    rows_in_order,
    shifted_on_rank_1,
    strided,
    thawed,
    through,
    updates_twice,
    vectors_do_not_decay,
)
from planted_models import OneUse, dropping, frozen, normalising, rounding, sound_between, squashing, tied

from course_lib.training import trainer as trainers
from course_lib.training.step import count_targets
from course_lib.verify import changes
from course_lib.verify.museum import pipeline, seams


def with_targets(mean_loss):
    """What is logged, as a function of the trainer, its share's summed loss and the number of all targets."""

    def plant(trainer):
        compute = trainer.compute_gradients

        def remembered(batch):
            share = trainers.share(batch, trainer.local.rank("dp"), trainer.local.size("dp"))
            trainer.own_targets = count_targets(share)
            return compute(batch)

        trainer.compute_gradients = remembered
        instead(mean_loss=mean_loss)(trainer)

    return plant


def mean_of_means(trainer, summed, targets):
    return sum(trainer.over_shares([summed / trainer.own_targets])[0]) / RANKS


def first_loss(trainer, summed, targets):
    return trainer.over_shares([summed / trainer.own_targets])[0][0]


def own_loss(trainer, summed, targets):
    return summed / trainer.own_targets


ROUNDED = {"sound": sound_between, "model": rounding}
EARLY = {  # plain SGD shows them
    # gradients: scale
    "the sum is not divided": Planted(cause="summed", plant=added(1)),
    "averaged, then divided again": Planted(cause="averaged twice", plant=added(1 / RANKS**2)),
    "divided by the ranks of a node": Planted(cause="node", plant=added(1 / 2)),
    "subtracted where it is added": Planted(cause="sign", plant=gradients(lambda g: -g)),
    "loss not divided by micro-batches": Planted(
        cause="not divided by micro-batches", technique=losses_times(lambda n, m: m), accumulation=2
    ),
    "loss divided by micro-batches twice": Planted(
        cause="divided by micro-batches twice", technique=losses_times(lambda n, m: 1 / m), accumulation=2
    ),
    "micro-batches divided by ranks": Planted(
        cause="ranks for micro-batches", technique=losses_times(lambda n, m: m / RANKS), accumulation=3
    ),
    "ranks divided by micro-batches": Planted(cause="micro-batches for ranks", plant=added(1 / 3), accumulation=3),
    "loss scale never removed": Planted(cause="loss scale", technique=losses_times(lambda n, m: 65536.0)),
    "ignored targets counted": Planted(cause="ignored", plant=knows_the_share),
    "a factor from somewhere": Planted(cause="one factor", plant=gradients(lambda g: 0.9 * g)),
    "the reduction comes one step late": Planted(cause="nothing", plant=lambda t: hooked(OneStepLate())(t)),
    # gradients: who counts
    "never averaged": Planted(cause="not averaged", plant=hooked(lambda plan, bucket: None)),
    "averaged within nodes": Planted(
        cause="within groups", plant=from_all(lambda rows: rows.view(2, 2, -1)[dist.get_rank() // 2].mean(0))
    ),
    "the first rank's gradient for all": Planted(cause="one share", plant=from_all(lambda rows: rows[0])),
    "one rank sends zeros": Planted(cause="shares missing", plant=hooked(last_rank_sends_zeros)),
    "a rank sends its neighbour's": Planted(
        cause="shares missing", plant=from_all(lambda rows: rows[[0, 1, 1, 3]].mean(0))
    ),
    "one rank counts twice": Planted(
        cause="shares repeated", plant=from_all(lambda rows: (rows.sum(0) + rows[2]) / RANKS)
    ),
    "cleared before each micro-batch": Planted(
        cause="micro-batches missing", technique=losses_times(lambda n, m: n == m - 1), accumulation=2
    ),
    "only the first micro-batch": Planted(
        cause="micro-batches missing", technique=losses_times(lambda n, m: n == 0), accumulation=3
    ),
    "cut to equal shares": Planted(cause="rows missing", plant=other_batch(lambda x: x[: len(x) // RANKS * RANKS])),
    "filled up to equal shares": Planted(cause="rows repeated", plant=other_batch(lambda x: torch.cat([x, x[:3]]))),
    "mean of the ranks' means": Planted(cause="mean of means", technique=seams.own_means),
    "mean of the micro-batches' means": Planted(
        cause="mean of micro-batch means", technique=pipeline.mean_of_means, accumulation=2
    ),
    "the largest in place of the mean": Planted(cause="maximum", plant=from_all(lambda rows: rows.amax(0))),
    # gradients: precision, layout, single parameters
    "half precision on the wire": Planted(cause="rounded", plant=hooked(half_on_the_wire)),
    "rounded to bf16, averaged in full": Planted(cause="precision", plant=through(torch.bfloat16)),
    "rounded to float16, averaged in full": Planted(cause="precision", plant=through(torch.float16)),
    "accumulated in float32": Planted(cause="precision", plant=through(torch.float32)),
    "shards in another order": Planted(
        cause="permuted",
        plant=gradients(in_another_order, HEAD),
    ),
    "a square matrix transposed": Planted(cause="transposed", plant=gradients(lambda g: g.t().clone(), "inner.weight")),
    "a bias is left out of its bucket": Planted(cause="left out", plant=keeps_its_own_bias),
    "one weight reduced by two hooks": Planted(cause="some scaled", plant=gradients(lambda g: 2 * g, HEAD)),
    "one weight not divided": Planted(cause="summed", plant=gradients(lambda g: RANKS * g, HEAD)),
    "one rank changes its own": Planted(cause="some ranks", plant=gradients(lambda g: 3 * g, rank=2)),
    "a tied weight counted twice": Planted(cause="tied", plant=gradients(lambda g: 2 * g, SHARED), sound=tied),
    "one use of a tied weight": Planted(cause="tied", sound=tied, model=OneUse),
    "a tied weight untied": Planted(cause="other names", sound=tied, model=Toy),
    "a frozen weight gets a gradient": Planted(cause="frozen", plant=thawed, sound=frozen),
    # output
    "every rank keeps its seed's weights": Planted(cause="not broadcast", plant=reborn(100, ranks=(1, 2, 3))),
    "one rank loads other weights": Planted(cause="not broadcast", plant=reborn(100, ranks=(2,))),
    "every rank keeps its seed's buffers": Planted(cause="not broadcast", plant=own_buffers),
    "built from another seed": Planted(cause="built otherwise", plant=from_another_seed),
    "shares put together backwards": Planted(
        cause="rows out of order", plant=rows_in_order(lambda n: torch.arange(n).flip(0))
    ),
    "every fourth row, put together by rank": Planted(cause="rows out of order", plant=rows_in_order(strided)),
    "dropout is on": Planted(cause="random", sound=dropping),
    "statistics over a rank's share": Planted(cause="over the batch", sound=normalising),
    "another activation": Planted(cause="another function", sound=sound_between, model=squashing),
    "one rank in another mode": Planted(cause="some ranks compute otherwise", plant=shifted_on_rank_1),
    "autocast left on": Planted(cause="precision", **ROUNDED),
    # norm
    "norm before averaging": Planted(cause="norm of own", plant=own_norm),
    "norms over the ranks": Planted(cause="norm over ranks", plant=after("clip", lambda t, n: n * RANKS**0.5)),
    "norms added": Planted(cause="sum of norms", plant=norm(lambda gs: torch.stack([g.norm() for g in gs]).sum())),
    "squares without the root": Planted(cause="no root", plant=after("clip", lambda t, n: n * n)),
    "the largest number as norm": Planted(
        cause="largest", plant=norm(lambda gs: torch.stack([g.abs().max() for g in gs]).max())
    ),
    "a tied weight twice in the norm": Planted(
        cause="tied twice",
        plant=after("clip", lambda t, n: (n * n + t.local.gradients()[SHARED].norm().item() ** 2) ** 0.5),
        sound=tied,
    ),
    # parameters
    "learning rate times ranks": Planted(cause="rate by ranks", plant=changes.scaled_rate(RANKS), only="sgd"),
    "another learning rate": Planted(cause="rate", plant=changes.scaled_rate(0.5), only="sgd"),
    "gradients are never cleared": Planted(cause="not cleared", plant=instead(update=lambda t: t.optimizer.step())),
    "only the first rank updates": Planted(cause="never updated", plant=instead(update=first_rank_updates)),
    "a bias the optimizer does not know": Planted(cause="never updated", plant=forget_bias, only="sgd"),
    "two updates for a batch": Planted(cause="updated twice", plant=instead(update=updates_twice)),
    "one rank a bit apart": Planted(cause="replicas", plant=after("update", nudged)),
    "weights kept in bf16": Planted(cause="rounded", plant=after("update", in_bf16)),
    "a buffer drifts away": Planted(cause="buffers", plant=after("update", drifting)),
    "every rank alone from the second step": Planted(
        cause="not averaged", plant=lambda t: hooked(AloneFromStepTwo())(t)
    ),
    # loss
    "losses added over the ranks": Planted(
        cause="losses added", plant=after("mean_loss", lambda t, loss: loss * RANKS)
    ),
    "the first share's loss": Planted(cause="loss of the first share", plant=with_targets(first_loss)),
    "each rank's own loss": Planted(cause="own loss", plant=with_targets(own_loss)),
    "the mean of the ranks' losses": Planted(cause="mean of losses", plant=with_targets(mean_of_means)),
}
LATE = {  # AdamW shows them, or its checkpoint
    "never clipped": Planted(cause="no clipping", plant=changes.no_clipping),
    "clipped after the update": Planted(
        cause="no clipping", plant=lambda t: setattr(t, "clip", lambda: t.local.global_norm().item())
    ),
    "clipped without the clamp": Planted(cause="no clamp", plant=changes.no_clamp, only="adamw"),
    "clipped before averaging": Planted(cause="clipped before averaging", plant=clipped_before_averaging),
    "clipped one by one": Planted(cause="no clipping", plant=changes.clip_each, only="adamw"),
    "clipped by value": Planted(cause="no clipping", plant=changes.clip_value, only="adamw"),
    "no weight decay": Planted(cause="no weight decay", plant=changes.option(weight_decay=0.0)),
    "vectors do not decay": Planted(cause="decay of matrices", plant=vectors_do_not_decay, only="adamw"),
    "Adam in place of AdamW": Planted(cause="Adam", plant=changes.coupled_decay, only="adamw"),
    "learning rate by the root of the ranks": Planted(
        cause="rate by root of ranks", plant=changes.scaled_rate(RANKS**0.5), only="adamw"
    ),
    "Adam's default eps": Planted(cause="eps", plant=changes.option(eps=1e-8), only="adamw"),
    "betas from another paper": Planted(cause="betas", plant=changes.option(betas=(0.9, 0.95)), only="adamw"),
    "moments kept in bf16": Planted(cause="precision", plant=after("update", moments_in_bf16), only="adamw"),
    # save and load
    "no optimizer state": Planted(cause="optimizer not loaded", plant=loads(changes.new_optimizer)),
    "no momentum": Planted(cause="momentum lost", plant=loads(changes.lost("exp_avg"))),
    "steps counted from 0": Planted(cause="steps lost", plant=loads(changes.lost("step"))),
    "no weights are loaded": Planted(cause="weights not loaded", plant=loads_nothing_on()),
    "one rank keeps stale weights": Planted(cause="weights not loaded", plant=loads_nothing_on(2)),
    "buffers are not loaded": Planted(cause="buffers not loaded", plant=loads_nothing_on(buffers=True)),
}
