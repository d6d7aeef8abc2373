"""Plausible wrong answers to the exercises of module 03, each with the level that must reject it and why.

Not for learners: it comes close to the solutions.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from functools import partial
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DistributedSampler

from course_lib import comm
from course_lib.checks.module_03.accumulate import accumulated
from course_lib.checks.module_03.average import average_in_buckets
from course_lib.checks.module_03.replicate import fill
from course_lib.checks.module_03.sampling import dealt, shuffled
from course_lib.checks.module_03.uneven import train_on_share
from course_lib.parallel.mesh import make_mesh
from course_lib.parallel.replicate import broadcast_state
from course_lib.training.step import count_targets, micro_batches, summed_loss
from course_lib.training.techniques import replicate
from course_lib.training.trainer import Trainer, share

MUTANTS = []  # (exercise, level, reason, answer, hangs)
WRONG = {}  # (exercise, level): the answers that are made of parts, by their reasons


def mutant(exercise, level, reason, hangs=False):
    """Register a function as a wrong answer."""

    def register(function):
        MUTANTS.append((exercise, level, reason, function, hangs))
        return function

    return register


def trained(model):
    """The parameters that are not frozen."""
    return [p for p in model.parameters() if p.requires_grad]


def gradient_of(p):
    """What this rank adds to the average."""
    return torch.zeros_like(p) if p.grad is None else p.grad


def mean_of(p):
    """Right."""
    return comm.all_reduce(gradient_of(p)) / dist.get_world_size()


def each(gradient, model):
    """Right, if `gradient` of each trained parameter is its mean."""
    for p in trained(model):
        p.grad = gradient(p)


def natively(program, *given):
    """With torch.distributed's own collectives, which do not reach the ledger."""

    def all_reduce_(x, op=dist.ReduceOp.SUM):
        dist.all_reduce(x)
        return x.div_(dist.get_world_size()) if op == dist.ReduceOp.AVG else x

    def broadcast(x, src):
        dist.broadcast(copy := x.clone(), src)
        return copy

    with patch.multiple(
        comm, all_reduce_=all_reduce_, all_reduce=lambda x: all_reduce_(x.clone()), broadcast=broadcast
    ):
        return program(*given)


def update(model):
    """What the optimizer does."""
    with torch.no_grad():
        for p in trained(model):
            p -= 0.1 * p.grad


# 03.1 ------------------------------------------------------------------------------------------------------------

WRONG["03.1", "values"] = {
    "exactly 4.0 x the reference: was the sum divided by world_size?": partial(each, lambda p: comm.all_reduce(p.grad)),
    "exactly 1/4 of the reference: was it divided by world_size": partial(
        each, lambda p: mean_of(p) / dist.get_world_size()
    ),
    "2 ranks, the 6-4-2 MLP: your gradient is exactly 1/2 of the reference: is a 4": partial(
        each, lambda p: comm.all_reduce(p.grad) / 4
    ),
    "your gradient is exactly 2.0 x the reference": partial(each, lambda p: comm.all_reduce(p.grad) / 2),
    "every rank still has the gradient of its own share: nothing was averaged": partial(each, lambda p: p.grad),
    "layer1.bias on rank 0 is still the gradient of its own share": partial(
        each, lambda p: mean_of(p) if p.dim() == 2 else p.grad
    ),
    "layer1.weight has no gradient on rank 0": partial(each, lambda p: None),
    "right values, but nothing is in the ledger": partial(natively, each, mean_of),
    "right gradients, but the weights have changed": lambda model: (each(mean_of, model), update(model)),
    "a crash: rank 1 died": lambda model: os._exit(0) if dist.get_rank() == 1 else each(mean_of, model),
}


@mutant("03.1", "values", "every rank still has the gradient of its own share: nothing was averaged")
def averages_the_weights(model):
    for p in trained(model):
        p.data = comm.all_reduce(p.data, op=dist.ReduceOp.AVG)


@mutant("03.1", "edges", "the MLP with a frozen layer1: layer1.weight is frozen, but has a gradient on rank 0")
def frozen_too(model):
    for p in model.parameters():
        p.grad = mean_of(p)


