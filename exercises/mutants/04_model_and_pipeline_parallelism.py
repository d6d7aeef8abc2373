"""Plausible wrong answers to the exercises of module 04, each with the level that must reject it and why.

Not for learners: it comes close to the solutions.
"""

from __future__ import annotations

import os
from functools import cache, partial
from itertools import accumulate

import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import comm
from course_lib.checks.module_04.halves import train_half
from course_lib.checks.module_04.micro import gpipe
from course_lib.checks.module_04.tied import mended, tied_step
from course_lib.schedules import Backward, Forward, SendActivation, make_schedule
from course_lib.split import balanced_sizes, split_sizes

MUTANTS = []  # (exercise, level, reason, answer, hangs)


def mutant(exercise, level, reason, hangs=False):
    """Register a function as a wrong answer."""

    def register(function):
        MUTANTS.append((exercise, level, reason, function, hangs))
        return function

    return register


def wrong(exercise, level, answers, hangs=False):
    """Register answers that are made of parts, by their reasons."""
    MUTANTS.extend((exercise, level, reason, answer, hangs) for reason, answer in answers.items())


def update(half):
    """What the optimizer does."""
    with torch.no_grad():
        for p in half.parameters():
            p -= 0.1 * p.grad


# 04.1 ------------------------------------------------------------------------------------------------------------

NO_NUMBER = "right gradients, but rank 1 returned {}, not the loss as a number: loss.item()"

wrong(
    "04.1",
    "values",
    {
        "x.requires_grad_() comes before what is computed from x": partial(train_half, follow=lambda x: x),
        "exactly 8.0 x the reference: was the loss summed over the rows?": partial(train_half, reduction="sum"),
        NO_NUMBER.format("NoneType"): partial(train_half, returned=lambda loss: None),
        NO_NUMBER.format("a tensor with its history"): partial(train_half, returned=lambda loss: loss),
        NO_NUMBER.format("a tensor"): partial(train_half, returned=lambda loss: loss.detach()),
        NO_NUMBER.format("str"): partial(train_half, returned=lambda loss: f"{loss.item():.3f}"),
        "right gradients, but the loss on rank 1 is nan": partial(train_half, returned=lambda loss: float("nan")),
        "right gradients, but the loss on rank 1 is exactly 1.0005 x that of all rows": partial(
            train_half, returned=lambda loss: loss.item() * 1.0005
        ),
        "backward starts at a tensor without history: was it detached? Only what is sent needs none": partial(
            train_half, first=lambda half: lambda x: half(x).detach()
        ),
        "layer1.weight on rank 0 is exactly 1/32 of the reference: y.backward(gradient) is all that": partial(
            train_half, gradient=lambda found: found / found.numel()
        ),
        "layer1.weight on rank 0 is exactly 1/2 of the reference": partial(
            train_half, gradient=lambda found: found / 2
        ),
        "layer1.weight on rank 0 is off by ": partial(train_half, gradient=lambda found: found * 1.00003),
        "layer1.weight on rank 0 holds nan, not a number: was a torch.empty(...) used before": partial(
            train_half, gradient=torch.empty_like
        ),
        "exactly 0 x the reference: set to zero afterwards, or computed from an inbox before": partial(
            train_half, gradient=torch.zeros_like
        ),
    },
)
wrong(
    "04.1",
    "edges",
    {
        "both sides of a message name the same length and dtype": lambda half, inputs, targets, shape: train_half(
            half, inputs, targets, (len(targets), 4)
        )
    },
)


@mutant("04.1", "values", "did it send as often as it is received from, and wait() for each isend?", hangs=True)
def gradient_not_sent(half, inputs, targets, shape):
    if dist.get_rank() == 0:
        y = half(inputs)
        comm.send(y.detach(), 1)
        y.backward(comm.recv(torch.empty(shape), 1))
        return None
    loss = F.cross_entropy(half(comm.recv(torch.empty(shape), 0)), targets)
    loss.backward()
    return loss.item()


@mutant("04.1", "values", "to the rank that expects it, and wait() for each isend?", hangs=True)
def both_receive_first(half, inputs, targets, shape):
    incoming = comm.recv(torch.empty(shape), 1 - dist.get_rank())
    if dist.get_rank() == 0:
        comm.send(half(inputs).detach(), 1)
        return None
    return half(incoming).sum().item()


@mutant("04.1", "values", "layer1.weight has no gradient on rank 0")
def rank_0_without_backward(half, inputs, targets, shape):
    if dist.get_rank() == 0:
        comm.send(half(inputs).detach(), 1)
        comm.recv(torch.empty(shape), 1)
        return None
    return train_half(half, inputs, targets, shape)


@mutant("04.1", "values", "both sides of a message name the same length and dtype")
def sends_the_gradient_of_the_output(half, inputs, targets, shape):
    if dist.get_rank() == 0:
        return train_half(half, inputs, targets, shape)
    x = comm.recv(torch.empty(shape), 0).requires_grad_()
    y = half(x)
    y.retain_grad()
    loss = F.cross_entropy(y, targets)
    loss.backward()
    comm.send(y.grad, 0)
    return loss.item()


@mutant("04.1", "values", "right gradients, but the weights have changed")
def updates_too(half, *given):
    loss = train_half(half, *given)
    update(half)
    return loss


