"""Plausible wrong answers to the exercises of module 04, each with the level that must reject it and why.

Not for learners: it comes close to the solutions.
"""

from __future__ import annotations

import os
from functools import cache, partial
from itertools import accumulate
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import comm
from course_lib.checks.module_04.halves import train_half
from course_lib.checks.module_04.micro import gpipe
from course_lib.checks.module_04.tied import mended, tied_step
from course_lib.schedules import Backward, Forward, SendActivation, make_schedule
from course_lib.split import balanced_sizes

MUTANTS = []  # (exercise, level, reason, answer, hangs)
WRONG, HANG = {}, {}  # (exercise, level): the answers that are made of parts, by their reasons


def mutant(exercise, level, reason, hangs=False):
    """Register a function as a wrong answer."""

    def register(function):
        MUTANTS.append((exercise, level, reason, function, hangs))
        return function

    return register


def afterwards(change, program, *given):
    """A program, and then a change."""
    told = program(*given)
    change(*given)
    return told


def update(half, *given):
    """What the optimizer does."""
    with torch.no_grad():
        for p in half.parameters():
            p -= 0.1 * p.grad


def natively(program, *given, sender=None):
    """A program whose messages, or those of one rank, do not pass `comm`."""

    def send(tensor, other, send=comm.send):
        (dist.send if sender in (None, dist.get_rank()) else send)(tensor, other)

    def recv(into, source, recv=comm.recv):
        (dist.recv if sender in (None, source) else recv)(into, source)
        return into

    with patch.multiple(comm, send=send, recv=recv):
        return program(*given)


def exits(program, *given):
    """Rank 1 is gone before it begins."""
    return os._exit(0) if dist.get_rank() == 1 else program(*given)


# 04.1 ------------------------------------------------------------------------------------------------------------


def names_a_dtype(half, inputs, targets, shape):
    if dist.get_rank() == 0:
        return train_half(half, inputs, targets, shape)
    return comm.recv(torch.empty(shape, dtype=torch.float32), 0)


NO_NUMBER = "right gradients, but rank 1 returned {}, not the loss as a number: "

WRONG["04.1", "values"] = {
    "x.requires_grad_() comes before what is computed from x": partial(train_half, follow=lambda x: x),
    "8.0 x the reference: was the loss summed over the rows?": partial(train_half, reduction="sum"),
    NO_NUMBER.format("NoneType"): partial(train_half, returned=lambda loss: None),
    NO_NUMBER.format("a tensor with its history"): partial(train_half, returned=lambda loss: loss),
    NO_NUMBER.format("a tensor"): partial(train_half, returned=lambda loss: loss.detach()),
    NO_NUMBER.format("str"): partial(train_half, returned=lambda loss: f"{loss.item():.3f}"),
    "right gradients, but the loss on rank 1 is nan": partial(train_half, returned=lambda loss: float("nan")),
    "the loss on rank 1 is exactly 1.0005 x that of all rows": partial(
        train_half, returned=lambda loss: loss.item() * 1.0005
    ),
    "without history: was it detached? Only what": partial(train_half, first=lambda half: lambda x: half(x).detach()),
    "1/32 of the reference: y.backward(gradient) is all": partial(
        train_half, gradient=lambda found: found / found.numel()
    ),
    "layer1.weight on rank 0 is exactly 1/2 of the reference": partial(train_half, gradient=lambda found: found / 2),
    "layer1.weight on rank 0 is off by ": partial(train_half, gradient=lambda found: found * 1.00003),
    "layer1.weight on rank 0 holds nan, not a number: was a torch.empty": partial(
        train_half, gradient=torch.empty_like
    ),
    "0 x the reference: set to zero afterwards, or computed from an inbox": partial(
        train_half, gradient=torch.zeros_like
    ),
    "layer1.weight has no gradient on rank 0": partial(
        train_half, first=lambda half: lambda x: half(x).detach().requires_grad_()
    ),
    "both sides of a message name the same length and dtype": partial(train_half, back=lambda x: x.grad[:4]),
    "right gradients, but the weights have changed": partial(afterwards, update, train_half),
    "right values, but nothing is in the ledger": partial(natively, train_half),
}
WRONG["04.1", "values"] |= {"this check computes in float64: name no dtype, or take": names_a_dtype}
WRONG["04.1", "edges"] = {
    "both sides of a message name the same length": lambda half, x, y, shape: train_half(half, x, y, (len(y), 4))
}