@mutant("03.1", "edges", "layer2.bias is reached on rank 0 only: an error: ")
def skips_what_is_none(model):
    for p in model.parameters():
        if p.grad is not None:
            p.grad = mean_of(p)
    comm.barrier()


@mutant("03.1", "edges", "a model with a tied weight: first.weight on rank 0 is exactly 1/3 of the reference")
def tied_twice(model):
    """A second time, what is an average already is divided again."""
    seen = set()
    for _, p in model.named_parameters(remove_duplicate=False):
        if p.requires_grad:
            p.grad = p.grad / dist.get_world_size() if p in seen else mean_of(p)
            seen.add(p)


@mutant("03.1", "values", "a hang: ", hangs=True)
def waits_for_nobody(model):
    if dist.get_rank() == 0:
        comm.recv(torch.zeros(1), 1)
    each(mean_of, model)


# 03.2 ------------------------------------------------------------------------------------------------------------


def from_rank_0(tensor):
    """Right."""
    return comm.broadcast(tensor, src=0)


def all_tensors(model):
    """Right."""
    return [*model.parameters(), *model.buffers()]


WRONG["03.2", "parameters"] = {
    "the parameter layer1.weight on rank 1 is still its own, not": lambda model: [
        *map(from_rank_0, model.parameters())
    ],
    "use comm.broadcast": partial(natively, lambda model: fill(all_tensors(model), from_rank_0)),
    "an error: ": lambda model: [p.copy_(from_rank_0(p.detach())) for p in model.parameters()],
}
WRONG["03.2", "edges"] = {
    "the frozen parameter layer1.weight on rank 1 is still its own": lambda model: fill(trained(model), from_rank_0),
    "the buffer 1.running_mean on rank 1 is still its own": lambda model: fill(model.parameters(), from_rank_0),
    "the buffer 1.num_batches_tracked on rank 1 is still its own": lambda model: fill(
        [tensor for tensor in all_tensors(model) if tensor.is_floating_point()], from_rank_0
    ),
    "requires_grad of layer1.weight has changed": lambda model: (
        fill(all_tensors(model), from_rank_0) or model.requires_grad_(True)
    ),
}
WRONG["03.2", "bytes"] = {
    "each tensor must reach each other rank once": lambda model: fill(
        all_tensors(model), lambda x: comm.all_reduce(x if dist.get_rank() == 0 else torch.zeros_like(x))
    )
}


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
    fill(model.parameters(), from_rank_0)
    for module in model.modules():
        for name, tensor in module.named_buffers(recurse=False):
            setattr(module, name, comm.broadcast(tensor, src=0))


# 03.3 ------------------------------------------------------------------------------------------------------------

WRONG["03.3", "even"] = {
    "exactly 1/2 of the reference: was it divided by": partial(
        train_on_share, weight=lambda targets, counted: 1 / counted
    ),
    "exactly 2.0 x the reference: was the sum": partial(
        train_on_share, weight=lambda targets, counted: dist.get_world_size() ** 2 / counted
    ),
    "but the loss on rank 0 is": partial(train_on_share, told=lambda mine, total, counted: mine / counted),
    "exactly 2.0 x that of all rows; sum over": partial(
        train_on_share, told=lambda mine, total, counted: total / counted * dist.get_world_size()
    ),
    "returned NoneType, not the loss as a number": partial(train_on_share, told=lambda *losses: None),
    "right values, but nothing is in the ledger": partial(natively, train_on_share),
    "every rank still has the gradient of its own share": lambda model, inputs, targets: F.cross_entropy(
        model(inputs), targets
    ).backward(),
}
WRONG["03.3", "edges"] = {
    "the loss on rank 0 is nan: a share without a target has no mean": partial(
        train_on_share,
        told=lambda mine, total, counted: comm.all_reduce(torch.tensor(mine) / torch.tensor(mine) * mine) / counted,
    )
}


@mutant(
    "03.3", "even", "one forward on rank 0 takes 12 rows, where 6 are enough: each rank computes the loss of its own"
)
def everyone_computes_the_whole_batch(model, inputs, targets):
    rows, labels = comm.all_gather(inputs), comm.all_gather(targets)
    loss = F.cross_entropy(model(rows), labels, ignore_index=-100)
    loss.backward()
    return loss.item()


