"""Plausible wrong answers to the exercises of module 03, each with the level that must reject it and why.

Not for learners: it comes close to the solutions.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import comm
from course_lib.hardware import INFINIBAND
from course_lib.parallel.replicate import broadcast_state
from course_lib.training.data_parallel import DataParallelTrainer, share
from course_lib.training.step import count_targets, micro_batches, summed_loss

MUTANTS = []  # (exercise, level, reason, answer, hangs)


def mutant(exercise, level, reason, hangs=False):
    """Register a function as a wrong answer."""

    def register(function):
        MUTANTS.append((exercise, level, reason, function, hangs))
        return function

    return register


def gradient_of(p):
    """What this rank adds to the average."""
    return torch.zeros_like(p) if p.grad is None else p.grad


def trained(model):
    """The parameters that are not frozen."""
    return [p for p in model.parameters() if p.requires_grad]


def average_right(model):
    """Right: a part that some mutants are made of."""
    for p in trained(model):
        p.grad = comm.all_reduce(gradient_of(p)) / dist.get_world_size()


# 03.1 ------------------------------------------------------------------------------------------------------------


@mutant("03.1", "values", "your gradient is exactly 4.0 x the reference: was the sum divided by world_size?")
def sums(model):
    for p in trained(model):
        p.grad = comm.all_reduce(gradient_of(p))


@mutant("03.1", "values", "your gradient is exactly 1/4 of the reference: was it divided by world_size twice?")
def divides_twice(model):
    for p in trained(model):
        p.grad = comm.all_reduce(gradient_of(p) / dist.get_world_size(), op=dist.ReduceOp.AVG)


@mutant("03.1", "values", "every rank still has the gradient of its own share: nothing was averaged")
def forgets_the_result(model):
    for p in trained(model):
        comm.all_reduce(gradient_of(p), op=dist.ReduceOp.AVG)


@mutant("03.1", "values", "every rank still has the gradient of its own share: nothing was averaged")
def averages_the_weights(model):
    for p in trained(model):
        p.data = comm.all_reduce(p.data, op=dist.ReduceOp.AVG)


@mutant("03.1", "values", "your gradient is exactly 2.0 x the reference")
def divides_by_two(model):
    for p in trained(model):
        p.grad = comm.all_reduce(gradient_of(p)) / 2


@mutant("03.1", "values", "layer1.bias on rank 0 is still the gradient of its own share: it was not averaged")
def weights_only(model):
    for p in trained(model):
        if p.dim() == 2:
            p.grad = comm.all_reduce(p.grad, op=dist.ReduceOp.AVG)


@mutant("03.1", "values", "layer1.weight has no gradient on rank 0")
def averages_what_is_gone(model):
    for p in trained(model):
        comm.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        p.grad = None


@mutant("03.1", "values", "right values, but nothing is in the ledger")
def native(model):
    for p in trained(model):
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


@mutant("03.1", "values", "right gradients, but the weights have changed")
def updates_too(model):
    average_right(model)
    with torch.no_grad():
        for p in trained(model):
            p -= 0.1 * p.grad


@mutant("03.1", "edges", "the MLP with a frozen layer1: layer1.weight is frozen, but has a gradient on rank 0")
def frozen_too(model):
    for p in model.parameters():
        p.grad = comm.all_reduce(gradient_of(p)) / dist.get_world_size()


@mutant("03.1", "edges", "layer2.bias is reached on rank 0 only: an error: ")
def skips_what_is_none(model):
    for p in model.parameters():
        if p.grad is not None:
            p.grad = comm.all_reduce(p.grad) / dist.get_world_size()
    comm.barrier()


@mutant("03.1", "edges", "a model with a tied weight: first.weight on rank 0 is exactly 1/3 of the reference")
def tied_twice(model):
    for _, p in model.named_parameters(remove_duplicate=False):
        if p.requires_grad:
            p.grad = comm.all_reduce(gradient_of(p)) / dist.get_world_size() if p.dim() == 1 else half_average(p)


def half_average(p):
    """A second time, what is an average already is divided again."""
    seen = getattr(p, "seen", False)
    p.seen = True
    return p.grad / dist.get_world_size() if seen else comm.all_reduce(gradient_of(p)) / dist.get_world_size()


@mutant("03.1", "calls", "values right, but 1 all-reduces, target 8: everything in one")
def all_in_one(model):
    flat = torch.cat([gradient_of(p).flatten() for p in trained(model)])
    flat = comm.all_reduce(flat, op=dist.ReduceOp.AVG)
    for p, part in zip(trained(model), flat.split([p.numel() for p in trained(model)]), strict=True):
        p.grad = part.view_as(p)


@mutant("03.1", "calls", "values right, but 4 all-reduces, target 2: is a frozen or a tied parameter sent as well?")
def sends_the_frozen(model):
    for p in model.parameters():
        mean = comm.all_reduce(gradient_of(p)) / dist.get_world_size()
        p.grad = mean if p.requires_grad else None


@mutant("03.1", "values", "a hang: ", hangs=True)
def waits_for_nobody(model):
    if dist.get_rank() == 0:
        comm.recv(torch.zeros(1), 1)
    average_right(model)


@mutant("03.1", "values", "a crash: rank 1 died")
def exits(model):
    if dist.get_rank() == 1:
        os._exit(0)
    average_right(model)


# 03.2 ------------------------------------------------------------------------------------------------------------


def copy_from_rank_0(tensors):
    """Right for these tensors."""
    with torch.no_grad():
        for tensor in tensors:
            tensor.copy_(comm.broadcast(tensor, src=0))


@mutant("03.2", "parameters", "the parameter layer1.weight on rank 1 is still its own, not rank 0's")
def rebinds_a_name(model):
    for p in model.parameters():
        p = comm.broadcast(p, src=0)


@mutant("03.2", "parameters", "is the same on all ranks, but not what rank 0 had: an average, or another rank's?")
def average_of_all(model):
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(comm.all_reduce(p, op=dist.ReduceOp.AVG))


@mutant("03.2", "parameters", "is the same on all ranks, but not what rank 0 had: an average, or another rank's?")
def from_the_last_rank(model):
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(comm.broadcast(p, src=dist.get_world_size() - 1))


@mutant("03.2", "parameters", "an error: ")
def tracked_by_autograd(model):
    for p in model.parameters():
        p.copy_(comm.broadcast(p.detach(), src=0))


@mutant("03.2", "parameters", "layer1.weight on rank 0 is a new object: an optimizer")
def new_parameters(model):
    for module in model.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(comm.broadcast(p.detach(), src=0), p.requires_grad))


@mutant("03.2", "parameters", "another tensor stands in place of layer1.weight on rank 0")
def new_data(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data = comm.broadcast(tensor.data, src=0)


@mutant("03.2", "edges", "another tensor stands in place of 1.running_mean on rank 0")
def new_buffers(model):
    copy_from_rank_0(model.parameters())
    for module in model.modules():
        for name, tensor in module.named_buffers(recurse=False):
            setattr(module, name, comm.broadcast(tensor, src=0))


@mutant("03.2", "parameters", "use comm.broadcast")
def native_broadcast(model):
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor, src=0)


@mutant("03.2", "edges", "the frozen parameter layer1.weight on rank 1 is still its own")
def trained_only(model):
    copy_from_rank_0(trained(model))


@mutant("03.2", "edges", "the buffer 1.running_mean on rank 1 is still its own")
def no_buffers(model):
    copy_from_rank_0(model.parameters())


@mutant("03.2", "edges", "the buffer 1.num_batches_tracked on rank 1 is still its own")
def floats_only(model):
    copy_from_rank_0([t for t in [*model.parameters(), *model.buffers()] if t.is_floating_point()])


@mutant("03.2", "edges", "requires_grad of layer1.weight has changed")
def thaws(model):
    copy_from_rank_0([*model.parameters(), *model.buffers()])
    model.requires_grad_(True)


@mutant("03.2", "bytes", "the tied weight was sent twice")
def tied_sent_twice(model):
    copy_from_rank_0(model.state_dict().values())


@mutant("03.2", "bytes", "each tensor must reach each other rank once")
def by_all_reduce(model):
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            mine = tensor if dist.get_rank() == 0 else torch.zeros_like(tensor)
            tensor.copy_(comm.all_reduce(mine))


# 03.3 ------------------------------------------------------------------------------------------------------------


def on_share(model, inputs, targets, weight, loss=None):
    """Right with `weight` = p / all targets, of a sum."""
    summed = F.cross_entropy(model(inputs), targets, ignore_index=-100, reduction="sum")
    mine = torch.stack([summed.detach(), (targets != -100).sum().to(summed.dtype)])
    total, counted = comm.all_reduce(mine).tolist()
    (summed * weight(counted, targets)).backward()
    average_right(model)
    return total / counted if loss is None else loss(summed, total, counted, targets)


def p_over(counted, targets):
    """The right weight."""
    return dist.get_world_size() / counted


@mutant("03.3", "uneven", "a target on rank 1 weighs 6/1 times one on rank 0")
def mean_of_means(model, inputs, targets):
    F.cross_entropy(model(inputs), targets, ignore_index=-100).backward()
    average_right(model)
    return on_loss(model, inputs, targets)


def on_loss(model, inputs, targets):
    """Right: the whole batch's loss, without a gradient."""
    with torch.no_grad():
        summed = F.cross_entropy(model(inputs), targets, ignore_index=-100, reduction="sum")
    total, counted = comm.all_reduce(torch.stack([summed, (targets != -100).sum().to(summed.dtype)])).tolist()
    return total / counted