@mutant("04.1", "values", "right values, but nothing is in the ledger")
def native(half, inputs, targets, shape):
    if dist.get_rank() == 0:
        y, gradient = half(inputs), torch.empty(shape)
        dist.send(y.detach(), 1)
        dist.recv(gradient, 1)
        y.backward(gradient)
        return None
    x = torch.empty(shape)
    dist.recv(x, 0)
    loss = F.cross_entropy(half(x.requires_grad_()), targets)
    loss.backward()
    dist.send(x.grad, 0)
    return loss.item()


@mutant("04.1", "bytes", "rank 0 sends rank 1 8 messages of 128 bytes in all, target 1 message of 128 bytes in all")
def row_by_row(half, inputs, targets, shape):
    if dist.get_rank() == 0:
        y = half(inputs)
        for row in y.detach():
            comm.send(row, 1)
        y.backward(torch.stack([comm.recv(torch.empty(shape[1]), 1) for _ in inputs]))
        return None
    x = torch.stack([comm.recv(torch.empty(shape[1]), 0) for _ in targets]).requires_grad_()
    loss = F.cross_entropy(half(x), targets)
    loss.backward()
    for row in x.grad:
        comm.send(row, 0)
    return loss.item()


# 04.3 ------------------------------------------------------------------------------------------------------------


def greedy(costs, p, full):
    """Fill stages from the front; the last one takes what is left."""
    sizes, held = [0], 0
    for place, cost in enumerate(costs):
        left, missing = len(costs) - place, p - len(sizes)
        if len(sizes) < p and sizes[-1] and (full(held, cost) or left == missing):
            sizes.append(0)
            held = 0
        sizes[-1] += 1
        held += cost
    return sizes


@mutant("04.3", "small", "stage 0 costs 10, where 8 is possible: that is a uniform cut, as if all layers were alike")
def uniform(costs, p):
    return list(split_sizes(len(costs), p))


@mutant(
    "04.3",
    "small",
    "6 layers in 3 stages (1, 2, 3, 4, 5, 9): stage 2 costs 14, where 9 is possible: the last stage costs most",
)
def never_above_the_mean(costs, p):
    return greedy(costs, p, lambda held, cost: held + cost > sum(costs) / p)


@mutant("04.3", "small", "6 layers in 3 stages (1, 2, 3, 4, 5, 9): stage")
def until_the_mean_is_reached(costs, p):
    return greedy(costs, p, lambda held, cost: held >= sum(costs) / p)


@mutant("04.3", "small", "these are places of the cuts")
def returns_places(costs, p):
    return list(accumulate(balanced_sizes(tuple(costs), p)))


@mutant("04.3", "small", "these are the stages' costs")
def returns_costs(costs, p):
    ends = [0, *accumulate(balanced_sizes(tuple(costs), p))]
    return [sum(costs[a:b]) for a, b in zip(ends, ends[1:], strict=False)]


@mutant("04.3", "small", "right, but by course_lib.split.balanced_sizes: this exercise asks you to write it")
def by_the_library(costs, p):
    return balanced_sizes(costs, p)


def recursion(costs, p, worth, remembers=True):
    """Right with worth = the largest of all costs."""

    def best(first, stages):
        if stages == 1:
            return [len(costs) - first]
        choices = [[end - first, *again(end, stages - 1)] for end in range(first + 1, len(costs) - stages + 2)]
        return min(choices, key=lambda sizes: worth(costs_of(first, sizes)))

    def costs_of(first, sizes):
        ends = [first, *accumulate(sizes, initial=first)][1:]
        return [sum(costs[a:b]) for a, b in zip(ends, ends[1:], strict=False)]

    again = cache(best) if remembers else best
    return again(0, p)


@mutant("04.3", "small", "5 layers in 3 stages (5, 8, 4, 3, 8): stage 0 costs 13, where 12 is possible")
def cheapest_as_dear_as_can_be(costs, p):
    return recursion(costs, p, lambda each: -min(each))


@mutant(
    "04.3",
    "small",
    "5 layers in 3 stages (5, 8, 4, 3, 8): stage 0 costs 13, where 12 is possible: your stages cost 13, 7, 8",
)
def least_squares(costs, p):
    return recursion(costs, p, lambda each: sum(cost**2 for cost in each))


@mutant("04.3", "models", "an endless loop?", hangs=True)
def tries_every_cut(costs, p):
    return recursion(costs, p, max, remembers=False)


@mutant("04.3", "edges", "5 layers in 5 stages (1, 1, 9, 1, 1): returned 3 numbers, [2, 1, 2]: 5 stages need 5")
def as_few_stages_as_possible(costs, p):
    limit = max(sum(costs[a:b]) for a, b in stages_of(balanced(costs, p)))
    sizes, held = [0], 0
    for cost in costs:
        if held + cost > limit:
            sizes.append(0)
            held = 0
        sizes[-1] += 1
        held += cost
    return sizes


def balanced(costs, p):
    return recursion(costs, p, max)


def stages_of(sizes):
    ends = [0, *accumulate(sizes)]
    return zip(ends, ends[1:], strict=False)


@mutant("04.3", "small", "has no layer: its rank would only pass on")
def an_empty_stage(costs, p):
    return [*balanced(costs, p - 1), 0] if p > 1 else [len(costs)]


@mutant("04.3", "small", "[1, 3] are 4 layers, the model has 5")
def loses_a_layer(costs, p):
    *sizes, last = balanced(costs, p)
    return [*sizes, last - 1]


@mutant("04.3", "small", "give whole numbers, how many layers each stage gets")
def returns_the_layers(costs, p):
    return [costs[a:b] for a, b in stages_of(balanced(costs, p))]


@mutant(
    "04.3", "small", "right sizes, but your function changed the list `costs`, which is the caller's: work on a copy"
)
def empties_the_list(costs, p):
    sizes = balanced(list(costs), p)
    costs.clear()
    return sizes