@mutant("03.3", "edges", "layer1.weight on rank 0 holds nan, not a number: a share without a target has no mean")
def divides_by_its_own_number(model, inputs, targets):
    counts = (targets != -100).double()
    right = F.log_softmax(model(inputs), -1)[torch.arange(len(targets)), targets.clamp(min=0)]
    summed, mine = -(right * counts).sum(), counts.sum()
    counted = comm.all_reduce(mine)
    (summed / mine * mine / counted * dist.get_world_size()).backward()
    each(mean_of, model)
    return comm.all_reduce(summed.detach()) / counted


@mutant("03.3", "edges", "a hang: not finished after 2 s: ranks 0, 2 wait in all_reduce #1", hangs=True)
def returns_early_without_targets(model, inputs, targets):
    return train_on_share(model, inputs, targets) if (targets != -100).any() else 0.0


# 03.5 ------------------------------------------------------------------------------------------------------------


def seeds_everything(n, rank, world_size, seed, epoch):
    torch.manual_seed(seed + epoch)
    return dealt(torch.randperm(n).tolist(), rank, world_size)


def by_the_library(n, rank, world_size, seed, epoch):
    sampler = DistributedSampler(range(n), world_size, rank, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)


WRONG["03.5", "shares"] = {
    "PyTorch's own random numbers were seeded": seeds_everything,
    "right, but by torch.utils.DistributedSampler: this exercise asks you to write it": by_the_library,
    "sample 12 does not exist: they are 0 to 11": lambda n, rank, p, seed, epoch: dealt(
        [1 + number for number in shuffled(n, seed + epoch)], rank, p
    ),
    "returned NoneType, not a list of whole numbers": lambda *given: None,
}
WRONG["03.5", "epochs"] = {
    "epoch 1: each sample is served, but not in PyTorch's order: rank 0": lambda n, rank, p, seed, epoch: dealt(
        shuffled(n, seed * (epoch + 1)), rank, p
    )
}
WRONG["03.5", "uneven"] = {
    "waits for an all-reduce that rank 1 never calls": lambda n, rank, p, seed, epoch: shuffled(n, seed + epoch)[
        rank::p
    ],
    "is served by nobody: what does not divide is padded": lambda n, rank, p, seed, epoch: shuffled(n, seed + epoch)[
        : n // p * p
    ][rank::p],
    "9 samples on 4 ranks, epoch 0: each sample is served, but not in PyTorch's": lambda n, rank, p, seed, epoch: (
        (order := shuffled(n, seed + epoch)) + (order if n == 13 else order[-1:] * p)[: -n % p]
    )[rank::p],
    "1 sample on 4 ranks, epoch 0: rank 0 has 1 sample, rank 2 has 0": lambda n, rank, p, seed, epoch: (
        (order := shuffled(n, seed + epoch)) + order[: -n % p]
    )[rank::p],
}


def put(flat, bucket):
    """Parts of a flat tensor as gradients."""
    for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
        p.grad = part.view_as(p)


# 03.6 ------------------------------------------------------------------------------------------------------------

WRONG["03.6", "values"] = {
    "exactly 4.0 x the reference: was the sum divided by world_size?": partial(average_in_buckets, among=lambda p: 1),
    "layer1.weight on rank 0 is still the gradient of its own share": partial(average_in_buckets, but_last=1),
    "every rank still has the gradient of its own share": lambda model, bucket_bytes: None,
}


@mutant("03.6", "values", "an endless loop?", hangs=True)
def never_full(model, bucket_bytes):
    bucket, left = [], trained(model)
    while sum(p.nbytes for p in bucket) < bucket_bytes:
        bucket.append(left[-1])
        bucket.clear()


@mutant("03.6", "values", "has shape (24,), expected (4, 6)")
def flat_gradients(model, bucket_bytes):
    average_in_buckets(model, bucket_bytes)
    for p in trained(model):
        p.grad = None
        p.data = p.data.flatten()
        p.grad = torch.zeros_like(p)