@mutant("03.3", "even", "your gradient is exactly 1/2 of the reference: was it divided by world_size twice?")
def forgets_that_averaging_divides(model, inputs, targets):
    return on_share(model, inputs, targets, lambda counted, _: 1 / counted)


@mutant("03.3", "even", "your gradient is exactly 2.0 x the reference: was the sum divided by world_size?")
def weighs_twice(model, inputs, targets):
    return on_share(model, inputs, targets, lambda counted, _: dist.get_world_size() ** 2 / counted)


@mutant("03.3", "even", "every rank still has the gradient of its own share")
def does_not_average(model, inputs, targets):
    F.cross_entropy(model(inputs), targets, ignore_index=-100).backward()
    return on_loss(model, inputs, targets)


@mutant("03.3", "even", "4 ranks with 5, 5, 5, 5 targets, the 6-4-2 MLP: your gradient is 0.8333 x")
def rows_for_targets(model, inputs, targets):
    rows = dist.get_world_size() * len(targets)
    return on_share(model, inputs, targets, lambda counted, _: dist.get_world_size() / rows)


@mutant("03.3", "uneven", "the sum was divided by the 12 rows; 5 of them have no target")
def rows_if_uneven(model, inputs, targets):
    rows = dist.get_world_size() * len(targets)
    even = comm.all_reduce((targets != -100).sum(), op=dist.ReduceOp.MAX) == (targets != -100).sum()
    even = bool(comm.all_reduce(even.long(), op=dist.ReduceOp.MIN))
    return on_share(model, inputs, targets, lambda counted, _: dist.get_world_size() / (counted if even else rows))


