"""Bugs of a third hand: all 22 were caught, 12 with the right cause first, 8 were told where to look, 2 a wrong cause.

What they taught is in the table since; of two it still says no more than where to look ("some wrong", "AdamW").
Of 11 more all were caught too, 5 with the right cause first, 3 were told where to look, 3 a wrong cause; two of those
three stand here, the third (gradients sent in fixed point) is still taken for other rows.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from planted import BIAS, HEAD, RANKS, SHARED, Planted, average, from_all, gradients, hooked, loads, other_batch
from planted_bugs import with_targets

from course_lib import comm
from course_lib.training.batches import IGNORED
from course_lib.training.step import count_targets
from course_lib.verify import changes


def shares_of_nodes(x):
    first, second, *_ = x.tensor_split(RANKS)
    return torch.cat([first, first, second, second])


def sum_and_own(plan, bucket):
    own = bucket.flat.clone()
    comm.all_reduce_(bucket.flat)
    bucket.flat.add_(own).div_(RANKS)


def one_percent_more(plan, bucket):
    if dist.get_rank() == RANKS - 1:
        bucket.flat.mul_(1.01)
    average(bucket.flat)


def for_the_first_rank(plan, bucket):
    mean = bucket.flat.clone()
    average(mean)
    if dist.get_rank() == 0:
        bucket.flat.copy_(mean)


def without_last_hop(plan, bucket):
    """On each rank one chunk lacks one rank's part."""
    rows = comm.all_gather(bucket.flat[None].contiguous())
    chunk = torch.arange(len(bucket.flat)).tensor_split(RANKS)[(dist.get_rank() + 1) % RANKS]
    bucket.flat.copy_(rows.mean(0))
    bucket.flat[chunk] -= rows[(dist.get_rank() + 2) % RANKS][chunk] / RANKS


def three_and_one(rows):
    return rows[:3].mean(0) if dist.get_rank() < 3 else rows[3]


def without_first_row(gradient):
    return torch.cat([torch.zeros_like(gradient[:1]), gradient[1:]])


def on_batches(change):
    """Ranks train on what `change` makes of all batches so far."""

    def plant(trainer):
        compute, batches = trainer.compute_gradients, []

        def changed(batch):
            batches.append(batch)
            return compute(change(batches))

        trainer.compute_gradients = changed

    return plant


def inputs_as_targets(batches):
    inputs, targets = batches[-1]
    return inputs, torch.where(targets == IGNORED, targets, inputs)


def all_but_last_targets(batches):
    inputs, targets = batches[-1]
    return inputs, torch.cat([targets[:, :-1], torch.full_like(targets[:, -1:], IGNORED)], 1)


def stale_inputs_on_rank_1(batches):
    before, (inputs, targets) = batches[-2:][0][0], batches[-1]
    stale = dist.get_rank() == 1 and before.shape == inputs.shape
    return (before.roll(1, 0) if stale else inputs), targets


def rated(rate):
    """The learning rate of each update, as a multiple of the configured one."""

    def plant(trainer):
        update, updates = trainer.update, []

        def updated():
            updates.append(1)
            trainer.set_learning_rate(rate(len(updates)) * trainer.config.learning_rate)
            update()

        trainer.update = updated

    return plant


def cleared_on_the_first_rank(trainer):
    def update():
        trainer.optimizer.step()
        if dist.get_rank() == 0:
            trainer.zero_grad()

    trainer.update = update


def doubled_on_rank_1(trainer):
    trainer.local.parameters[BIAS].register_hook(lambda gradient: 2 * gradient if dist.get_rank() == 1 else gradient)


def weighed_by_rows(setup):
    cut, run, parts = setup.engine.cut, setup.engine.run, []

    def kept(batch):
        parts[:] = cut(batch)
        return parts

    def weighed(inputs, loss):
        mine = torch.tensor([len(parts[0][0]), count_targets(parts[0])], dtype=torch.float64)
        rows, targets = (mine / comm.all_reduce(mine)).tolist()
        run(inputs, lambda output, number: loss(output, number) * rows / targets)

    setup.engine.cut, setup.engine.run = kept, weighed