@mutant("03.6", "values", "layer2.weight on rank 0 is no multiple of the reference, and all ranks hold the same")
def cut_in_another_order(model, bucket_bytes):
    average_in_buckets(model, 1 << 20)
    first, second, *others = trained(model)[::-1]
    flat = torch.cat([p.grad.flatten() for p in (first, second)])
    put(flat, [second, first])


WRONG["03.6", "edges"] = {
    "2.bias is reached on rank 0 only: an error: ": partial(
        average_in_buckets, order=lambda parameters: [p for p in parameters[::-1] if p.grad is not None]
    )
}


# 03.7 ------------------------------------------------------------------------------------------------------------


def backward(model, part, parts):
    """One micro-batch, weighed by its rows."""
    weight = len(part[1]) / sum(len(targets) for _, targets in parts)
    (F.cross_entropy(model(part[0]), part[1]) * weight).backward()


WRONG["03.7", "values"] = {
    "exactly 3.0 x the reference: was each loss divided by the number": partial(
        accumulated, weight=lambda mine, rows: 1
    ),
    "1/3 of the reference: does only one micro-batch count": partial(
        accumulated, weight=lambda mine, rows: 1 / len(rows) ** 2
    ),
    "exactly 1/2 of the reference": partial(
        accumulated, weight=lambda mine, rows: mine / sum(rows) / dist.get_world_size()
    ),
}
WRONG["03.7", "calls"] = {"every one of the 4 micro-batches is averaged": partial(accumulated, quiet=lambda many: 0)}


@mutant(
    "03.7", "values", "one forward on rank 0 takes 12 rows, where 4 are enough: the batch does not fit, that is why"
)
def in_one_piece(model, parts):
    inputs, targets = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    F.cross_entropy(model(inputs), targets).backward()


@mutant("03.7", "values", "on rank 0 3 forwards wait for backward: the batch does not fit, that is why it comes in")
def all_graphs_at_once(model, parts):
    rows = sum(len(targets) for _, targets in parts)
    sum(F.cross_entropy(model(x), y, reduction="sum") / rows for x, y in parts).backward()


@mutant("03.7", "values", "was no_sync left before the last micro-batch's forward?")
def leaves_no_sync_after_the_last_forward(model, parts):
    with model.no_sync():
        for part in parts[:-1]:
            backward(model, part, parts)
        loss = F.cross_entropy(model(parts[-1][0]), parts[-1][1]) / len(parts)
    loss.backward()


@mutant("03.7", "calls", "a backward averages if its *forward* ran outside no_sync")
def only_backward_in_no_sync(model, parts):
    for inputs, targets in parts[:-1]:
        loss = F.cross_entropy(model(inputs), targets) / len(parts)
        with model.no_sync():
            loss.backward()
    backward(model, parts[-1], parts)


@mutant("03.7", "values", "no_sync was never left")
def enters_and_stays(model, parts):
    accumulated(model, parts)
    global quiet
    quiet = model.no_sync()
    quiet.__enter__()


@mutant("03.7", "edges", "an error: ")
def needs_two_parts(model, parts):
    with model.no_sync():
        backward(model, parts[0], parts)
        for part in parts[1:-1]:
            backward(model, part, parts)
    backward(model, parts[1:][-1], parts)


# 03.8 ------------------------------------------------------------------------------------------------------------


class Suspect(Trainer):
    """The exercise's own: a sum in place of an average, and a mean of means."""

    found = ("gradients", 4.0)
    op = dist.ReduceOp.SUM

    def __init__(self, model, config):
        broadcast_state(model)
        super().__init__(model, config)

    def diagnosis(self):
        return self.found

    def compute_gradients(self, batch):
        inputs, targets = share(batch, dist.get_rank(), dist.get_world_size())
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
        loss = summed_loss(self.model, share(batch, dist.get_rank(), dist.get_world_size())) / count_targets(batch)
        loss.backward()
        self.reduce()
        return comm.all_reduce(loss.detach()).item()


def but(base, **parts):
    """A class, but for these of its parts."""
    return type("Answer", (base,), parts)


def halves(self):
    Suspect.reduce(self)
    each(lambda p: p.grad / 2, self.model)


def weights_averaged(self, batch):
    loss = RightBut.compute_gradients(self, batch)
    with torch.no_grad():
        for p in trained(self.model):
            comm.all_reduce_(p, op=dist.ReduceOp.AVG)
    return loss