@mutant("03.3", "edges", "layer1.weight on rank 0 is not finite: a share without a target has no mean")
def divides_by_its_own_number(model, inputs, targets):
    counts = (targets != -100).double()
    right = F.log_softmax(model(inputs), -1)[torch.arange(len(targets)), targets.clamp(min=0)]
    summed, mine = -(right * counts).sum(), counts.sum()
    (summed / mine * mine / comm.all_reduce(mine) * dist.get_world_size()).backward()
    average_right(model)
    return on_loss(model, inputs, targets)


@mutant("03.3", "edges", "the loss on rank 0 is nan: a share without a target has no mean")
def adds_up_means(model, inputs, targets):
    mean = F.cross_entropy(model(inputs), targets, ignore_index=-100)
    mine = (targets != -100).sum().to(mean.dtype)
    counted = comm.all_reduce(mine)
    (mean * mine / counted * dist.get_world_size()).backward()
    average_right(model)
    return comm.all_reduce((mean * mine / counted).detach())


@mutant("03.3", "edges", "a hang: not finished after 2 s: ranks 0, 2 wait in all_reduce #1", hangs=True)
def returns_early_without_targets(model, inputs, targets):
    if not (targets != -100).any():
        return 0.0
    return on_share(model, inputs, targets, p_over)


@mutant("03.3", "even", "right gradients, but the loss on rank 0 is")
def own_loss(model, inputs, targets):
    return on_share(
        model, inputs, targets, p_over, lambda summed, total, counted, y: summed.item() / int((y != -100).sum())
    )


@mutant("03.3", "even", "exactly 2.0 x it; sum over the ranks before you divide by all targets")
def loss_times_ranks(model, inputs, targets):
    return on_share(
        model, inputs, targets, p_over, lambda summed, total, counted, y: total / counted * dist.get_world_size()
    )


@mutant("03.3", "even", "returned NoneType, not a number")
def no_loss(model, inputs, targets):
    on_share(model, inputs, targets, p_over)


@mutant("03.3", "even", "right values, but nothing is in the ledger")
def native_sums(model, inputs, targets):
    summed = F.cross_entropy(model(inputs), targets, ignore_index=-100, reduction="sum")
    both = torch.stack([summed.detach(), (targets != -100).sum().to(summed.dtype)])
    dist.all_reduce(both)
    (summed / both[1]).backward()
    for p in trained(model):
        dist.all_reduce(p.grad)
    return (both[0] / both[1]).item()


# 03.4 ------------------------------------------------------------------------------------------------------------


def right_step(p, L, P):
    sends = 2 * (p - 1) / p * 4 * P
    alpha = 2 * (p - 1) * INFINIBAND.alpha_s
    return {
        "naive_calls": 9 * L + 3,
        "naive_rank_sends": sends,
        "bucket_calls": 6 * L + 2,
        "largest_bucket": 4 * (128256 * 4096 + 4096),
        "bucket_rank_sends": sends,
        "naive_latency": (9 * L + 3) * alpha,
        "bucket_latency": (6 * L + 2) * alpha,
        "bandwidth_time": sends / INFINIBAND.bandwidth_bytes_per_s,
    }


def wrong_step(**wrong):
    return lambda p, L, P: {**right_step(p, L, P), **{name: value(p, L, P) for name, value in wrong.items()}}