@mutant("04.3", "small", "right sizes, but your function changed the list `costs`")
def sorts_the_list(costs, p):
    sizes = balanced(list(costs), p)
    costs.sort()
    return sizes


@mutant(
    "04.3", "small", "(8, 1, 1, 1, 5): your function changed the list `costs`, which is the caller's: work on a copy"
)
def sorts_the_list_first(costs, p):
    costs.sort()
    return balanced(costs, p)


@mutant("04.3", "small", "returned NoneType, not a list")
def returns_nothing(costs, p):
    balanced(costs, p)


# 04.4 ------------------------------------------------------------------------------------------------------------


@mutant(
    "04.4",
    "lists",
    "deadlock: rank 0 waits with Backward(0, 0) for Backward(1, 0), which rank 1 does only after Forward(1, 1)",
)
def gpipe_on_the_last_rank_alone(rank, p, m):
    return (
        [kind(rank, k) for k in range(m) for kind in (Forward, Backward)] if rank < p - 1 else right_gpipe(rank, p, m)
    )


def right_gpipe(rank, p, m):
    return [Forward(rank, k) for k in range(m)] + [Backward(rank, k) for k in range(m)]


@mutant("04.4", "lists", "one micro-batch at a time is naive model parallelism, nothing overlaps")
def naive(rank, p, m):
    return [kind(rank, k) for k in range(m) for kind in (Forward, Backward)]


@mutant("04.4", "lists", "GPipe holds 3: is that 1F1B?")
def one_f_one_b(rank, p, m):
    return right_1f1b(rank, p, m)


@mutant("04.4", "lists", "rank 1's list holds Forward(0, 0): stage 0 lies on another rank; stage = rank here")
def always_stage_0(rank, p, m):
    return [Forward(0, k) for k in range(m)] + [Backward(0, k) for k in range(m)]


@mutant("04.4", "lists", "rank 0's list holds Forward(1, 0): stage 1 lies on another rank")
def arguments_turned_round(rank, p, m):
    return [Forward(k, rank) for k in range(m)] + [Backward(k, rank) for k in range(m)]


@mutant("04.4", "lists", "rank 0's list holds Forward(0, 3): of 3 micro-batches the last is number 2")
def counts_from_one(rank, p, m):
    return [Forward(rank, k + 1) for k in range(m)] + [Backward(rank, k + 1) for k in range(m)]


@mutant("04.4", "lists", "rank 0 does Backward(0, 0) before Forward(0, 0)")
def backwards_first(rank, p, m):
    return [Backward(rank, k) for k in range(m)] + [Forward(rank, k) for k in range(m)]


@mutant("04.4", "lists", "no Backward(0, 2)")
def forgets_the_last(rank, p, m):
    return right_gpipe(rank, p, m)[:-1]


@mutant("04.4", "lists", "Forward(0, 0) stands 2 times")
def twice(rank, p, m):
    return [Forward(rank, 0), *right_gpipe(rank, p, m)]


@mutant("04.4", "lists", "(forward 1 s and backward 2 s long): rank 1 does Backward(1, 7) before Backward(1, 6)")
def only_odd_ranks_reversed(rank, p, m):
    backwards = range(m)[::-1] if rank % 2 and p > 2 else range(m)
    return [Forward(rank, k) for k in range(m)] + [Backward(rank, k) for k in backwards]


@mutant("04.4", "lists", "rank 1's list holds Forward(0, 0): stage 0 lies on another rank")
def asks_for_its_own_rank(rank, p, m):
    return right_gpipe(dist.get_rank(), p, m)


@mutant("04.4", "lists", "holds SendActivation(0, 0): it is made of Forward(stage, microbatch) and Backward")
def with_messages(rank, p, m):
    return [one for k in range(m) for one in (Forward(rank, k), SendActivation(rank, k))]


@mutant("04.4", "lists", "right, but by course_lib.schedules.make_schedule: this exercise asks you to write it")
def by_make_schedule(rank, p, m):
    return list(make_schedule("gpipe", p, m).computes(rank))


@mutant("04.4", "lists", "rank 1's list holds None: idle time is not written down; waiting comes by itself")
def with_the_figure_s_gaps(rank, p, m):
    return [None] * rank + right_gpipe(rank, p, m)


@mutant("04.4", "lists", "for rank 0 it returned NoneType, not a list")
def no_list(rank, p, m):
    right_gpipe(rank, p, m)


# 04.5 ------------------------------------------------------------------------------------------------------------


def right_1f1b(rank, p, m, ahead=lambda rank, p, m: min(p - rank - 1, m)):
    """Right, unless `ahead` is another number."""
    first = ahead(rank, p, m)
    order = [Forward(rank, k) for k in range(first)]
    for k in range(m):
        order += [Forward(rank, k + first)] * (k + first < m) + [Backward(rank, k)]
    return order


@mutant("04.5", "lists", "3 ranks, 5 micro-batches: rank 0 holds 5 activations at once, 1F1B holds 3: is that GPipe?")
def m_in_place_of_p(rank, p, m):
    return right_1f1b(rank, p, m, lambda rank, p, m: m)


@mutant("04.5", "lists", "rank 0 begins with 2 forwards before its first backward, 1F1B with 3")
def one_forward_too_few(rank, p, m):
    return right_1f1b(rank, p, m, lambda rank, p, m: max(0, min(p - rank - 2, m)))