def told_of_two_rows(self, batch):
    RightBut.compute_gradients(self, batch)
    with torch.no_grad():
        return F.cross_entropy(self.model(batch[0][:2]), batch[1][:2]).item()


def everything_everywhere(self, batch):
    loss = summed_loss(self.model, batch) / count_targets(batch)
    loss.backward()
    return loss.item()


def divided_by_rows(self, batch):
    rows = len(batch[0]) if len(batch[0]) % dist.get_world_size() else count_targets(batch)
    part = share(batch, dist.get_rank(), dist.get_world_size())
    loss = F.cross_entropy(self.model(part[0]), part[1], ignore_index=-100)
    (loss * len(part[0]) / rows * dist.get_world_size()).backward()
    self.reduce()
    return comm.all_reduce(summed_loss(self.model, part).detach()).item() / count_targets(batch)


WRONG["03.8", "diagnosis"] = {
    "rung 'AdamW': an earlier one fails; climb again": but(RightBut, found=("AdamW", 4.0)),
    "rung 'output': that one passes": but(RightBut, found=("output", 4.0)),
    "the rung is right, but the ratio on 4 ranks is not 0.25": but(RightBut, found=("gradients", 0.25)),
    "'gradient' is no rung: they are output, gradients": but(RightBut, found=("gradient", 4.0)),
    "returned 'gradients': give two things": but(RightBut, found="gradients"),
}
WRONG["03.8", "gradients"] = {
    "step 1: your gradient is exactly 4.0 x the reference: was the sum divided by world_size?": Suspect,
    "your gradient is exactly 2.0 x the reference": but(Suspect, reduce=halves),
    "exactly 1/4 of the reference: was it divided by world_size": but(RightBut, op=dist.ReduceOp.AVG),
    "every rank still has the gradient of its own share: nothing was averaged": but(
        RightBut,
        compute_gradients=weights_averaged,
        reduce=lambda self: each(lambda p: p.grad * dist.get_world_size(), self.model),
    ),
    "one forward on rank 0 takes 8 rows, where 2 are enough: each rank computes its own": but(
        Suspect, compute_gradients=everything_everywhere
    ),
    "but the loss on rank 0 is": but(RightBut, compute_gradients=told_of_two_rows),
}
WRONG["03.8", "uneven"] = {
    "no multiple of the reference, and all ranks hold the same": but(
        Suspect, op=dist.ReduceOp.AVG, compute_gradients=divided_by_rows
    )
}


# 03.9 ------------------------------------------------------------------------------------------------------------


class Counting(Trainer):
    """The exercise's own; `averages` says whether a micro-batch does."""

    found = ("parameters", 2)
    seen = 0

    def __init__(self, model, config):
        super().__init__(model, config, mesh=make_mesh(dp=dist.get_world_size()), apply=(replicate(),))

    def diagnosis(self):
        return self.found

    def averages(self, number, parts):
        return self.seen % self.config.accumulation == 0

    def weight(self, batch, parts, part):
        return dist.get_world_size() / count_targets(batch)

    def compute_gradients(self, batch):
        parts = micro_batches(share(batch, dist.get_rank(), dist.get_world_size()), self.config.accumulation)
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


def averaging(when):
    """Right, if `when` is true of the last micro-batch alone."""
    return but(Counted, averages=lambda self, number, parts: when(self, number, parts))


def weighing(weight):
    """Right, if `weight` is the number of ranks."""
    return but(Counted, weight=lambda self, batch, parts, part: weight(parts) / count_targets(batch))


def parts_of_rank_0(self, batch):
    self.parts = len(micro_batches(share(batch, 0, dist.get_world_size()), self.config.accumulation))
    return Counted.compute_gradients(self, batch)


def in_one_forward(self, batch):
    mine = share(batch, dist.get_rank(), dist.get_world_size())
    loss = summed_loss(self.model, mine)
    (loss * dist.get_world_size() / count_targets(batch)).backward()
    return comm.all_reduce(loss.detach()).item() / count_targets(batch)


NOT_AVERAGED = "every rank still has the gradient of its own share: nothing was averaged"