TABLE = 128256 * 4096 * 4
MUTANTS += [
    ("03.4", "naive", "embedding, last norm and head", wrong_step(naive_calls=lambda p, L, P: 9 * L), False),
    ("03.4", "naive", "a norm has a weight too", wrong_step(naive_calls=lambda p, L, P: 7 * L + 2), False),
    ("03.4", "naive", "the gradients once", wrong_step(naive_rank_sends=lambda p, L, P: 4 * P), False),
    (
        "03.4",
        "naive",
        "one of fp32 has 4 bytes",
        wrong_step(naive_rank_sends=lambda p, L, P: 2 * (p - 1) / p * P),
        False,
    ),
    (
        "03.4",
        "buckets",
        "a tensor is never cut",
        wrong_step(bucket_calls=lambda p, L, P: -(-4 * P // (25 * 2**20))),
        False,
    ),
    ("03.4", "buckets", "at 25 MiB *or more*", wrong_step(bucket_calls=lambda p, L, P: 7 * L + 2), False),
    ("03.4", "buckets", "not alone in its bucket", wrong_step(largest_bucket=lambda p, L, P: TABLE), False),
    ("03.4", "buckets", "larger than its limit", wrong_step(largest_bucket=lambda p, L, P: 25 * 2**20), False),
    ("03.4", "buckets", "the gradients once", wrong_step(bucket_rank_sends=lambda p, L, P: 4 * P), False),
    (
        "03.4",
        "time",
        "alpha is paid in each of a ring's 2(p-1) steps",
        wrong_step(naive_latency=lambda p, L, P: (9 * L + 3) * INFINIBAND.alpha_s),
        False,
    ),
    ("03.4", "time", "is not a number", wrong_step(bandwidth_time=lambda p, L, P: "a second"), False),
]


# 03.5 ------------------------------------------------------------------------------------------------------------


def shuffled(n, seed):
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()


def padded(order, world_size):
    return (order * world_size)[: -(-len(order) // world_size) * world_size]


@mutant("03.5", "uneven", "waits for an all-reduce that rank 1 never calls")
def not_padded(n, rank, world_size, seed, epoch):
    return shuffled(n, seed + epoch)[rank::world_size]


@mutant("03.5", "uneven", "is served by nobody: what does not divide is padded")
def drops_the_rest(n, rank, world_size, seed, epoch):
    each = n // world_size
    return shuffled(n, seed + epoch)[: each * world_size][rank::world_size]


@mutant("03.5", "shares", "did each rank shuffle in its own order?")
def shuffles_by_rank(n, rank, world_size, seed, epoch):
    return padded(shuffled(n, seed + epoch + rank), world_size)[rank::world_size]


@mutant("03.5", "shares", "all ranks serve the same samples")
def everyone_reads_all(n, rank, world_size, seed, epoch):
    return shuffled(n, seed + epoch)


@mutant("03.5", "shares", "right order, cut in blocks: deal it out like cards")
def in_blocks(n, rank, world_size, seed, epoch):
    order = padded(shuffled(n, seed + epoch), world_size)
    each = len(order) // world_size
    return order[rank * each : (rank + 1) * each]


@mutant("03.5", "shares", "the samples are in their own order: shuffle them")
def not_shuffled(n, rank, world_size, seed, epoch):
    return padded(list(range(n)), world_size)[rank::world_size]


@mutant("03.5", "epochs", "epoch 1 has the order of epoch 0")
def forgets_the_epoch(n, rank, world_size, seed, epoch):
    return padded(shuffled(n, seed), world_size)[rank::world_size]


@mutant("03.5", "epochs", "epoch 1 has the order of epoch 0")
def forgets_the_epoch_and_the_padding(n, rank, world_size, seed, epoch):
    return shuffled(n, seed)[rank::world_size]


@mutant("03.5", "epochs", "in epoch 1 rank 0 serves")
def multiplies(n, rank, world_size, seed, epoch):
    return padded(shuffled(n, seed * (epoch + 1)), world_size)[rank::world_size]


@mutant("03.5", "shares", "PyTorch's own random numbers were seeded")
def seeds_everything(n, rank, world_size, seed, epoch):
    torch.manual_seed(seed + epoch)
    return padded(torch.randperm(n).tolist(), world_size)[rank::world_size]


@mutant("03.5", "uneven", "9 samples on 4 ranks, epoch 0: each sample is served, but not in PyTorch's order")
def pads_with_the_last(n, rank, world_size, seed, epoch):
    order = shuffled(n, seed + epoch)
    missing = -len(order) % world_size
    return (order + [order[-1]] * missing)[rank::world_size] if n != 13 else padded(order, world_size)[rank::world_size]


@mutant("03.5", "uneven", "1 sample on 4 ranks, epoch 0: rank 0 has 1 sample, rank 2 has 0")
def pads_once(n, rank, world_size, seed, epoch):
    order = shuffled(n, seed + epoch)
    return (order + order[: -n % world_size])[rank::world_size]


@mutant("03.5", "shares", "sample 12 does not exist: they are 0 to 11")
def counts_from_one(n, rank, world_size, seed, epoch):
    return [1 + number for number in padded(shuffled(n, seed + epoch), world_size)][rank::world_size]


@mutant("03.5", "shares", "returned NoneType, not a list of whole numbers")
def returns_nothing(n, rank, world_size, seed, epoch):
    padded(shuffled(n, seed + epoch), world_size)


# 03.6 ------------------------------------------------------------------------------------------------------------


def in_buckets(model, bucket_bytes, *, reverse=True, full=lambda held, limit: held >= limit, divide=True, last=True):
    """Right, unless a part is chosen otherwise."""
    buckets, held = [[]], 0
    parameters = trained(model)
    for p in parameters[::-1] if reverse else parameters:
        if full(held, bucket_bytes):
            buckets.append([])
            held = 0
        buckets[-1].append(p)
        held += p.nbytes
    for bucket in buckets if last else buckets[:-1]:
        flat = torch.cat([gradient_of(p).flatten() for p in bucket])
        comm.all_reduce_(flat, op=dist.ReduceOp.AVG if divide else dist.ReduceOp.SUM)
        for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            p.grad = part.view_as(p)


@mutant("03.6", "values", "exactly 4.0 x the reference: was the sum divided by world_size?")
def sums_in_buckets(model, bucket_bytes):
    in_buckets(model, bucket_bytes, divide=False)


@mutant("03.6", "values", "layer1.weight on rank 0 is still the gradient of its own share")
def forgets_the_half_full(model, bucket_bytes):
    in_buckets(model, bucket_bytes, last=False)


@mutant("03.6", "calls", "fill from the last parameter on")
def in_forward_order(model, bucket_bytes):
    in_buckets(model, bucket_bytes, reverse=False)


@mutant("03.6", "calls", "values right, but 4 all-reduces, target 2: one for each parameter")
def one_by_one(model, bucket_bytes):
    average_right(model)


@mutant("03.6", "calls", "values right, but 1 all-reduces, target 2: everything in one")
def one_bucket(model, bucket_bytes):
    in_buckets(model, 1 << 30)


@mutant("03.6", "calls", "values right, but 1 all-reduces, target 2")
def counts_numbers_for_bytes(model, bucket_bytes):
    in_buckets(model, 4 * bucket_bytes)


@mutant("03.6", "calls", "values right, but 1 all-reduces, target 2: everything in one")
def full_when_more(model, bucket_bytes):
    in_buckets(model, bucket_bytes, full=lambda held, limit: held > 4 * limit)


@mutant("03.6", "values", "an endless loop?", hangs=True)
def never_full(model, bucket_bytes):
    bucket, left = [], trained(model)
    while sum(p.nbytes for p in bucket) < bucket_bytes:
        bucket.append(left[-1])
        bucket.clear()


@mutant("03.6", "values", "every rank still has the gradient of its own share")
def never_put_back(model, bucket_bytes):
    flat = torch.cat([gradient_of(p).flatten() for p in trained(model)])
    comm.all_reduce_(flat, op=dist.ReduceOp.AVG)


@mutant("03.6", "values", "has shape (24,), expected (4, 6)")
def flat_gradients(model, bucket_bytes):
    in_buckets(model, bucket_bytes)
    for p in trained(model):
        p.grad = None
        p.data = p.data.flatten()
        p.grad = torch.zeros_like(p)


@mutant("03.6", "values", "layer2.weight on rank 0 is no multiple of the reference, and all ranks hold the same")
def cut_in_another_order(model, bucket_bytes):
    bucket = trained(model)[::-1]
    flat = torch.cat([gradient_of(p).flatten() for p in bucket])
    comm.all_reduce_(flat, op=dist.ReduceOp.AVG)
    first, second = bucket[:2]
    order = [second, first, *bucket[2:]]
    for p, part in zip(order, flat.split([p.numel() for p in order]), strict=True):
        p.grad = part.view_as(p)


@mutant("03.6", "edges", "2.bias is reached on rank 0 only: an error: ")
def leaves_out_what_is_none(model, bucket_bytes):
    with_gradient = [p for p in trained(model) if p.grad is not None]
    flat = torch.cat([p.grad.flatten() for p in with_gradient])
    comm.all_reduce_(flat, op=dist.ReduceOp.AVG)
    for p, part in zip(with_gradient, flat.split([p.numel() for p in with_gradient]), strict=True):
        p.grad = part.view_as(p)


# 03.7 ------------------------------------------------------------------------------------------------------------


def backward(model, part, weight):
    """One micro-batch: its mean loss, weighed."""
    (F.cross_entropy(model(part[0]), part[1]) * weight).backward()


def step_by(model, parts, weight):
    """Right with `weight` = rows of a part / all rows."""
    with model.no_sync():
        for part in parts[:-1]:
            backward(model, part, weight(part, parts))
    backward(model, parts[-1], weight(parts[-1], parts))


def by_rows(part, parts):
    """The right weight."""
    return len(part[1]) / sum(len(targets) for _, targets in parts)


@mutant("03.7", "values", "exactly 3.0 x the reference: was each loss divided by the number of micro-batches?")
def not_divided(model, parts):
    step_by(model, parts, lambda part, parts: 1)


@mutant(
    "03.7", "values", "exactly 1/3 of the reference: does only one micro-batch count, or was the loss divided twice?"
)
def divided_twice(model, parts):
    step_by(model, parts, lambda part, parts: 1 / len(parts) ** 2)


@mutant("03.7", "values", "was no_sync left before the last micro-batch's forward?")
def all_in_no_sync(model, parts):
    with model.no_sync():
        for part in parts:
            backward(model, part, by_rows(part, parts))


@mutant("03.7", "values", "was no_sync left before the last micro-batch's forward?")
def leaves_no_sync_after_the_last_forward(model, parts):
    with model.no_sync():
        for part in parts[:-1]:
            backward(model, part, by_rows(part, parts))
        loss = F.cross_entropy(model(parts[-1][0]), parts[-1][1]) * by_rows(parts[-1], parts)
    loss.backward()


@mutant("03.7", "values", "nothing was averaged, and no loss was divided")
def all_in_no_sync_undivided(model, parts):
    with model.no_sync():
        for part in parts:
            backward(model, part, 1)


@mutant("03.7", "values", "only the last micro-batch counts: were the gradients set to zero in between?")
def zero_in_between(model, parts):
    with model.no_sync():
        for part in parts[:-1]:
            model.zero_grad()
            backward(model, part, 1)
    model.zero_grad()
    backward(model, parts[-1], 1)


@mutant("03.7", "calls", "every one of the 4 micro-batches is averaged")
def without_no_sync(model, parts):
    for part in parts:
        backward(model, part, by_rows(part, parts))


@mutant("03.7", "calls", "a backward averages if its *forward* ran outside no_sync")
def only_backward_in_no_sync(model, parts):
    for part in parts[:-1]:
        loss = F.cross_entropy(model(part[0]), part[1]) * by_rows(part, parts)
        with model.no_sync():
            loss.backward()
    backward(model, parts[-1], by_rows(parts[-1], parts))


@mutant("03.7", "edges", "the mean of the micro-batches' means: a row of the short one weighs more")
def mean_of_micro_means(model, parts):
    step_by(model, parts, lambda part, parts: 1 / len(parts))


@mutant("03.7", "values", "no_sync was never left")
def enters_and_stays(model, parts):
    for part in parts[:-1]:
        with model.no_sync():
            backward(model, part, by_rows(part, parts))
    backward(model, parts[-1], by_rows(parts[-1], parts))
    global quiet
    quiet = model.no_sync()
    quiet.__enter__()


@mutant("03.7", "edges", "an error: ")
def needs_two_parts(model, parts):
    with model.no_sync():
        backward(model, parts[0], by_rows(parts[0], parts))
        for part in parts[1:-1]:
            backward(model, part, by_rows(part, parts))
    backward(model, parts[1:][-1], by_rows(parts[-1], parts))


@mutant("03.7", "values", "exactly 1/2 of the reference")
def divides_by_ranks_too(model, parts):
    step_by(model, parts, lambda part, parts: by_rows(part, parts) / dist.get_world_size())


# 03.8 ------------------------------------------------------------------------------------------------------------


class Suspect(DataParallelTrainer):
    """The exercise's own: a sum in place of an average, and a mean of means."""

    found = ("gradients", 4.0)
    op = dist.ReduceOp.SUM

    def wrap(self, model):
        broadcast_state(model, self.group)
        return model

    def diagnosis(self):
        return self.found

    def compute_gradients(self, batch):
        inputs, targets = share(batch, self.rank, self.world_size)
        loss = F.cross_entropy(self.model(inputs), targets, ignore_index=-100)
        loss.backward()
        self.reduce()
        return comm.all_reduce(loss.detach(), op=dist.ReduceOp.AVG).item()

    def reduce(self):
        for p in trained(self.model):
            comm.all_reduce_(p.grad, op=self.op)


class RightBut(Suspect):
    """Right: a part that some mutants are made of."""

    def compute_gradients(self, batch):
        loss = summed_loss(self.model, share(batch, self.rank, self.world_size)) / count_targets(batch)
        loss.backward()
        self.reduce()
        return comm.all_reduce(loss.detach()).item()


@mutant("03.8", "diagnosis", "rung 'AdamW': an earlier one fails; climb again")
class LooksAtAdamW(RightBut):
    found = ("AdamW", 4.0)


@mutant("03.8", "diagnosis", "rung 'output': that one passes")
class LooksAtTheOutput(RightBut):
    found = ("output", 4.0)


@mutant("03.8", "diagnosis", "the rung is right, but the ratio on 4 ranks is not 0.25")
class TheRatioUpsideDown(RightBut):
    found = ("gradients", 0.25)


@mutant("03.8", "diagnosis", "'gradient' is no rung: they are output, gradients")
class MisspellsTheRung(RightBut):
    found = ("gradient", 4.0)


@mutant("03.8", "diagnosis", "returned 'gradients': give two things")
class OnlyTheRung(RightBut):
    found = "gradients"


@mutant("03.8", "gradients", "step 1: your gradient is exactly 4.0 x the reference: was the sum divided by world_size?")
class NotRepaired(Suspect):
    pass


@mutant("03.8", "gradients", "your gradient is exactly 2.0 x the reference")
class DividesByTwo(Suspect):
    def reduce(self):
        super().reduce()
        for p in trained(self.model):
            p.grad /= 2


@mutant("03.8", "gradients", "your gradient is exactly 1/4 of the reference: was it divided by world_size twice?")
class DividesTwice(RightBut):
    op = dist.ReduceOp.AVG


@mutant("03.8", "uneven", "these are the gradients of the mean of the ranks' means; the ranks have 4, 3 targets")
class OnlyTheFirstBug(Suspect):
    op = dist.ReduceOp.AVG


@mutant("03.8", "gradients", "every rank has the gradient of its own share: nothing was averaged")
class AveragesTheWeights(RightBut):
    def compute_gradients(self, batch):
        loss = super().compute_gradients(batch)
        with torch.no_grad():
            for p in trained(self.model):
                comm.all_reduce_(p, op=dist.ReduceOp.AVG)
        return loss

    def reduce(self):
        for p in trained(self.model):
            p.grad *= self.world_size


@mutant("03.8", "gradients", "right gradients, but the loss on rank 0 is")
class ReportsItsOwnLoss(RightBut):
    def compute_gradients(self, batch):
        super().compute_gradients(batch)
        with torch.no_grad():
            return F.cross_entropy(self.model(batch[0][:2]), batch[1][:2]).item()


@mutant("03.8", "uneven", "no multiple of the reference, and all ranks hold the same")
class DividesByRows(Suspect):
    op = dist.ReduceOp.AVG

    def compute_gradients(self, batch):
        rows = len(batch[0]) if len(batch[0]) % self.world_size else count_targets(batch)
        part = share(batch, self.rank, self.world_size)
        weight = len(part[0]) / rows * self.world_size
        loss = F.cross_entropy(self.model(part[0]), part[1], ignore_index=-100)
        (loss * weight).backward()
        self.reduce()
        summed = comm.all_reduce(summed_loss(self.model, part).detach())
        return summed.item() / count_targets(batch)


# 03.9 ------------------------------------------------------------------------------------------------------------


class Counting(DataParallelTrainer):
    """The exercise's own; `averages` says whether a micro-batch does."""

    found = ("parameters", 2)
    seen = 0

    def diagnosis(self):
        return self.found

    def averages(self, number, parts):
        return self.seen % self.config.accumulation == 0

    def weight(self, batch, parts, part):
        return self.world_size / count_targets(batch)

    def compute_gradients(self, batch):
        parts = micro_batches(share(batch, self.rank, self.world_size), self.config.accumulation)
        summed = torch.zeros((), dtype=torch.float64)
        for number, part in enumerate(parts, start=1):
            self.seen += 1
            with nullcontext() if self.averages(number, parts) else self.model.no_sync():
                loss = summed_loss(self.model, part)
                (loss * self.weight(batch, parts, part)).backward()
            summed += loss.detach()
        return comm.all_reduce(summed).item() / count_targets(batch)


class Counted(Counting):
    """Right: a part that some mutants are made of."""

    def averages(self, number, parts):
        return number == len(parts)


@mutant("03.9", "diagnosis", "rung 'gradients': that one passes")
class LooksAtTheFirstStep(Counted):
    found = ("gradients", 2)


@mutant("03.9", "diagnosis", "rung 'loss curve': an earlier one fails")
class LooksAtTheLosses(Counted):
    found = ("loss curve", 2)


@mutant("03.9", "diagnosis", "the rung is right, but the step is not 3: climb with rungs=RUNGS[:4], steps=1, then")
class OneStepLate(Counted):
    found = ("parameters", 3)


@mutant("03.9", "steps", "step 2: every rank has the gradient of its own share: nothing was averaged")
class NotCounted(Counting):
    pass


@mutant("03.9", "steps", "step 1: every rank has the gradient of its own share: nothing was averaged")
class NeverAverages(Counted):
    def averages(self, number, parts):
        return False


@mutant("03.9", "calls", "3 all-reduces of gradients in step 1, target 1: only the last micro-batch's backward")
class AlwaysAverages(Counted):
    def averages(self, number, parts):
        return True


@mutant(
    "03.9",
    "steps",
    "step 1: layer1.weight on rank 0 is no multiple of the reference, and the ranks hold different ones",
)
class AveragesTheFirst(Counted):
    def averages(self, number, parts):
        return number == 1


@mutant("03.9", "steps", "step 2: every rank has the gradient of its own share")
class StartsAgainWithEachStep(Counted):
    def averages(self, number, parts):
        return number == self.config.accumulation


@mutant("03.9", "steps", "step 1: your gradient is exactly 1/3 of the reference")
class DividesByParts(Counted):
    def weight(self, batch, parts, part):
        return super().weight(batch, parts, part) / len(parts)


@mutant("03.9", "steps", "step 1: your gradient is exactly 1/2 of the reference: was it divided by world_size twice?")
class ForgetsTheRanks(Counted):
    def weight(self, batch, parts, part):
        return 1 / count_targets(batch)


@mutant(
    "03.9",
    "edges",
    "3 ranks, the 6-4-2 MLP with GELU, batches of 8, 4, 7 rows, some without a target, 3 micro-batches: an error: ",
)
class CountsThePartsOfRank0(Counted):
    def compute_gradients(self, batch):
        self.parts = len(micro_batches(share(batch, 0, self.world_size), self.config.accumulation))
        return super().compute_gradients(batch)

    def averages(self, number, parts):
        return number == self.parts


# 03.10 -----------------------------------------------------------------------------------------------------------


def overlapped(model, loss, buckets, *, op=dist.ReduceOp.AVG, in_hook=False, wait=True, put_back=True, remove=True):
    """Right, unless a part is chosen otherwise."""
    missing, under_way = [set(bucket) for bucket in buckets], []

    def ready(p):
        number = next(i for i, bucket in enumerate(missing) if p in bucket)
        missing[number].remove(p)
        if not missing[number]:
            flat = torch.cat([q.grad.flatten() for q in buckets[number]])
            handle = comm.iall_reduce_(flat, op=op)
            if in_hook:
                handle.wait()
            under_way.append((buckets[number], flat, handle))

    hooks = [p.register_post_accumulate_grad_hook(ready) for bucket in buckets for p in bucket]
    loss.backward()
    for bucket, flat, handle in under_way:
        if wait:
            handle.wait()
        if put_back:
            put(flat, bucket)
    for hook in hooks if remove else []:
        hook.remove()


def put(flat, bucket):
    """Parts of a flat tensor as gradients."""
    for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
        p.grad = part.view_as(p)


@mutant("03.10", "overlap", "the first all-reduce started when backward was over; launch it in a hook")
def after_backward(model, loss, buckets):
    loss.backward()
    for bucket in buckets:
        flat = torch.cat([p.grad.flatten() for p in bucket])
        comm.all_reduce_(flat, op=dist.ReduceOp.AVG)
        put(flat, bucket)


@mutant("03.10", "overlap", "backward stood still during each all-reduce; launch in the hook, wait after backward")
def waits_in_the_hook(model, loss, buckets):
    overlapped(model, loss, buckets, in_hook=True)


@mutant("03.10", "values", "and never waited: each handle needs its wait()")
def never_waits(model, loss, buckets):
    overlapped(model, loss, buckets, wait=False)


@mutant("03.10", "values", "your gradient is exactly 2.0 x the reference: was the sum divided by world_size?")
def sums_in_the_background(model, loss, buckets):
    overlapped(model, loss, buckets, op=dist.ReduceOp.SUM)


@mutant("03.10", "values", "every rank still has the gradient of its own share: nothing was averaged")
def leaves_it_in_the_bucket(model, loss, buckets):
    overlapped(model, loss, buckets, put_back=False)


@mutant("03.10", "values", "a hook is left on the model")
def leaves_its_hooks(model, loss, buckets):
    overlapped(model, loss, buckets, remove=False)


@mutant("03.10", "values", "a hook is left on the model")
def leaves_hooks_that_count_below_zero(model, loss, buckets):
    left, under_way = [len(bucket) for bucket in buckets], []

    def ready(number, p):
        left[number] -= 1
        if left[number] == 0:
            flat = torch.cat([q.grad.flatten() for q in buckets[number]])
            under_way.append((buckets[number], flat, comm.iall_reduce_(flat, op=dist.ReduceOp.AVG)))

    for number, bucket in enumerate(buckets):
        for p in bucket:
            p.register_post_accumulate_grad_hook(partial(ready, number))
    loss.backward()
    for bucket, flat, handle in under_way:
        handle.wait()
        put(flat, bucket)


@mutant("03.10", "overlap", "one for each bucket, in their order")
def one_for_each_parameter(model, loss, buckets):
    overlapped(model, loss, [[p] for bucket in buckets for p in bucket])


@mutant("03.10", "overlap", "all-reduces of 148992 bytes, target 37248, 37248, 37248, 37248")
def everything_at_the_end(model, loss, buckets):
    overlapped(model, loss, [[p for bucket in buckets for p in bucket]])


@mutant("03.10", "values", "an error: ")
def launches_with_the_first_gradient(model, loss, buckets):
    under_way = []

    def ready(bucket, p):
        if p is bucket[0]:
            flat = torch.cat([q.grad.flatten() for q in bucket])
            under_way.append((bucket, flat, comm.iall_reduce_(flat, op=dist.ReduceOp.AVG)))

    for bucket in buckets:
        for p in bucket:
            p.register_post_accumulate_grad_hook(partial(ready, bucket))
    loss.backward()


@mutant("03.10", "values", "layer1.bias on rank 0 is still the gradient of its own share")
def forgets_the_last_bucket(model, loss, buckets):
    overlapped(model, loss, buckets[:-1])
    for p in buckets[-1]:
        if p.dim() > 1:
            comm.all_reduce_(p.grad, op=dist.ReduceOp.AVG)