@mutant("04.5", "lists", "1F1B holds 3: rank 0 begins with 5 forwards before its first backward, 1F1B with 3")
def two_forwards_too_many(rank, p, m):
    return right_1f1b(rank, p, m, lambda rank, p, m: min(p - rank + 1, m) if m > 3 else p - rank - 1)


@mutant(
    "04.5", "lists", "4 ranks, 8 micro-batches: rank 0 holds 5 activations at once, 1F1B holds 4: rank 0 begins with 5"
)
def one_forward_too_many(rank, p, m):
    return right_1f1b(rank, p, m, lambda rank, p, m: min(p - rank - (p < 4), m))


@mutant("04.5", "lists", "rank 1 begins with 3 forwards before its first backward, 1F1B with 2")
def the_same_on_all_ranks(rank, p, m):
    return right_1f1b(rank, p, m, lambda rank, p, m: min(p - 1, m))


@mutant(
    "04.5", "lists", "rank 0 holds 4 activations at once, 1F1B holds 3: it begins well, but later does two forwards"
)
def two_forwards_later(rank, p, m):
    order = right_1f1b(rank, p, m)
    if rank == 0 and m > p:
        order.insert(p + 2, order.pop(p + 3))
    return order


@mutant(
    "04.5", "lists", "rank 1 waits with Forward(1, 1) for Forward(0, 1), which rank 0 does only after Backward(0, 0)"
)
def upside_down(rank, p, m):
    return right_1f1b(rank, p, m, lambda rank, p, m: min(rank, m))


@mutant("04.5", "lists", "one micro-batch at a time is naive model parallelism")
def no_warm_up(rank, p, m):
    return right_1f1b(rank, p, m, lambda rank, p, m: 0)


@mutant("04.5", "lists", "no Backward(0, 3)")
def no_cool_down(rank, p, m):
    ahead = p - rank - 1
    order = [Forward(rank, k) for k in range(ahead)]
    for k in range(m - ahead):
        order += [Forward(rank, k + ahead), Backward(rank, k)]
    return order


@mutant(
    "04.5",
    "edges",
    "4 ranks, 2 micro-batches: rank 0's list holds Forward(0, 2): of 2 micro-batches the last is number 1",
)
def more_ranks_than_micro_batches(rank, p, m):
    ahead = p - rank - 1
    order = [Forward(rank, k) for k in range(ahead)]
    for k in range(m):
        order += [Forward(rank, k + ahead)] * (k + ahead < m) + [Backward(rank, k)]
    return order


@mutant("04.5", "lists", "(forward 1 s and backward 2 s long): rank 0 does Backward(0, 4) before Backward(0, 1)")
def latest_backward_first(rank, p, m):
    ahead = min(p - rank - 1, m)
    order, waiting = [Forward(rank, k) for k in range(ahead)], list(range(ahead))
    for k in range(m):
        if k + ahead < m:
            order.append(Forward(rank, k + ahead))
            waiting.append(k + ahead)
        order.append(Backward(rank, waiting.pop()))
    return order


@mutant("04.5", "lists", "no Backward(0, 0)")
def backward_of_the_same_number(rank, p, m):
    order = [Forward(rank, k) for k in range(min(p - rank - 1, m))]
    for k in range(len(order), m):
        order += [Forward(rank, k), Backward(rank, k)]
    return order


@mutant("04.5", "lists", "Forward(0, 0) stands 2 times")
def starts_again(rank, p, m):
    warm_up = [Forward(rank, k) for k in range(min(p - rank - 1, m))]
    return warm_up + [kind(rank, k) for k in range(m) for kind in (Forward, Backward)]


@mutant("04.5", "lists", "an endless loop?", hangs=True)
def never_done(rank, p, m):
    order = []
    while len(order) < 2 * m:
        order = order[: m - 1]
    return order


@mutant("04.5", "lists", "by course_lib.schedules.make_schedule: this exercise asks you to write it")
def as_made_by_the_library(rank, p, m):
    return list(make_schedule("1f1b", p, m).computes(rank))


@mutant("04.5", "lists", "rank 0's list holds None: idle time is not written down; waiting comes by itself")
def waits_before_backward(rank, p, m):
    order = right_1f1b(rank, p, m)
    place = [type(one) for one in order].index(Backward)
    return [*order[:place], *[None] * (p - rank - 1), *order[place:]]


@mutant("04.5", "training", "rank 1's list holds")
def by_another_rank_s_number(rank, p, m):
    return right_1f1b(rank if dist.get_world_size() == 1 else dist.get_rank(), p, m)


# 04.6 ------------------------------------------------------------------------------------------------------------


def right_numbers(schedule, p, m, v, rank, F, B, W):
    whole = F + B + W
    bubble = (p - 1) * {"interleaved": whole / v, "zb-h1": whole - 2 * W}.get(schedule, whole)
    interleaved = min(2 * (p - rank - 1) + (v - 1) * p + 1, v * m)
    held = {"gpipe": m, "interleaved": interleaved}.get(schedule, min(p - rank, m))
    return bubble, bubble / (m * whole + bubble), held


@mutant("04.6", "bubble", "W = 4): your bubble is 1.42 x")
def another_bubble(schedule, p, m, v, rank, F, B, W):
    bubble, share, held = right_numbers(schedule, p, m, v, rank, F, B, W)
    return (p - 1) * (2 * F - W + 1) if schedule == "zb-h1" else bubble, share, held


@mutant("04.6", "bubble", "returned float, not three things: return bubble_s, idle_share, in_flight")
def bubble_alone(*given):
    return right_numbers(*given)[0]


