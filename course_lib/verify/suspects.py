"""The table of what makes ranks differ from one device: each cause, the evidence that points to it, and the way out.

The first whose evidence is there is named, so the certain ones come first and the last of a rung only say where to
look. Evidence is None where a cause is ruled out, else what was seen of it, which stands for {} in the way out. Causes
that one factor cannot tell apart are named together.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from course_lib.parallel.table.agreement import listing
from course_lib.verify import changes as c
from course_lib.verify import gradient_facts as g
from course_lib.verify import row_facts as r
from course_lib.verify import step_facts as s
from course_lib.verify.causes import OF_GRADIENTS, Cause
from course_lib.verify.evidence import Evidence

_MOST = 2  # causes in a message


class Suspect(NamedTuple):
    """One cause."""

    name: str
    seen: g.Seen
    way_out: str
    by_ratio: bool = False  # named together with others of the same factor


def _ratio(cause: Cause) -> Suspect:
    return Suspect(
        cause.name, g.ratio_is(lambda e: cause.ratio(e.n_shares, e.n_microbatches)), cause.way_out, by_ratio=True
    )


def _over_all(e: Evidence) -> float:
    """Shares over ranks, where several ranks average and all gradients are wrong; else no ratio's number."""
    return e.n_shares / e.n_ranks if e.n_shares > 1 and not e.right else math.nan


def _both(e: Evidence) -> float:
    """Shares over micro-batches, where there are several of both; else no ratio's number."""
    return e.n_shares / e.n_microbatches if min(e.n_shares, e.n_microbatches) > 1 else math.nan