@mutant("04.1", "values", "did it send as often as it is received from, and wait() for each isend?", hangs=True)
def gradient_not_sent(half, inputs, targets, shape):
    return train_half(half, inputs, targets, shape) if dist.get_rank() == 0 else comm.recv(torch.empty(shape), 0).sum()


@mutant("04.1", "values", "to the rank that expects it, and wait() for each isend?", hangs=True)
def both_receive_first(half, inputs, targets, shape):
    return comm.recv(torch.empty(shape), 1 - dist.get_rank())


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


def recursion(costs, p, worth=max, remembers=True):
    """Right with worth = the largest of all costs."""

    def best(first, stages):
        if stages == 1:
            return [len(costs) - first]
        choices = [[end - first, *again(end, stages - 1)] for end in range(first + 1, len(costs) - stages + 2)]
        return min(choices, key=lambda sizes: worth(list(map(sum, stages_of(costs[first:], sizes)))))

    again = cache(best) if remembers else best
    return again(0, p)


def stages_of(costs, sizes):
    """The costs of each stage's layers."""
    ends = list(accumulate(sizes))
    return [costs[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def then(change, costs, p):
    """Right sizes, and the caller's list as it should not be."""
    sizes = recursion(list(costs), p)
    change(costs)
    return sizes


def fewest_stages(costs, p):
    limit = max(map(sum, stages_of(costs, recursion(costs, p))))
    sizes, held = [0], 0
    for cost in costs:
        if held + cost > limit:
            sizes.append(0)
            held = 0
        sizes[-1] += 1
        held += cost
    return sizes


WRONG["04.3", "small"] = {
    "stage 2 costs 14, where 9 is possible: the last stage costs most": (
        lambda costs, p: greedy(costs, p, lambda held, cost: held + cost > sum(costs) / p)
    ),
    "(1, 2, 3, 4, 5, 9): stage": (lambda costs, p: greedy(costs, p, lambda held, cost: held >= sum(costs) / p)),
    "these are places of the cuts": lambda costs, p: list(accumulate(recursion(costs, p))),
    "these are the stages' costs": lambda costs, p: list(map(sum, stages_of(costs, recursion(costs, p)))),
    "give whole numbers, how many layers": lambda costs, p: stages_of(costs, recursion(costs, p)),
    "right, but by course_lib.split.balanced_sizes: this exercise asks you": balanced_sizes,
    "(5, 8, 4, 3, 8): stage 0 costs 13, where 12 is": partial(recursion, worth=lambda each: -min(each)),
    "where 12 is possible: your stages cost 13, 7, 8": partial(
        recursion, worth=lambda each: sum(cost**2 for cost in each)
    ),
    "has no layer: its rank would only pass on": lambda costs, p: [*recursion(costs, p - 1), 0],
    "[1, 3] are 4 layers, the model has 5": lambda costs, p: [
        size - (stage == p - 1) for stage, size in enumerate(recursion(costs, p))
    ],
    "right sizes, but your function changed the list `costs`, which is": partial(then, list.clear),
    "right sizes, but your function changed the list `costs`": partial(then, list.sort),
    "(8, 1, 1, 1, 5): your function changed the list": lambda costs, p: costs.sort() or recursion(costs, p),
    "returned NoneType, not a list": lambda costs, p: None,
}
WRONG["04.3", "edges"] = {"(1, 1, 9, 1, 1): returned 3 numbers, [2, 1, 2]: 5 stages need 5": fewest_stages}
HANG["04.3", "models"] = {"an endless loop?": partial(recursion, remembers=False)}


# 04.4 ------------------------------------------------------------------------------------------------------------


def gpipe_order(rank, p, m, back=1):
    """Right if `back` is 1; `m` may be the micro-batches themselves."""
    numbers = range(m) if isinstance(m, int) else m
    return [Forward(rank, k) for k in numbers] + [Backward(rank, k) for k in numbers[::back]]


def one_by_one(rank, p, m):
    """Each backward directly after its forward."""
    return [kind(rank, k) for k in range(m) for kind in (Forward, Backward)]


WRONG["04.4", "lists"] = {
    "rank 0 waits with Backward(0, 0) for Backward(1, 0), which rank 1 does only after Forward(1, 1)": (
        lambda rank, p, m: one_by_one(rank, p, m) if rank < p - 1 else gpipe_order(rank, p, m)
    ),
    "one micro-batch at a time is naive model parallelism": one_by_one,
    "GPipe holds 3: is that 1F1B?": lambda rank, p, m: one_f_one_b_order(rank, p, m),
    "Forward(0, 0): stage 0 lies on another rank; stage": (lambda rank, p, m: gpipe_order(0, p, m)),
    "rank 0's list holds Forward(1, 0): stage 1 lies on another rank": (
        lambda rank, p, m: [type(one)(one.microbatch, one.stage) for one in gpipe_order(rank, p, m)]
    ),
    "Forward(0, 3): of 3 micro-batches the last is": (lambda rank, p, m: gpipe_order(rank, p, range(1, m + 1))),
    "rank 0 does Backward(0, 0) before Forward(0, 0)": lambda rank, p, m: (
        gpipe_order(rank, p, m)[m:] + gpipe_order(rank, p, m)[:m]
    ),
    "no Backward(0, 2)": lambda rank, p, m: gpipe_order(rank, p, m)[:-1],
    "Forward(0, 0) stands 2 times": lambda rank, p, m: [Forward(rank, 0), *gpipe_order(rank, p, m)],
    "rank 1 does Backward(1, 7) before Backward(1, 6)": (
        lambda rank, p, m: gpipe_order(rank, p, m, back=-1 if rank % 2 and p > 2 else 1)
    ),
    "rank 1's list holds Forward(0, 0): stage 0 lies": (lambda rank, p, m: gpipe_order(dist.get_rank(), p, m)),
    "holds SendActivation(0, 0): it is made of": (
        lambda rank, p, m: [one for k in range(m) for one in (Forward(rank, k), SendActivation(rank, k))]
    ),
    "right, but by course_lib.schedules.make_schedule": (
        lambda rank, p, m: list(make_schedule("gpipe", p, m).computes(rank))
    ),
    "rank 1's list holds None: idle time is not": (lambda rank, p, m: [None] * rank + gpipe_order(rank, p, m)),
    "for rank 0 it returned NoneType, not a list": lambda rank, p, m: None,
}


# 04.5 ------------------------------------------------------------------------------------------------------------


def one_f_one_b_order(rank, p, m, ahead=lambda rank, p, m: min(p - rank - 1, m), latest=False):
    """Right, unless `ahead` is another number, or the latest forward has its backward first."""
    first = ahead(rank, p, m)
    order, waiting = [], []
    for k in range(m + first):
        if k < m:
            order.append(Forward(rank, k))
            waiting.append(k)
        if k >= first:
            order.append(Backward(rank, waiting.pop(-1 if latest else 0)))
    return order


def two_forwards_later(rank, p, m):
    order = one_f_one_b_order(rank, p, m)
    if rank == 0 and m > p:
        order.insert(p + 2, order.pop(p + 3))
    return order


def no_cool_down(rank, p, m):
    order = one_f_one_b_order(rank, p, m)
    return order[: len(order) - (p - rank - 1)]


def more_ranks_than_micro_batches(rank, p, m):
    ahead = p - rank - 1
    order = [Forward(rank, k) for k in range(ahead)]
    for k in range(m):
        order += [Forward(rank, k + ahead)] * (k + ahead < m) + [Backward(rank, k)]
    return order


def backward_of_the_same_number(rank, p, m):
    order = [Forward(rank, k) for k in range(min(p - rank - 1, m))]
    return order + [kind(rank, k) for k in range(len(order), m) for kind in (Forward, Backward)]


def waits_before_backward(rank, p, m):
    order = one_f_one_b_order(rank, p, m)
    place = [type(one) for one in order].index(Backward)
    return [*order[:place], *[None] * (p - rank - 1), *order[place:]]


def never_done(rank, p, m):
    order = []
    while len(order) < 2 * m:
        order = order[: m - 1]
    return order


WRONG["04.5", "lists"] = {
    "5 activations at once, 1F1B holds 3: is that GPipe?": partial(one_f_one_b_order, ahead=lambda rank, p, m: m),
    "with 2 forwards before its first backward, 1F1B with 3": partial(
        one_f_one_b_order, ahead=lambda rank, p, m: max(0, min(p - rank - 2, m))
    ),
    "1F1B holds 3: rank 0 begins with 5 forwards": partial(
        one_f_one_b_order, ahead=lambda rank, p, m: min(p - rank + 1, m) if m > 3 else p - rank - 1
    ),
    "holds 5 activations at once, 1F1B holds 4": partial(
        one_f_one_b_order, ahead=lambda rank, p, m: min(p - rank - (p < 4), m)
    ),
    "rank 1 begins with 3 forwards": partial(one_f_one_b_order, ahead=lambda rank, p, m: min(p - 1, m)),
    "with Forward(1, 1) for Forward(0, 1), which rank 0": partial(
        one_f_one_b_order, ahead=lambda rank, p, m: min(rank, m)
    ),
    "one micro-batch at a time is naive model parallelism": one_by_one,
    "rank 0 does Backward(0, 4) before Backward(0, 1)": partial(one_f_one_b_order, latest=True),
    "1F1B holds 3: it begins well, but later does two forwards": two_forwards_later,
    "no Backward(0, 3)": no_cool_down,
    "no Backward(0, 0)": backward_of_the_same_number,
    "Forward(0, 0) stands 2 times": lambda rank, p, m: (
        [Forward(rank, k) for k in range(min(p - rank - 1, m))] + one_by_one(rank, p, m)
    ),
    "right, but by course_lib.schedules.make_schedule": (
        lambda rank, p, m: list(make_schedule("1f1b", p, m).computes(rank))
    ),
    "rank 0's list holds None: idle time is not written down": waits_before_backward,
}
HANG["04.5", "lists"] = {"an endless loop?": never_done}
WRONG["04.5", "edges"] = {
    "4 ranks, 2 micro-batches: rank 0's list holds Forward(0, 2): of 2": more_ranks_than_micro_batches
}
WRONG["04.5", "training"] = {
    "rank 1's list holds": lambda rank, p, m: one_f_one_b_order(
        rank if dist.get_world_size() == 1 else dist.get_rank(), p, m
    )
}


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


def but(**methods):
    """Right, but for these methods."""
    return type("Answer", (Right,), methods)


def changed(change):
    """Right, but for what the second part returns."""
    return but(products=lambda self: change(self, *Right.products(self)))


def rows_of(self):
    """x and the gradient, flat."""
    return self.x.flatten(0, -2), self.gradient.flatten(0, -2)


def overwrites_x(self, x, weight, bias):
    y = Right.forward(self, x.clone(), weight, bias)
    x.zero_()
    return y


def only_two_dims(self, weight, bias):
    return (
        self.gradient.transpose(0, -1).reshape(5, -1) @ self.x.reshape(-1, 6) if self.x.dim() == 3 else weight
    ), bias


WRONG["04.8", "values"] = {
    "the output lacks the bias": but(forward=lambda self, x, weight, bias: Right.forward(self, x, weight, None)),
    "bias's gradient is no multiple of the reference": changed(lambda self, weight, bias: (weight, self.gradient[0])),
    "bias's gradient is exactly 1/4 of the reference: a mean": changed(
        lambda self, weight, bias: (weight, self.gradient.mean(0))
    ),
    "weight's gradient is exactly 1/4 of the reference: a mean": changed(
        lambda self, weight, bias: (weight / len(self.x), bias)
    ),
    "expected (5, 6): is it turned round?": changed(lambda self, weight, bias: (weight.T, bias)),
    "an error: ": but(backward_input=lambda self, gradient: gradient @ self.weight.T),
    "backward_weight returned a tensor of shape (5, 6)": changed(lambda self, weight, bias: weight),
    "backward_weight returned None: return two": but(backward_weight=lambda self: None),
    "returned (bias, weight)? The weight's gradient": changed(lambda self, weight, bias: (bias, weight)),
    "is torch.float32, expected torch.float64 as x": changed(lambda self, weight, bias: (weight.float(), bias)),
    "backward_input returned None, not one tensor": but(
        backward_input=lambda self, gradient: setattr(self, "gradient", gradient)
    ),
    "forward overwrites x, which belongs to the layer before: work on a copy": but(forward=overwrites_x),
    "backward_weight overwrites the gradient of y": but(let_go=lambda self: self.gradient.zero_()),
}
WRONG["04.8", "edges"] = {
    "a 6-5 layer, input (2, 3, 6): ": changed(only_two_dims),
    "bias's gradient has shape (3, 5), expected (5,)": changed(
        lambda self, weight, bias: (weight, self.gradient.sum(0))
    ),
}


class Shared(Right):
    """One place for all objects; `place` says which pair leaves it first."""

    queue, place = [], 0

    def backward_input(self, gradient):
        self.queue.append((self.x, gradient))
        return gradient @ self.weight

    def products(self):
        x, gradient = (one.flatten(0, -2) for one in self.queue.pop(self.place))
        return gradient.T @ x, gradient.sum(0)


SHARED = "micro-batch 0: the weight's gradient is micro-batch 2's: does each object keep its own"
mutant("04.8", "edges", SHARED)(type("OneQueueForAll", (Shared,), {"queue": []}))
mutant("04.8", "edges", SHARED)(type("OneStackForAll", (Shared,), {"queue": [], "place": -1}))


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


def all_at_once(self, gradient):
    found = Right.backward_input(self, gradient)
    self.ready = self.products()
    return found


def product_by_hand(self, gradient):
    found, (x, rows) = Right.backward_input(self, gradient), rows_of(self)
    self.ready = (rows[:, :, None] * x[:, None, :]).sum(0), rows.sum(0)
    return found


def product_in_advance(self, gradient):
    found, self.rows = product_by_hand(self, gradient), gradient.shape[:-1].numel()
    self.let_go()
    return found


def product_for_show(self):
    torch.ones(self.weight.shape[0], self.rows) @ torch.ones(self.rows, self.weight.shape[1])
    return self.ready


def by_a_column_of_ones(self):
    x, gradient = rows_of(self)
    both = gradient.T @ torch.cat([x, x.new_ones(len(x), 1)], 1)
    return both[:, :-1], both[:, -1]


def by_numpy(self):
    x, gradient = (one.numpy() for one in rows_of(self))
    return torch.from_numpy(gradient.T @ x), torch.from_numpy(gradient.sum(0))


def keeps_the_output(self, x, weight, bias):
    self.y = Right.forward(self, x, weight, bias).detach()
    return self.y


def keeps(kept, what):
    """x, or what is made of it, stays in a list of the class."""

    def forward(self, x, weight, bias):
        kept.append(what(x))
        return Right.forward(self, x, weight, bias)

    return but(forward=forward, kept=kept)


def keeps_a_closure(self, gradient):
    found, x, self.x = Right.backward_input(self, gradient), self.x, None
    self.later = lambda: (gradient.flatten(0, -2).T @ x.flatten(0, -2), gradient.flatten(0, -2).sum(0))
    return found


def weight_by_autograd(self):
    weight, bias = (one.detach().requires_grad_() for one in (self.weight, torch.zeros(len(self.weight)).double()))
    return torch.autograd.grad(F.linear(self.x, weight, bias), (weight, bias), self.gradient)


def input_by_autograd(self, gradient):
    x, self.gradient = self.x.detach().requires_grad_(), gradient
    return torch.autograd.grad(F.linear(x, self.weight), x, gradient)[0]


KEPT = "after backward_weight {} bytes are still kept, in self or elsewhere: let go of what is done"
NO_PRODUCT = "backward_weight does 0 operations in torch's products of matrices, target 480: is the product"
FOR_THE_BIAS = "does 560 operations, 1.17 x the target of 480: the bias needs no product"

WRONG["04.8", "costs"] = {
    "backward_input does 960 operations, 2.0 x the target of 480: is the weight": but(
        backward_input=all_at_once, backward_weight=lambda self: self.ready
    ),
    "backward_weight does 960 operations, 2.0 x": changed(lambda self, weight, bias: Right.products(self)),
    FOR_THE_BIAS: changed(
        lambda self, weight, bias: (weight, torch.ones(len(rows_of(self)[1])).double() @ rows_of(self)[1])
    ),
    f"backward_weight {FOR_THE_BIAS}": but(products=by_a_column_of_ones),
    NO_PRODUCT: but(backward_input=product_by_hand, products=lambda self: self.ready),
    f"{NO_PRODUCT} done in another method": but(products=by_numpy),
    "between the parts 280 bytes are kept, target 704: x and the gradient; what": but(
        backward_input=product_in_advance, products=product_for_show
    ),
    "the parts 1024 bytes are kept, target 704: x and the gradient; is the output kept": but(forward=keeps_the_output),
    "the parts 1088 bytes are kept, target 704: x and the gradient; is a copy of x": keeps([], torch.clone),
    KEPT.format(704): but(let_go=lambda self: None),
    f"(8, 6): values right, but {KEPT.format(704)}": but(
        backward_input=keeps_a_closure, products=lambda self: self.later()
    ),
    KEPT.format(384): keeps([], lambda x: x),
    "backward_weight goes backward by autograd: write it with": but(products=weight_by_autograd),
    "backward_input goes backward by autograd: write it with": but(backward_input=input_by_autograd),
}


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


# 04.9 ------------------------------------------------------------------------------------------------------------

NO_WEIGHT = {"weight": lambda mine, rows: 1, "loss_of": lambda values, rows: weighed(values, rows) / sum(rows)}


def weighed(values, rows):
    """The sum of what stands for all rows."""
    return sum(value * n for value, n in zip(values, rows, strict=True))


def some_at_a_time(many, half, parts, width):
    """Of 0, all rows in one piece."""
    total = sum(len(targets) for _, targets in parts)
    groups = [parts[first : first + many] for first in range(0, len(parts), many or len(parts))]
    groups = groups if many else [[tuple(map(torch.cat, zip(*parts, strict=True)))]]
    losses = [gpipe(half, group, width, weight=lambda mine, _: mine / total) for group in groups]
    return sum(losses) if dist.get_rank() == 1 else None


WRONG["04.9", "gradients"] = {
    "your gradient is exactly 4.0 x the reference: was the loss divided?": (partial(gpipe, **NO_WEIGHT)),
    "on rank 0 is exactly 1/4 of the reference: was the loss divided twice": partial(
        gpipe, back=lambda gradient, m: gradient / m
    ),
    "on rank 1 is exactly 4.0 x the reference: was the loss divided?": partial(
        gpipe, back=lambda gradient, m: gradient / m, **NO_WEIGHT
    ),
    "your gradient is exactly 1/4 of the reference": partial(
        gpipe, weight=lambda mine, rows: mine / sum(rows) / len(rows)
    ),
    "8.0 x the reference: was the loss summed over the rows, and": partial(
        gpipe, weight=lambda mine, rows: mine, loss_of=lambda values, rows: sum(values) / sum(rows)
    ),
    "2.0 x the reference: was the loss summed over a micro": partial(gpipe, weight=lambda mine, rows: mine / len(rows)),
    "1/2 of the reference: was a mean over a micro-batch's rows divided": partial(
        gpipe, weight=lambda mine, rows: 1 / sum(rows)
    ),
    "your gradient is 1.143 x the reference": partial(gpipe, weight=lambda mine, rows: mine / (sum(rows) - 1)),
    "3, 3 rows: your gradient is exactly 1/2 of the reference: divided by 4?": partial(
        gpipe, weight=lambda mine, rows: 1 / 4, loss_of=lambda values, rows: sum(values) * 4 / len(rows)
    ),
    "3, 3 rows: your gradient is exactly 0.75 x the reference: divided by 8?": partial(
        gpipe, weight=lambda mine, rows: mine / 8, loss_of=lambda values, rows: sum(values) * 8 / sum(rows)
    ),
    "the loss on rank 1 is exactly 1/4 of that of all rows": partial(
        gpipe, loss_of=lambda values, rows: sum(values) / len(values)
    ),
    NO_NUMBER.format("a tensor with its history"): partial(
        gpipe, loss_of=lambda values, rows: torch.tensor(sum(values), requires_grad=True)
    ),
}


WRONG["04.9", "gradients"] |= {
    "right gradients, but the weights have changed": partial(afterwards, update, gpipe),
    "right values, but nothing is in the ledger": partial(natively, gpipe),
    "x.requires_grad_() comes before what is computed from x": partial(gpipe, follow=lambda x: x),
    "a crash: rank 1 died": partial(exits, gpipe),
}
WRONG["04.9", "uneven"] = {
    "the mean of the micro-batches' means: a row of number 2, the short one": partial(
        afterwards,
        lambda half, parts, width: [p.grad.div_(len(parts)) for p in half.parameters()],
        partial(gpipe, **NO_WEIGHT),
    )
}
WRONG["04.9", "messages"] = {
    "values right, but one micro-batch after the other: rank 0 sends number 1 only": partial(some_at_a_time, 1),
    "values right, but the pipeline runs empty: rank 0 sends number 2 only when": partial(some_at_a_time, 2),
    "the ledger has no message from rank 1 to rank 0: use comm.send": partial(natively, gpipe, sender=1),
    "rank 0 sends rank 1 1 message of 128 bytes in all, target 4 messages of 128": partial(some_at_a_time, 0),
}


@mutant("04.9", "gradients", "did it send as often as it is received from, and wait() for each isend?", hangs=True)
def gradients_not_sent(half, parts, width):
    if dist.get_rank() == 0:
        return gpipe(half, parts, width)
    for inputs, _ in parts:
        comm.recv(torch.empty(len(inputs), width), 0)


# 04.10 -----------------------------------------------------------------------------------------------------------


def add(own, theirs, first):
    """Right."""
    return own + theirs


def both(stage, tied, *given):
    """What all ranks can reduce together."""
    return torch.zeros(20, 8) if tied is None else tied.grad


WRONG["04.10", "gradients"] = {
    "1/2 of the reference: an average of the two copies": partial(
        mended, lambda own, theirs, first: (own + theirs) / 2
    ),
    "exactly 2.0 x the reference: is it added twice?": partial(mended, lambda own, theirs, first: 2 * (own + theirs)),
    "came in, but tied.grad is what it was; what is sent": partial(mended, lambda own, theirs, first: own),
    "right gradients, but the weights have changed": partial(afterwards, update, partial(mended, add)),
    "what comm.all_reduce returns is the sum, its input stays as it is": partial(
        afterwards, lambda *given: comm.all_reduce(both(*given)), tied_step
    ),
    "the *weights* were written, which are equal anyway; add the gradients": partial(
        afterwards, lambda stage, tied, *_: tied is None or tied.detach().copy_(tied.detach().clone()), tied_step
    ),
    ": the *weights* were written, which are equal anyway": partial(
        afterwards, lambda stage, tied, *_: tied is None or setattr(tied, "data", tied.data.clone()), tied_step
    ),
    "right gradients, but rank 1 returned a tensor, not the loss": lambda *given: torch.tensor(
        mended(add, *given) or 0.0
    ),
}
WRONG["04.10", "bytes"] = {
    "the ledger has no message for the tied weight: use comm.isend": partial(
        afterwards, lambda *given: dist.all_reduce(both(*given)), tied_step
    ),
    "640 bytes. All ranks take part in your all_reduce, also those without": partial(
        afterwards, lambda *given: comm.all_reduce_(both(*given)), tied_step
    ),
}
WRONG["04.10", "edges"] = {
    "1 rank, 2 x 5 tokens: embedding.weight on rank 0 is exactly 2.0 x": partial(
        afterwards, lambda stage, tied, *_: dist.get_world_size() == 1 and tied.grad.mul_(2), partial(mended, add)
    ),
    "1 rank, 2 x 5 tokens: an error: ": partial(
        afterwards, lambda stage, tied, *_: dist.get_world_size() == 1 and comm.send(tied.grad, 0), partial(mended, add)
    ),
}
HANG["04.10", "gradients"] = {
    "a collective waits until every rank of its group has called it": partial(
        afterwards, lambda stage, tied, *_: tied is None or comm.all_reduce_(tied.grad), tied_step
    ),
    "all that wait are sending, nobody receives": partial(
        afterwards,
        lambda stage, tied, *_: tied is None or comm.send(tied.grad, dist.get_world_size() - 1 - dist.get_rank()),
        tied_step,
    ),
}


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


for table in (WRONG, HANG):
    for (key, level), answers in table.items():
        MUTANTS.extend((key, level, reason, answer, table is HANG) for reason, answer in answers.items())