# 04.8 ------------------------------------------------------------------------------------------------------------


class Right:
    """Right: what the mutants are made of."""

    def forward(self, x, weight, bias):
        self.x, self.weight = x, weight
        return F.linear(x, weight, bias)

    def backward_input(self, gradient):
        self.gradient = gradient
        return gradient @ self.weight

    def products(self):
        x, gradient = self.x.flatten(0, -2), self.gradient.flatten(0, -2)
        return gradient.T @ x, gradient.sum(0)

    def let_go(self):
        self.x = self.gradient = None

    def backward_weight(self):
        found = self.products()
        self.let_go()
        return found


@mutant("04.8", "values", "the output lacks the bias")
class ForgetsTheBias(Right):
    def forward(self, x, weight, bias):
        return super().forward(x, weight, None)


@mutant("04.8", "values", "the bias's gradient is no multiple of the reference")
class BiasOfOneRow(Right):
    def products(self):
        return super().products()[0], self.gradient[0]


@mutant("04.8", "values", "the bias's gradient is exactly 1/4 of the reference: a mean over rows, where a sum belongs")
class MeanOfRows(Right):
    def products(self):
        return super().products()[0], self.gradient.mean(0)


@mutant("04.8", "values", "the weight's gradient has shape (6, 5), expected (5, 6): is it turned round?")
class TurnedRound(Right):
    def products(self):
        weight, bias = super().products()
        return weight.T, bias


@mutant("04.8", "values", "an error: ")
class WeightTurnedRound(Right):
    def backward_input(self, gradient):
        self.gradient = gradient
        return gradient @ self.weight.T


@mutant(
    "04.8", "values", "backward_weight returned a tensor of shape (5, 6): return two tensors, for the weight and for"
)
class WeightAlone(Right):
    def products(self):
        return super().products()[0]


@mutant("04.8", "values", "the weight's gradient is exactly 1/4 of the reference: a mean over rows")
class WeightOfMeans(Right):
    def products(self):
        weight, bias = super().products()
        return weight / len(self.x), bias


@mutant("04.8", "edges", "a 6-5 layer, input (2, 3, 6): ")
class TwoDimsOnly(Right):
    def products(self):
        return self.gradient.transpose(0, -1).reshape(5, -1) @ self.x.reshape(-1, 6) if self.x.dim() == 3 else (
            super().products()[0]
        ), self.gradient.flatten(0, -2).sum(0)


@mutant("04.8", "edges", "the bias's gradient has shape (3, 5), expected (5,)")
class FirstDimOnly(Right):
    def products(self):
        return super().products()[0], self.gradient.sum(0)


@mutant("04.8", "values", "backward_weight returned None: return two tensors, for the weight and for the bias")
class WeightNotReturned(Right):
    def backward_weight(self):
        super().backward_weight()


@mutant("04.8", "values", "backward_weight returned (bias, weight)? The weight's gradient comes first")
class BiasFirst(Right):
    def products(self):
        return super().products()[::-1]


@mutant("04.8", "values", "the weight's gradient is torch.float32, expected torch.float64 as x")
class InSinglePrecision(Right):
    def products(self):
        weight, bias = super().products()
        return weight.float(), bias


@mutant("04.8", "values", "backward_input returned None, not one tensor: is there a return on every path?")
class InputNotReturned(Right):
    def backward_input(self, gradient):
        super().backward_input(gradient)


@mutant("04.8", "values", "forward overwrites x, which belongs to the layer before: work on a copy")
class OverwritesX(Right):
    def forward(self, x, weight, bias):
        y = super().forward(x.clone(), weight, bias)
        x.zero_()
        return y


@mutant("04.8", "values", "backward_weight overwrites the gradient of y, which belongs to the layer after")
class OverwritesTheGradient(Right):
    def let_go(self):
        self.gradient.zero_()


class Shared(Right):
    """One place for all objects; `place` says which pair leaves it first."""

    queue, place = [], 0

    def backward_input(self, gradient):
        self.queue.append((self.x, gradient))
        return gradient @ self.weight

    def products(self):
        x, gradient = (one.flatten(0, -2) for one in self.queue.pop(self.place))
        return gradient.T @ x, gradient.sum(0)


@mutant("04.8", "edges", "micro-batch 0: the weight's gradient is micro-batch 2's: does each object keep its own")
class OneQueueForAll(Shared):
    queue = []


@mutant("04.8", "edges", "micro-batch 0: the weight's gradient is micro-batch 2's: does each object keep its own")
class OneStackForAll(Shared):
    queue, place = [], -1


@mutant("04.8", "edges", "micro-batch 0's gradient of y and micro-batch 2's x: does each object keep its own tensors")
class OneQueueOfInputs(Right):
    queue = []

    def forward(self, x, weight, bias):
        self.queue.append(x)
        return super().forward(x, weight, bias)

    def backward_input(self, gradient):
        self.x = self.queue.pop(0)
        return super().backward_input(gradient)


@mutant(
    "04.8", "edges", "the weight's gradient is made of micro-batch 0's gradient of y and micro-batch 2's x: does each"
)
class OneShelfForAll(Right):
    shelf = {}

    def forward(self, x, weight, bias):
        self.shelf.update(x=x, weight=weight)
        return F.linear(x, weight, bias)

    def backward_input(self, gradient):
        self.shelf["gradient"] = gradient
        return gradient @ self.shelf["weight"]

    def products(self):
        x, gradient = self.shelf["x"].flatten(0, -2), self.shelf["gradient"].flatten(0, -2)
        return gradient.T @ x, gradient.sum(0)