# fmt: off
_ANYWHERE = (
    Suspect("frozen", g.is_frozen,
            "a frozen parameter has no gradient and never changes: leave it out of reducing, clipping and "
            "updating"),
    Suspect("other names", g.other_names,
            "{} is not in both models: is a weight renamed, or a tied one untied, on the ranks?"),
)
_REARRANGED = (
    Suspect("transposed", g.of_kind("transposed"),
            "the shard was cut, or put back, along the other dim: compare its layout with torch's (out, in)"),
    Suspect("permuted", g.of_kind("permuted"), "put the shards together in rank order"),
)
_ROUNDED = (
    Suspect("rounded", g.of_kind("rounded"), "something on the way has 16 bits: reduce in the gradient's own dtype"),
    Suspect("precision", g.looks_rounded,
            "all errors are {}, though not all numbers fit it: something on the way has fewer bits. Reduce, add up and "
            "update in the gradient's own dtype"),
)
_BORN = (
    Suspect("built otherwise", s.born_otherwise,
            "before the first step rank 0's {} is not one device's: build both models from one configuration and "
            "one seed"),
    Suspect("not broadcast", s.born_apart, "{}: broadcast it when wrapping"),
)
_OF_OUTPUT = (
    *_ANYWHERE,
    Suspect("random", s.is_random,
            "one device gives two outputs for one batch: compare without dropout, p=0 or eval()"),
    *_BORN,
    Suspect("over the batch", s.mixes_rows,
            "a row's output depends on the rows beside it, as with BatchNorm: take statistics over all ranks "
            "(SyncBatchNorm), or compare with eval()"),
    Suspect("from a position on", s.right_up_to_a_position,
            "the first {} positions of each row are right, no later one: look at other ranks' positions and keys"),
    *_ROUNDED,
    Suspect("rows out of order", s.rows_in_another_order,
            "the rows are all there, in the order {}: put the shares together in rank order, as they were cut"),
    *_REARRANGED,
    Suspect("some ranks compute otherwise", s.rows_of_some_ranks,
            "weights are equal, yet the rows of {} are wrong: what differs there that no checkpoint holds, such "
            "as train() or eval(), or an option?"),
    Suspect("another function", s.how_ranks_share,
            "weights are equal: {}compare what is in no checkpoint, such as activations, eps or eval()"),
)
_OF_GRADIENTS_OF_RANKS = (
    *_ANYWHERE,
    *(one._replace(seen=g.without_output(one.seen)) for one in _BORN),
    Suspect("not cleared", g.stale, "they hold the first step's{} as well: call zero_grad() after each update"),
    *_REARRANGED,
    *_ROUNDED[:1],
    Suspect("terms", g.in_terms,
            "its copies ({}) have different ones: each needs the sum; is the gradient of every use in it?"),
    Suspect("terms of one batch", g.terms_of_one_batch,
            "the ranks work on one batch, and each holds a term of {}: add the terms up over the ranks"),
    Suspect("some ranks", g.some_ranks_right,
            "only {} holds a wrong one: it was changed there after averaging, or that rank's calls are not the "
            "others'"),
    Suspect("tied", g.only_tied, "wrong is only {}, which is tied: is the gradient of every use in it, once?"),
    Suspect("left out", g.some_apart,
            "only of {} do the ranks hold different ones: it is left out of averaging; is it in a bucket, was its"
            " hook registered?"),
    *map(_ratio, OF_GRADIENTS),
    Suspect("averaged over all ranks", g.ratio_is(_over_all),
            "the sum was divided by the number of all ranks, though only those along dp read different rows",
            by_ratio=True),
    Suspect("node", g.node_ratio,
            "the sum over {}: divide by the number of ranks, not of those on a node", by_ratio=True),
    Suspect("ranks for micro-batches", g.ratio_is(lambda e: 1 / _both(e)),
            "the sum over micro-batches was divided by the number of ranks: divide by that of micro-batches",
            by_ratio=True),
    Suspect("micro-batches for ranks", g.ratio_is(_both),
            "the sum over the ranks was divided by the number of micro-batches: divide by that of ranks",
            by_ratio=True),
    Suspect("ignored", g.ratio_is(g.ignored_counted), "ignored targets were counted: divide by those that count"),
    Suspect("loss scale", g.loss_scale, "the loss scale {} is still in them: unscale before clipping and updating"),
    Suspect("some scaled", g.some_scaled,
            "wrong is only {}: its gradient is scaled or summed differently from all others"),
    Suspect("one factor", g.any_ratio, "all by one factor, {}: look where the loss or the gradient is multiplied"),
    Suspect("not averaged", r.own_share,
            "on each rank its own share counts and no other: average over the ranks between backward and the "
            "optimizer's step"),
    Suspect("within groups", r.own_group,
            "on each rank the shares of {} ranks count: average over all ranks, not over a group's"),
    Suspect("own repeated", r.own_repeated,
            "on each rank its own share counts {} what each other does: the sum over the ranks holds it already"),
    Suspect("one share", r.one_share,
            "rank {}'s share alone counts, on all ranks: give each rank its own share of the batch"),
    Suspect("averaged early", r.averaged_early,
            "micro-batch {} was averaged over the ranks, the others were not: average after the last one"),
    Suspect("micro-batches missing", r.micro_batches_missing,
            "{}: add the gradients of all up before averaging, and clear them only after the update"),
    Suspect("shares missing", r.shares_missing,
            "the share of {} does not count: does that rank take part in averaging with its own gradient?"),
    # What fits to the last digit stands before what only counts more than the rest.
    Suspect("mean of means", r.means_of_shares,
            "each share counts the same, however many targets it has: weigh it by its number of targets"),
    Suspect("mean by rows", r.means_by_rows,
            "each share counts by its number of rows: weigh it by its number of targets"),
    Suspect("mean of micro-batch means", r.means_of_micro_batches,
            "each micro-batch counts the same, however many targets it has: weigh it by its number of targets"),
    Suspect("mean of row means", r.means_of_rows,
            "each row counts the same, however many targets it has: weigh it by its number of targets"),
    Suspect("shares repeated", r.shares_repeated, "the share of {} counts more than once: give each rank its own"),
    Suspect("rows missing", r.rows_missing, "{} of the batch does not count: was the batch cut to equal shares?"),
    Suspect("micro-batches repeated", r.micro_batches_repeated,
            "micro-batch {} counts more than once: reduce what all of them added up to, once, after the last one"),
    Suspect("rows repeated", r.rows_repeated,
            "{} of the batch counts more than once: was the batch filled up to equal shares?"),
    Suspect("shares weighed", r.shares_weighed,
            "one device counts each row once, the ranks those of their shares {} times: weigh each share by its number "
            "of targets"),
    Suspect("maximum", g.largest_of_ranks, "each number is the {} of the ranks' own: reduce with AVG"),
    *_ROUNDED[1:],
    Suspect("some wrong", g.some_wrong, "wrong is only {}: what is special about it?"),
    Suspect("born zero", g.born_zero,
            "the first step does not show how the ranks use what began as 0 ({}): does each count once, as a bias that "
            "is added to the sum?"),
    Suspect("in part", g.in_part,
            "{} numbers are right, and the wrong ones lie together: does a chunk or a shard lack a rank's part, or was "
            "it taken before its sum was complete?"),
    Suspect("other rows", g.other_rows,
            "it is no sum of the rows' gradients, however often each counts: do the ranks see the same inputs and "
            "targets, and does their model compute the same in training?"),
    Suspect("alike", g.are_alike,
            "all ranks hold the same one, so it was reduced: does each share count by its number of targets, and "
            "is every micro-batch in it?"),
    Suspect("apart", g.always,
            "the ranks hold different ones: average it over the ranks between backward and the optimizer's step"),
)
_OF_NORM = (
    Suspect("norm of own", g.norm_of_own, "each rank took the norm of its own share's gradient: average first"),
    Suspect("norms apart", g.norms_apart,
            "each rank has the norm of what it holds: add the squares over the ranks that hold different parts, "
            "and count each of them once"),
    Suspect("norm over ranks", g.norm_is(lambda e: e.alone.norm * math.sqrt(e.n_ranks)),
            "every rank has all gradients: do not add their squares over the ranks"),
    Suspect("tied twice", g.norm_is(g.tied_twice),
            "the gradients are right: count each of them once, whatever is replicated, tied or sharded; a tied "
            "one is counted twice"),
    Suspect("no root", g.norm_is(lambda e: e.alone.norm ** 2), "it is the sum of squares: take its root"),
    Suspect("sum of norms", g.norm_is(g.norm_by(torch.linalg.norm, torch.sum)),
            "norms were added: add their squares, then take the root"),
    Suspect("largest", g.norm_is(g.norm_by(lambda x: x.abs().max(), torch.amax)),
            "it is the largest number: the norm is the root of the sum of squares"),
    Suspect("sum of sizes", g.norm_is(g.norm_by(lambda x: x.abs().sum(), torch.sum)),
            "sizes were added: the norm is the root of the sum of squares"),
    Suspect("norms added over ranks", g.norm_is(lambda e: e.alone.norm * e.n_ranks),
            "norms were added over the ranks, and every rank has all gradients: its own is enough"),
    Suspect("norm divided", g.norm_is(lambda e: e.alone.norm / e.n_ranks),
            "it was divided by the number of ranks: the gradients are averages already"),
    Suspect("norm", g.always,
            "the gradients are right: count each of them once, whatever is replicated, tied or sharded"),
)
_OF_PARAMETERS = (
    *_ANYWHERE,
    Suspect("replicas", s.replica_apart,
            "copies of one parameter are equal bit by bit, else they drift apart: let every rank add in the same "
            "order, and update with nothing of its own"),
    *_ROUNDED[:1],
    Suspect("never updated", s.never_updated,
            "the first step leaves {} as it was: does the optimizer have it, and does every rank update?"),
    Suspect("rate by ranks", s.update_is(lambda e: e.n_shares),
            "the first update is p times too large: the learning rate, or the sum over the ranks, is not divided "
            "by their number"),
    Suspect("updated twice", s.update_is(lambda e: 2),
            "the first update is twice too large: does the optimizer step once for each batch?"),
    Suspect("rate", s.any_update_ratio,
            "the first update is {} one device's: compare the learning rates, and what happens to gradients between "
            "their norm and the update"),
    Suspect("buffers", s.only_buffers,
            "the first step leaves the weights right and {} wrong: are buffers the first rank's before each "
            "forward?"),
    _ROUNDED[1]._replace(seen=s.rounded_at_once),
    Suspect("one rank strays", s.strays_alone,
            "{} ends much further away than the others, which follow it: what does that rank's optimizer, or its step, "
            "do otherwise?"),
    Suspect("later", s.only_later,
            "the first step's gradients are right: look at the update, and at what a later step does differently;"
            " the first update is right too"),
    Suspect("update", g.always,
            "the first step's gradients are right: look at the update, and at what a later step does differently"),
)
_OF_LOSS = (
    Suspect("loss of the first share", s.loss_is(s.first_share_loss),
            "it is the first share's: report the mean over the targets of all ranks, not of one"),
    Suspect("own loss", s.loss_is(s.share_loss),
            "each rank's is its own share's: report the mean over the targets of all ranks, not of one"),
    Suspect("mean of losses", s.loss_is(s.mean_of_share_losses),
            "it is the mean of the shares' means: weigh each by its number of targets"),
    Suspect("loss not divided", s.loss_is(s.summed_loss), "it is the sum over all targets: divide by their number"),
    Suspect("losses added", s.times_loss(lambda e: e.n_shares),
            "it is p times too large: divide the sum over the ranks by their number"),
    Suspect("loss divided", s.times_loss(lambda e: 1 / e.n_shares),
            "it was divided by the number of ranks once more"),
    Suspect("losses of micro-batches added", s.times_loss(lambda e: e.n_microbatches),
            "it is m times too large: divide the sum over micro-batches by their number"),
    Suspect("loss of one micro-batch", s.times_loss(lambda e: 1 / e.n_microbatches),
            "it was divided by the number of micro-batches once more"),
    Suspect("loss of some micro-batches", s.loss_of_a_micro_batch,
            "it is that of micro-batch {} alone: add the losses of all up"),
    Suspect("late loss", s.one_step_late, "it is that of the step before: report a step's own"),
    Suspect("loss", g.always, "the weights are right: report the mean over the targets of all ranks, not of one"),
)