WRONG["03.9", "diagnosis"] = {
    "rung 'gradients': that one passes": but(Counted, found=("gradients", 2)),
    "rung 'loss curve': an earlier one fails": but(Counted, found=("loss curve", 2)),
    "the step is not 3: climb with rungs=RUNGS[:4], steps=1, then": but(Counted, found=("parameters", 3)),
}
WRONG["03.9", "steps"] = {
    f"3 micro-batches: step 2: {NOT_AVERAGED}": Counting,
    f"step 1: {NOT_AVERAGED}": averaging(lambda self, number, parts: False),
    f"step 2: {NOT_AVERAGED}": averaging(lambda self, number, parts: number == self.config.accumulation),
    "step 1: layer1.weight on rank 0 is no multiple of the reference, and the ranks hold": averaging(
        lambda self, number, parts: number == 1
    ),
    "step 1: your gradient is exactly 1/3 of": weighing(lambda parts: dist.get_world_size() / len(parts)),
    "step 1: your gradient is exactly 1/2 of the reference: was it divided by": weighing(lambda parts: 1),
    "one forward on rank 0 takes 4 rows, where 2 are enough": but(Counted, compute_gradients=in_one_forward),
}
WRONG["03.9", "calls"] = {
    "3 all-reduces of gradients in step 1, target 1: only the last micro-batch": averaging(lambda *given: True)
}
WRONG["03.9", "edges"] = {
    "3 ranks, the 6-4-2 MLP with GELU, batches of 8, 4, 7 rows, some without a target, 3 micro-batches: an error": but(
        Counted, compute_gradients=parts_of_rank_0, averages=lambda self, number, parts: number == self.parts
    )
}


# 03.10 -----------------------------------------------------------------------------------------------------------


def overlapped(
    model,
    loss,
    buckets,
    *,
    op=dist.ReduceOp.AVG,
    full=lambda missing: not missing,
    in_hook=False,
    wait=True,
    put_back=True,
    remove=True,
):
    """Right, unless a part is chosen otherwise."""
    missing, under_way = [set(bucket) for bucket in buckets], []

    def ready(p):
        number = next(i for i, bucket in enumerate(missing) if p in bucket)
        missing[number].remove(p)
        if full(missing[number]):
            flat = torch.cat([q.grad.flatten() for q in buckets[number]])
            handle = comm.all_reduce_(flat, op=op, async_op=True)
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


WRONG["03.10", "values"] = {
    "and never waited: each handle needs its wait()": partial(overlapped, wait=False),
    "exactly 2.0 x the reference: was the sum divided by world_size?": partial(overlapped, op=dist.ReduceOp.SUM),
    "every rank still has the gradient of its own share: nothing was averaged": partial(overlapped, put_back=False),
    "a hook is left on the model": partial(overlapped, remove=False),
    "an error: ": partial(overlapped, full=lambda missing: len(missing) == 1),
}
WRONG["03.10", "overlap"] = {
    "backward stood still during each all-reduce; launch in the hook": partial(overlapped, in_hook=True),
    "one for each bucket, in their order": lambda model, loss, buckets: overlapped(
        model, loss, [[p] for bucket in buckets for p in bucket]
    ),
    "all-reduces of 148992 bytes, target 37248": lambda model, loss, buckets: overlapped(
        model, loss, [[p for bucket in buckets for p in bucket]]
    ),
}


@mutant("03.10", "overlap", "the first all-reduce started when backward was over; launch it in a hook")
def after_backward(model, loss, buckets):
    loss.backward()
    for bucket in buckets:
        flat = torch.cat([p.grad.flatten() for p in bucket])
        comm.all_reduce_(flat, op=dist.ReduceOp.AVG)
        put(flat, bucket)


@mutant("03.10", "values", "layer1.bias on rank 0 is still the gradient of its own share")
def forgets_the_last_bucket(model, loss, buckets):
    overlapped(model, loss, buckets[:-1])
    for p in buckets[-1]:
        if p.dim() > 1:
            comm.all_reduce_(p.grad, op=dist.ReduceOp.AVG)


for (key, level), answers in WRONG.items():
    MUTANTS.extend((key, level, reason, answer, False) for reason, answer in answers.items())