@mutant(
    "04.8",
    "costs",
    "backward_input does 960 operations, 2.0 x the target of 480: is the weight's gradient computed here",
)
class AllAtOnce(Right):
    def backward_input(self, gradient):
        found = super().backward_input(gradient)
        self.ready = self.products()
        return found

    def backward_weight(self):
        return self.ready


@mutant("04.8", "costs", "backward_weight does 960 operations, 2.0 x the target of 480")
class ComputesTwice(Right):
    def products(self):
        super().products()
        return super().products()


@mutant("04.8", "costs", "does 560 operations, 1.17 x the target of 480: the bias needs no product")
class BiasByAProduct(Right):
    def products(self):
        gradient = self.gradient.flatten(0, -2)
        return super().products()[0], torch.ones(len(gradient), dtype=gradient.dtype) @ gradient


@mutant("04.8", "costs", "does 560 operations, 1.17 x the target of 480: the bias needs no product")
class BiasByAColumnOfOnes(Right):
    def products(self):
        x, gradient = self.x.flatten(0, -2), self.gradient.flatten(0, -2)
        both = gradient.T @ torch.cat([x, x.new_ones(len(x), 1)], 1)
        return both[:, :-1], both[:, -1]


@mutant(
    "04.8", "costs", "backward_weight does 0 operations in torch's products of matrices, target 480: is the product"
)
class ByNumpy(Right):
    def products(self):
        x, gradient = (one.flatten(0, -2).numpy() for one in (self.x, self.gradient))
        return torch.from_numpy(gradient.T @ x), torch.from_numpy(gradient.sum(0))


@mutant(
    "04.8",
    "costs",
    "between the parts 1024 bytes are kept, target 704: x and the gradient; is the output kept too?",
)
class KeepsTheOutput(Right):
    def forward(self, x, weight, bias):
        self.y = super().forward(x, weight, bias).detach()
        return self.y


@mutant("04.8", "costs", "after backward_weight 704 bytes are still kept, in self or elsewhere: let go of what is done")
class NeverLetsGo(Right):
    def let_go(self):
        pass


@mutant("04.8", "costs", "after backward_weight 704 bytes are still kept, in self or elsewhere: let go of what is done")
class KeepsAClosure(Right):
    def backward_input(self, gradient):
        found, x, self.x = super().backward_input(gradient), self.x, None
        self.later = lambda: (gradient.flatten(0, -2).T @ x.flatten(0, -2), gradient.flatten(0, -2).sum(0))
        return found

    def products(self):
        return self.later()


@mutant("04.8", "costs", "after backward_weight 384 bytes are still kept, in self or elsewhere: let go of what is done")
class KeepsInTheClass(Right):
    kept = []

    def forward(self, x, weight, bias):
        self.kept.append(x)
        return super().forward(x, weight, bias)


@mutant(
    "04.8", "costs", "between the parts 1088 bytes are kept, target 704: x and the gradient; is a copy of x kept too?"
)
class KeepsACopyInTheClass(Right):
    kept = []

    def forward(self, x, weight, bias):
        self.kept.append(x.clone())
        return super().forward(x, weight, bias)


@mutant(
    "04.8",
    "costs",
    "backward_weight does 0 operations in torch's products of matrices, target 480: is the product done",
)
class WithoutAProduct(Right):
    def backward_input(self, gradient):
        found, (x, rows) = super().backward_input(gradient), (self.x.flatten(0, -2), gradient.flatten(0, -2))
        self.ready = (rows[:, :, None] * x[:, None, :]).sum(0), rows.sum(0)
        return found

    def products(self):
        return self.ready


@mutant(
    "04.8", "costs", "between the parts 280 bytes are kept, target 704: x and the gradient; what does backward_weight"
)
class ProductForShow(WithoutAProduct):
    def backward_input(self, gradient):
        found, self.rows = super().backward_input(gradient), gradient.shape[:-1].numel()
        self.let_go()
        return found

    def products(self):
        torch.ones(self.weight.shape[0], self.rows) @ torch.ones(self.rows, self.weight.shape[1])
        return self.ready


@mutant("04.8", "costs", "backward_weight goes backward by autograd: write it with products of matrices")
class WeightByAutograd(Right):
    def products(self):
        weight, bias = (one.detach().requires_grad_() for one in (self.weight, self.bias))
        return torch.autograd.grad(F.linear(self.x, weight, bias), (weight, bias), self.gradient)

    def forward(self, x, weight, bias):
        self.bias = bias
        return super().forward(x, weight, bias)


@mutant("04.8", "costs", "backward_input goes backward by autograd: write it with products of matrices")
class ByAutogradOfOneGraph(Right):
    def forward(self, x, weight, bias):
        self.leaves = [one.detach().requires_grad_() for one in (x, weight, bias)]
        self.y = F.linear(*self.leaves)
        return self.y.detach()

    def backward_input(self, gradient):
        self.gradient = gradient
        return torch.autograd.grad(self.y, self.leaves[0], gradient, retain_graph=True)[0]

    def products(self):
        return torch.autograd.grad(self.y, self.leaves[1:], self.gradient)


@mutant("04.8", "costs", "backward_input goes backward by autograd: write it with products of matrices")
class ByAutogradInOne(Right):
    def backward_input(self, gradient):
        x = self.x.detach().requires_grad_()
        y = F.linear(x, self.weight)
        found = torch.autograd.grad(y, (x, self.weight), gradient)
        self.gradient, self.found = gradient, found[1]
        return found[0]


# 04.9 ------------------------------------------------------------------------------------------------------------