_OF_ADAMW = (
    *_ANYWHERE,
    Suspect("replicas", s.replica_apart,
            _OF_PARAMETERS[len(_ANYWHERE)].way_out),
    *_ROUNDED[:1],
    Suspect("no clipping", s.replays(c.no_clipping),
            "nothing was clipped, one device without it ends up there too: clip by one norm of all gradients, after "
            "averaging and before the update"),
    Suspect("PyTorch's clipping", s.replays(c.clip_as_torch),
            "one device that clips with clip_grad_norm_ ends up there too: it adds 1e-6 to the norm, so clip with it on"
            " both sides or on none"),
    Suspect("no clamp", s.replays(c.no_clamp),
            "one device that makes short gradients longer ends up there too: never scale by more than 1"),
    Suspect("clipped before averaging", lambda e: s.replays(c.clip_shares(e.n_shares))(e),
            "one device that clips each share ends up there too: clip once, after averaging"),
    Suspect("limit over ranks", lambda e: s.replays(c.scaled_limit(1 / e.n_shares))(e),
            "one device that clips at a p-th of the limit ends up there too: the limit is for the norm of averaged "
            "gradients, and is not divided"),
    Suspect("clipped each", s.replays(c.clip_each),
            "one device that clips each parameter by its own norm ends up there too: clip by one norm of all"),
    Suspect("clipped by value", s.replays(c.clip_value),
            "one device that clips each number ends up there too: clip by one norm of all"),
    Suspect("no weight decay", s.replays(c.no_decay),
            "one device without weight decay ends up there too: give the optimizer weight_decay"),
    Suspect("decay of matrices", s.replays(c.decay_of_matrices),
            "one device on which biases and norms do not decay ends up there too: give both the same parameter "
            "groups"),
    Suspect("Adam", s.replays(c.coupled_decay),
            "one device with Adam ends up there too: take AdamW, which decays weights apart from the gradient"),
    Suspect("rate by ranks", lambda e: s.replays(c.scaled_rate(e.n_shares))(e),
            "one device with p times the learning rate ends up there too: compare the learning rates"),
    Suspect("rate by root of ranks", lambda e: s.replays(c.scaled_rate(math.sqrt(e.n_shares)))(e),
            "one device with √p times the learning rate ends up there too: compare the learning rates"),
    Suspect("eps", s.replays(c.default_eps),
            "one device with Adam's default eps ends up there too: give the optimizer adam_eps"),
    Suspect("made anew", s.replays(c.new_optimizer_each_step),
            "one device that begins each step with a new optimizer ends up there too: make it once, before the first"),
    Suspect("betas", s.replays(c.option(betas=(0.9, 0.95))),
            "one device with betas (0.9, 0.95) ends up there too: compare the betas"),
    *_ROUNDED[1:],
    Suspect("AdamW", g.always,
            "SGD is right: look at clipping (one norm, of averaged gradients), weight decay, the optimizer's "
            "state"),
)
_OF_SAVE = (
    *_ANYWHERE,
    Suspect("weights not loaded", s.weights_loaded_otherwise,
            "after loading, {} is not what was saved: load the same, newest checkpoint on every rank"),
    Suspect("buffers not loaded", s.buffers_loaded_otherwise,
            "after loading, the buffer {} is not what was saved: save and load buffers too"),
    Suspect("replicas", s.replica_apart,
            _OF_PARAMETERS[len(_ANYWHERE)].way_out),
    Suspect("optimizer not loaded", s.replays_late(c.new_optimizer),
            "one device that loses the optimizer's state half-way ends up there too: save and load it, after the "
            "optimizer is made"),
    Suspect("momentum lost", s.replays_late(c.lost("exp_avg")),
            "one device that loses exp_avg half-way ends up there too: save and load all of the optimizer's state"),
    Suspect("second moment lost", s.replays_late(c.lost("exp_avg_sq")),
            "one device that loses exp_avg_sq half-way ends up there too: save and load all of the optimizer's "
            "state"),
    Suspect("steps lost", s.replays_late(c.lost("step")),
            "one device that counts its steps from 0 again ends up there too: save and load the optimizer's step"),
    Suspect("some states lost", s.some_states_lost,
            "one device that loses the optimizer's state of what is placed {} ends up there too: save every rank's"),
    Suspect("save and load", g.always,
            "training before the checkpoint is right: save and load the optimizer's state and the buffers too"),
)
# fmt: on
_BY_RUNG = {
    "output": _OF_OUTPUT,
    "gradients": _OF_GRADIENTS_OF_RANKS,
    "gradient norm": _OF_NORM,
    "parameters": _OF_PARAMETERS,
    "loss curve": _OF_LOSS,
    "AdamW": _OF_ADAMW,
    "save and load": _OF_SAVE,
}


def convicted(evidence: Evidence) -> list[tuple[str, str]]:
    """Name and way out of the first cause whose evidence is there, and of those that its factor has besides."""
    if evidence.below:
        return [("a rung below", f"the rung below, {evidence.below}, was left out and fails already: begin there")]
    table, found = _BY_RUNG[evidence.rung], list[tuple[str, str]]()
    for suspect in table:
        if found and not suspect.by_ratio:
            continue
        seen = suspect.seen(evidence)
        if seen is not None:
            alone = f"{listing(evidence.names)} alone: " if suspect.by_ratio and evidence.right else ""
            found.append((suspect.name, alone + suspect.way_out.replace("{}", seen)))
            if not suspect.by_ratio:
                break
    return found[:_MOST]