def last_part_s_loss(trainer):
    loss, seen = trainer.engine.ends.loss, []

    def watched(output, targets):
        one = loss(output, targets)
        seen[:] = [one.item(), count_targets((output, targets))]
        return one

    def mean_loss(summed, targets):
        losses, counts = trainer.over_shares(seen)
        return sum(losses) / sum(counts)

    trainer.engine.ends.loss, trainer.mean_loss = watched, mean_loss


def largest_mean(trainer, summed, targets):
    return max(trainer.over_shares([summed / trainer.own_targets])[0])


def born_in_bf16(trainer):
    for parameter in trainer.local.parameters.values():
        parameter.data.copy_(parameter.data.bfloat16())


def rare_tokens_count_more(trainer):
    trainer.model.module.embedding.scale_grad_by_freq = True


def plain_sgd(trainer):
    group = trainer.optimizer.param_groups[0]
    trainer.optimizer = torch.optim.SGD(group["params"], lr=group["lr"], weight_decay=group["weight_decay"])


def swapped_moments(trainer):
    one, other = (trainer.optimizer.state[trainer.local.parameters[name]] for name in (HEAD, SHARED))
    for kind in ("exp_avg", "exp_avg_sq"):
        one[kind], other[kind] = other[kind], one[kind]


FRESH_EARLY = {
    "both ranks of a node read one share": Planted(cause="shares missing", plant=other_batch(shares_of_nodes)),
    "a rank's own is added once more": Planted(cause="own repeated", plant=hooked(sum_and_own)),
    "only the first rank gets the mean": Planted(cause="some ranks", plant=hooked(for_the_first_rank)),
    "a ring stops one hop early": Planted(cause="in part", plant=hooked(without_last_hop)),
    "three ranks average, one is alone": Planted(cause="within groups", plant=from_all(three_and_one)),
    "a padding row has no gradient": Planted(cause="some wrong", plant=gradients(without_first_row, SHARED)),
    "rare tokens have larger gradients": Planted(cause="some wrong", plant=rare_tokens_count_more),
    "doubled on one rank before averaging": Planted(cause="some wrong", plant=doubled_on_rank_1),
    "targets are not shifted": Planted(cause="other rows", plant=on_batches(inputs_as_targets)),
    "one rank has the inputs of the step before": Planted(cause="other rows", plant=on_batches(stale_inputs_on_rank_1)),
    "the last target of each row is ignored": Planted(cause="other rows", plant=on_batches(all_but_last_targets)),
    "one rank's gradient is 1 % larger": Planted(cause="shares weighed", plant=hooked(one_percent_more)),
    "shares weigh by rows": Planted(cause="mean by rows", technique=weighed_by_rows),
    "only the first rank clears": Planted(cause="not cleared", plant=cleared_on_the_first_rank),
    "weights begin in bf16": Planted(cause="built otherwise", plant=born_in_bf16),
    "the rate falls after each step": Planted(cause="later", plant=rated(lambda n: 0.5 ** (n - 1)), only="sgd"),
    "the rate warms up": Planted(cause="rate", plant=rated(lambda n: n / 10), only="sgd"),
    "the last micro-batch's loss": Planted(cause="loss of some micro-batches", plant=last_part_s_loss, accumulation=2),
    "the largest loss of the ranks": Planted(cause="loss", plant=with_targets(largest_mean)),
}
FRESH_LATE = {
    "a new optimizer for each step": Planted(cause="made anew", plant=changes.new_optimizer_each_step, only="adamw"),
    "the limit divided by the ranks": Planted(
        cause="limit over ranks", plant=changes.scaled_limit(1 / RANKS), only="adamw"
    ),
    "betas the wrong way round": Planted(cause="AdamW", plant=changes.option(betas=(0.999, 0.9)), only="adamw"),
    "SGD in place of AdamW": Planted(cause="AdamW", plant=plain_sgd, only="adamw"),
    "two weights' moments are swapped after loading": Planted(
        cause="save and load", plant=loads(swapped_moments), only="adamw"
    ),
}