NO_WEIGHT = {"weight": lambda mine, rows: 1, "loss_of": lambda values, rows: weighed(values, rows) / sum(rows)}


def weighed(values, rows):
    """The sum of what stands for all rows."""
    return sum(value * n for value, n in zip(values, rows, strict=True))


wrong(
    "04.9",
    "gradients",
    {
        "your gradient is exactly 4.0 x the reference: was the loss divided? What makes it the mean over all rows?": (
            partial(gpipe, **NO_WEIGHT)
        ),
        "layer1.weight on rank 0 is exactly 1/4 of the reference: was the loss divided twice": partial(
            gpipe, back=lambda gradient, m: gradient / m
        ),
        "layer2.weight on rank 1 is exactly 4.0 x the reference: was the loss divided? What makes it": partial(
            gpipe, back=lambda gradient, m: gradient / m, **NO_WEIGHT
        ),
        "your gradient is exactly 1/4 of the reference": partial(
            gpipe, weight=lambda mine, rows: mine / sum(rows) / len(rows)
        ),
        "your gradient is exactly 8.0 x the reference: was the loss summed over the rows, and never": partial(
            gpipe, weight=lambda mine, rows: mine, loss_of=lambda values, rows: sum(values) / sum(rows)
        ),
        "your gradient is exactly 2.0 x the reference: was the loss summed over a micro-batch's rows": partial(
            gpipe, weight=lambda mine, rows: mine / len(rows)
        ),
        "exactly 1/2 of the reference: was a mean over a micro-batch's rows divided by all rows?": partial(
            gpipe, weight=lambda mine, rows: 1 / sum(rows)
        ),
        "your gradient is 1.143 x the reference": partial(gpipe, weight=lambda mine, rows: mine / (sum(rows) - 1)),
        "2 micro-batches of 3, 3 rows: your gradient is exactly 1/2 of the reference: divided by 4? Here": partial(
            gpipe, weight=lambda mine, rows: 1 / 4, loss_of=lambda values, rows: sum(values) * 4 / len(rows)
        ),
        "2 micro-batches of 3, 3 rows: your gradient is exactly 0.75 x the reference: divided by 8?": partial(
            gpipe, weight=lambda mine, rows: mine / 8, loss_of=lambda values, rows: sum(values) * 8 / sum(rows)
        ),
        "right gradients, but the loss on rank 1 is exactly 1/4 of that of all rows": partial(
            gpipe, loss_of=lambda values, rows: sum(values) / len(values)
        ),
        NO_NUMBER.format("a tensor with its history"): partial(
            gpipe, loss_of=lambda values, rows: torch.tensor(sum(values), requires_grad=True)
        ),
    },
)


@mutant("04.9", "uneven", "these are the gradients of the mean of the micro-batches' means: a row of number 2, the")
def divides_the_gradients_at_the_end(half, parts, width):
    loss = gpipe(half, parts, width, **NO_WEIGHT)
    for p in half.parameters():
        p.grad /= len(parts)
    return loss


@mutant("04.9", "gradients", "did it send as often as it is received from, and wait() for each isend?", hangs=True)
def gradients_not_sent(half, parts, width):
    if dist.get_rank() == 0:
        return gpipe(half, parts, width)
    for inputs, _ in parts:
        comm.recv(torch.empty(len(inputs), width), 0)


@mutant("04.9", "messages", "values right, but one micro-batch after the other: rank 0 sends number 1 only when the")
def one_after_the_other(*given):
    return some_at_a_time(*given, 1)


@mutant("04.9", "messages", "values right, but the pipeline runs empty: rank 0 sends number 2 only when the gradients")
def two_at_a_time(*given):
    return some_at_a_time(*given, 2)


def some_at_a_time(half, parts, width, many):
    total = sum(len(targets) for _, targets in parts)
    groups = [parts[first : first + many] for first in range(0, len(parts), many)]
    losses = [gpipe(half, group, width, weight=lambda mine, _: mine / total) for group in groups]
    return sum(losses) if dist.get_rank() == 1 else None


@mutant("04.9", "messages", "the ledger has no message from rank 1 to rank 0: use comm.send and comm.recv, not torch")
def gradients_past_the_ledger(half, parts, width):
    rank, total, kept = dist.get_rank(), sum(len(targets) for _, targets in parts), []
    for inputs, targets in parts:
        if rank == 0:
            kept.append(half(inputs))
            comm.send(kept[-1].detach(), 1)
        else:
            x = comm.recv(torch.empty(len(inputs), width), 0).requires_grad_()
            kept.append((x, F.cross_entropy(half(x), targets, reduction="sum") / total))
    if rank == 0:
        for y in kept:
            gradient = torch.empty_like(y)
            dist.recv(gradient, 1)
            y.backward(gradient)
        return None
    for x, loss in kept:
        loss.backward()
        dist.send(x.grad, 0)
    return sum(loss.item() for _, loss in kept)


@mutant("04.9", "gradients", "right gradients, but the weights have changed")
def steps_too(half, parts, width):
    loss = gpipe(half, parts, width)
    update(half)
    return loss


@mutant("04.9", "messages", "rank 0 sends rank 1 1 message of 128 bytes in all, target 4 messages of 128 bytes in all")
def in_one_piece(half, parts, width):
    inputs, targets = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return gpipe(half, [(inputs, targets)], width)


@mutant("04.9", "gradients", "x.requires_grad_() comes before what is computed from x")
def no_requires_grad_any_more(half, parts, width):
    if dist.get_rank() == 0:
        return gpipe(half, parts, width)
    for _, targets in parts:
        x = comm.recv(torch.empty(len(targets), width), 0)
        (F.cross_entropy(half(x), targets) / len(parts)).backward()
        comm.send(x.grad, 0)


@mutant("04.9", "gradients", "a crash: rank 1 died")
def exits(half, parts, width):
    if dist.get_rank() == 1:
        os._exit(0)
    return gpipe(half, parts, width)


# 04.10 -----------------------------------------------------------------------------------------------------------


def add(own, theirs, first):
    """Right."""
    return own + theirs


def adds_and_writes(stage, tied, *given):
    def change(own, theirs, first):
        with torch.no_grad():
            tied.add_(1e-3)
        return own + theirs

    return mended(change, stage, tied, *given)


wrong(
    "04.10",
    "gradients",
    {
        "embedding.weight on rank 0 is exactly 1/2 of the reference: an average of the two copies' gradients": partial(
            mended, lambda own, theirs, first: (own + theirs) / 2
        ),
        "embedding.weight on rank 0 is exactly 2.0 x the reference: is it added twice?": partial(
            mended, lambda own, theirs, first: 2 * (own + theirs)
        ),
        "the other's came in, but tied.grad is what it was; what is sent, and where is it added?": partial(
            mended, lambda own, theirs, first: own
        ),
        "right gradients, but the weights have changed": adds_and_writes,
        "right gradients, but rank 1 returned a tensor, not the loss as a number": lambda *given: torch.tensor(
            mended(add, *given) or 0.0
        ),
    },
)


@mutant("04.10", "gradients", "embedding.weight on rank 0 holds nan, not a number: was a torch.empty(...) used before")
def adds_before_it_waits(*given):
    loss, tied, last = tied_step(*given), given[1], dist.get_world_size() - 1
    if tied is not None:
        theirs, other = torch.empty_like(tied), last - dist.get_rank()
        receiving, own = comm.irecv(theirs, other), tied.grad.clone()
        tied.grad += theirs
        dist.barrier()  # nothing can have come in before; without it, that is a matter of luck
        handles = [receiving, comm.isend(own, other)]
        for handle in handles:
            handle.wait()
    return loss


@mutant(
    "04.10", "gradients", "what comm.all_reduce returns is the sum, its input stays as it is; where does the sum go?"
)
def sum_not_used(*given):
    loss, tied = tied_step(*given), given[1]
    comm.all_reduce(torch.zeros(20, 8) if tied is None else tied.grad)
    return loss


@mutant("04.10", "gradients", "the *weights* were written, which are equal anyway; add the gradients")
def averages_the_weights(*given):
    loss, tied, last = tied_step(*given), given[1], dist.get_world_size() - 1
    if tied is not None:
        theirs, other = torch.empty_like(tied), last - dist.get_rank()
        handles = [comm.irecv(theirs, other), comm.isend(tied.detach(), other)]
        for handle in handles:
            handle.wait()
        tied.data = (tied.data + theirs) / 2
    return loss


@mutant("04.10", "bytes", "the ledger has no message for the tied weight: use comm.isend and comm.irecv, not torch")
def past_the_ledger(*given):
    loss, tied = tied_step(*given), given[1]
    dist.all_reduce(torch.zeros(20, 8) if tied is None else tied.grad)
    return loss


@mutant("04.10", "gradients", "the *weights* were written, which are equal anyway; add the gradients")
def copies_the_weight(*given):
    loss, tied, last = tied_step(*given), given[1], dist.get_world_size() - 1
    if tied is not None and dist.get_rank() == 0:
        comm.send(tied.detach(), last)
    elif tied is not None:
        with torch.no_grad():
            tied.copy_(comm.recv(torch.empty_like(tied), 0))
    return loss


@mutant("04.10", "gradients", "all that wait are sending, nobody receives", hangs=True)
def both_send_first(*given):
    loss, tied, last = tied_step(*given), given[1], dist.get_world_size() - 1
    if tied is not None:
        comm.send(tied.grad, last - dist.get_rank())
        tied.grad += comm.recv(torch.empty_like(tied), last - dist.get_rank())
    return loss


@mutant("04.10", "gradients", "a collective waits until every rank of its group has called it", hangs=True)
def not_all_call_the_all_reduce(*given):
    loss, tied = tied_step(*given), given[1]
    if tied is not None:
        tied.grad = comm.all_reduce(tied.grad)
    return loss


@mutant("04.10", "bytes", "640 bytes. All ranks take part in your all_reduce, also those without a copy")
def zeros_from_those_between(*given):
    loss, tied = tied_step(*given), given[1]
    total = comm.all_reduce(torch.zeros(20, 8) if tied is None else tied.grad)
    if tied is not None:
        tied.grad = total
    return loss


@mutant("04.10", "edges", "1 rank, 2 x 5 tokens: embedding.weight on rank 0 is exactly 2.0 x")
def doubled_on_one_rank(stage, tied, *given):
    loss = mended(add, stage, tied, *given)
    if dist.get_world_size() == 1:
        tied.grad *= 2
    return loss


@mutant("04.10", "edges", "1 rank, 2 x 5 tokens: an error: ")
def sends_to_itself(*given):
    loss, tied, last = tied_step(*given), given[1], dist.get_world_size() - 1
    if tied is not None:
        theirs, other = torch.empty_like(tied), last - dist.get_rank()
        handles = [comm.irecv(theirs, other), comm.isend(tied.grad, other)]
        for handle in handles:
            handle.wait()
        tied.grad += theirs
    return loss
