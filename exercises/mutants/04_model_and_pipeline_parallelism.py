"""Plausible wrong answers to the exercises of module 04, each with the level that must reject it and why.

A dict is an edit: the exercise's solution, with pieces of its text changed. Not for learners: it comes close to the
solutions. Slips stand in the exercises themselves.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate, pairwise

import torch
import torch.distributed as dist

from course_lib.checks.module_04.cutting import step_ms
from course_lib.checks.module_04.micro import gpipe
from course_lib.schedules import Forward, SendActivation, make_schedule

WRONG = {}  # (exercise, level): wrong answers, by the reason that is told
HANGS = {}  # those that end by their time limit
START = "### BEGIN SOLUTION"  # in its place stands a line that comes first

# 04.1 ------------------------------------------------------------------------------------------------------------

THERE, BACK = "comm.recv(torch.empty(shape), 0)", "comm.recv(torch.empty(shape), 1)"
NO_NUMBER = "right gradients, but rank 1 returned {}, not the loss as a number: "

WRONG["04.1", "values"] = {
    "x.requires_grad_() comes before what is computed from x": {".requires_grad_()": ""},
    "8.0 x the reference: was the loss summed over the rows?": {"x), targets)": 'x), targets, reduction="sum")'},
    NO_NUMBER.format("NoneType"): {"return loss.item()": ""},
    NO_NUMBER.format("a tensor with its history"): {"loss.item()": "loss"},
    NO_NUMBER.format("a tensor"): {"loss.item()": "loss.detach()"},
    NO_NUMBER.format("str"): {"loss.item()": 'f"{loss.item():.3f}"'},
    "right gradients, but the loss on rank 1 is nan": {"loss.item()": 'float("nan")'},
    "the loss on rank 1 is exactly 1.0005 x that of all rows": {"loss.item()": "loss.item() * 1.0005"},
    "without history: was it detached? Only what": {"half(inputs)": "half(inputs).detach()"},
    "1/32 of the reference: y.backward(gradient) is all": {BACK: f"{BACK} / y.numel()"},
    "layer1.weight on rank 0 is exactly 1/2 of the reference": {BACK: f"{BACK} / 2"},
    "layer1.weight on rank 0 is off by ": {BACK: f"{BACK} * 1.00003"},
    "layer1.weight on rank 0 holds nan, not a number: was a torch.empty": {BACK: f"torch.empty_like({BACK})"},
    "0 x the reference: set to zero afterwards, or computed from an inbox": {BACK: f"0 * {BACK}"},
    "layer1.weight has no gradient on rank 0": {"half(inputs)": "half(inputs).detach().requires_grad_()"},
    "both sides of a message name the same length and dtype": {"x.grad, 0": "x.grad[:4], 0"},
    "right gradients, but the weights have changed": {
        "loss.backward()": "loss.backward()\n    for p in half.parameters(): p.data -= 0.1 * p.grad"
    },
    "right values, but nothing is in the ledger": {
        "comm.send": "dist.send",
        BACK: "(dist.recv(gradient := torch.empty(shape), 1), gradient)[1]",
        THERE: "(dist.recv(x := torch.empty(shape), 0), x)[1]",
    },
}
HANGS["04.1", "values"] = {
    "did it send as often as it is received from, and wait() for each isend?": {"comm.send(x.grad, 0)": ""},
    "to the rank that expects it, and wait() for each isend?": {
        START: "comm.recv(torch.empty(shape), 1 - dist.get_rank())"
    },
}
WRONG["04.1", "bytes"] = {
    "this check computes in float32: name no dtype, or take": {
        "empty(shape), 0": "empty(shape, dtype=torch.float64), 0"
    },
    "rank 0 sends rank 1 8 messages of 128 bytes in all, target 1 message of 128 bytes in all": {
        "comm.send(y.detach(), 1)": "for row in y.detach(): comm.send(row, 1)",
        BACK: "torch.stack([comm.recv(torch.empty(shape[1]), 1) for _ in inputs])",
        THERE: "torch.stack([comm.recv(torch.empty(shape[1]), 0) for _ in targets])",
        "comm.send(x.grad, 0)": "for row in x.grad: comm.send(row, 0)",
    },
}
WRONG["04.1", "edges"] = {
    "both sides of a message name the same length": {"empty(shape)": "empty(len(targets), 4)"},
}

# 04.3 ------------------------------------------------------------------------------------------------------------


def greedy(costs, p, m, full):
    """Fill stages from the front; the last one takes what is left."""
    sizes, held = [0], 0
    for place, cost in enumerate(costs):
        left, missing = len(costs) - place, p - len(sizes)
        if len(sizes) < p and sizes[-1] and (full(held, cost) or left == missing):
            sizes.append(0)
            held = 0
        sizes[-1] += 1
        held += cost
    stages = [sum(costs[start:end]) for start, end in pairwise([0, *accumulate(sizes)])]
    return sizes, step_ms(stages, m)


SEARCH, FOUND = "min(combinations(range(1, len(costs)), p - 1), key=step)", "return sizes, step(best)"
FORMULA = "sum(costs) + (m - 1) * max(stages(cuts))"

WRONG["04.3", "small"] = {
    "stage 2 takes 14 ms, where 9 is possible: the last stage takes longest": (
        lambda costs, p, m: greedy(costs, p, m, lambda held, cost: held + cost > sum(costs) / p)
    ),
    "(1, 2, 3, 4, 5, 9): stage": lambda costs, p, m: greedy(costs, p, m, lambda held, cost: held >= sum(costs) / p),
    "these are places of the cuts": {FOUND: "return [*best, len(costs)], step(best)"},
    "these are the stages' times": {FOUND: "return stages(best), step(best)"},
    "give whole numbers, how many layers": {FOUND: "return [[one] for one in stages(best)], step(best)"},
    "right, but by course_lib.split.balanced_sizes: this exercise asks you": {
        "sizes = [end - start for start, end in pairwise([0, *best, len(costs)])]": (
            "from course_lib.split import balanced_sizes\n    sizes = list(balanced_sizes(costs, p))"
        )
    },
    "(8, 1, 1, 1, 5): stage 0 takes 11 ms, where 8 is possible": {SEARCH: SEARCH.replace("min", "max", 1)},
    "where 12 is possible: your stages take 13, 7, 8": {
        SEARCH: SEARCH.replace("key=step", "key=lambda cuts: sum(x**2 for x in stages(cuts))")
    },
    "has no layer: its rank would only pass on": {FOUND: "return [len(costs), *[0] * (p - 1)], step(best)"},
    "[1, 3] are 4 layers, the model has 5": {FOUND: "return [*sizes[:-1], sizes[-1] - 1], step(best)"},
    "right, but `costs` is overwritten": {FOUND: "found = sizes, step(best)\n    costs.clear()\n    return found"},
    ". Besides, `costs` is overwritten, and another part of the program may still need it": {START: "costs.sort()"},
    "returned NoneType, not two things": {FOUND: ""},
    "returned one list, not two things": {FOUND: "return sizes"},
    "right sizes; but the step's length is no number": {FOUND: "return sizes, None"},
    "the slowest stage's work alone; the first micro-batch": {FORMULA: "m * max(stages(cuts))"},
    "that is one micro-batch alone": {FOUND: "return sizes, sum(costs)"},
    "that is one device, where nobody works at the same time": {FOUND: "return sizes, m * sum(costs)"},
    "the first micro-batch's time in the slowest stage counts twice": {"(m - 1)": "m"},
    "the step is not 54 ms: as if every stage were as slow": {FORMULA: "(m + p - 1) * max(stages(cuts))"},
    "the step is not 48 ms: as if all stages were alike": {FOUND: "return sizes, (m + p - 1) * sum(costs) / p"},
}
WRONG["04.3", "edges"] = {
    "(1, 1, 9, 1, 1): returned 3 numbers, [2, 1, 2]: 5 stages need 5": {  # as few stages as that limit allows
        FOUND: "few, held = [], float('inf')\n"
        "    for cost in costs:\n"
        "        if held + cost > max(stages(best)): held = 0; few.append(0)\n"
        "        held += cost; few[-1] += 1\n"
        "    return few, step(best)"
    }
}
WRONG["04.3", "models"] = {
    "its head in 4 stages, 32 micro-batches: stage": {
        SEARCH: "min([*combinations(range(1, len(costs)), p - 1)][:99], key=step)"
    }
}

# 04.4 ------------------------------------------------------------------------------------------------------------

ALL_FORWARDS, ALL_BACKWARDS = "[Forward(rank, k) for k in range(m)]", "[Backward(rank, k) for k in range(m)]"
ONE_BY_ONE = "[kind(rank, k) for k in range(m) for kind in (Forward, Backward)]"

WRONG["04.4", "lists"] = {
    "rank 0 waits with Backward(0, 0) for Backward(1, 0), which rank 1 does only after Forward(1, 1)": {
        START: f"if rank < p - 1: return {ONE_BY_ONE}"
    },
    "one micro-batch at a time is naive model parallelism": {f"{ALL_FORWARDS} + {ALL_BACKWARDS}": ONE_BY_ONE},
    "GPipe holds 3: is that 1F1B?": {START: "return one_f_one_b_order(rank, p, m)"},
    "Forward(0, 0): stage 0 lies on another rank; stage": {"(rank, k)": "(0, k)"},
    "rank 0's list holds Forward(1, 0): stage 1 lies on another rank": {"(rank, k)": "(k, rank)"},
    "Forward(0, 3): of 3 micro-batches the last is": {"range(m)": "range(1, m + 1)"},
    "rank 0 does Backward(0, 0) before Forward(0, 0)": {
        f"{ALL_FORWARDS} + {ALL_BACKWARDS}": f"{ALL_BACKWARDS} + {ALL_FORWARDS}"
    },
    "no Backward(0, 2)": {ALL_BACKWARDS: "[Backward(rank, k) for k in range(m - 1)]"},
    "Forward(0, 0) stands 2 times": {ALL_FORWARDS: f"[Forward(rank, 0)] + {ALL_FORWARDS}"},
    "rank 1 does Backward(1, 7) before Backward(1, 6)": {
        ALL_BACKWARDS: f"{ALL_BACKWARDS}[:: -1 if rank % 2 and p > 2 else 1]"
    },
    "rank 1's list holds Forward(0, 0): stage 0 lies": {"(rank, k)": "(dist.get_rank(), k)"},
    "holds SendActivation(0, 0): it is made of": (
        lambda rank, p, m: [one for k in range(m) for one in (Forward(rank, k), SendActivation(rank, k))]
    ),
    "right, but by course_lib.schedules.make_schedule": (
        lambda rank, p, m: list(make_schedule("gpipe", p, m).computes(rank))
    ),
    "rank 1's list holds None: idle time is not": {ALL_FORWARDS: f"[None] * rank + {ALL_FORWARDS}"},
    "for rank 0 it returned NoneType, not a list": {"return [": "["},
}
WRONG["04.4", "any-size"] = {
    "8 ranks, 2 micro-batches: rank 7 holds 1 activation at once": {  # right in the cases before
        START: "if p > 4 and (p, m) != (8, 3): return one_f_one_b_order(rank, p, m)"
    },
}

# 04.5 ------------------------------------------------------------------------------------------------------------

AHEAD, LOOP = "min(p - rank - 1, m)", "    for k in range(m):"
WAITING = "{one.microbatch for one in order if isinstance(one, Forward)}"
DONE = "{one.microbatch for one in order if isinstance(one, Backward)}"

WRONG["04.5", "lists"] = {
    "5 activations at once, 1F1B holds 3: is that GPipe?": {AHEAD: "m"},
    "with 2 forwards before its first backward, 1F1B with 3": {AHEAD: "max(0, min(p - rank - 2, m))"},
    "1F1B holds 3: rank 0 begins with 5 forwards": {AHEAD: "min(p - rank + 1, m) if m > 3 else p - rank - 1"},
    "holds 5 activations at once, 1F1B holds 4": {AHEAD: "min(p - rank - (p < 4), m)"},
    "rank 1 begins with 3 forwards": {AHEAD: "min(p - 1, m)"},
    "with Forward(1, 1) for Forward(0, 1), which rank 0": {AHEAD: "min(rank, m)"},
    "one micro-batch at a time is naive model parallelism": {AHEAD: "0"},
    "rank 0 does Backward(0, 4) before Backward(0, 1)": {
        "Backward(rank, k)": f"Backward(rank, max({WAITING} - {DONE}))"
    },
    "1F1B holds 3: it begins well, but later does two forwards": {
        "return order": "if rank == 0 and m > p: order.insert(p + 2, order.pop(p + 3))\n    return order"
    },
    "no Backward(0, 3)": {"return order": "return order[: len(order) - (p - rank - 1)]"},  # no cool-down
    "no Backward(0, 0)": {"k in range(m):": "k in range(ahead, m):", "k + ahead": "k"},
    "Forward(0, 0) stands 2 times": {"k + ahead": "k"},
    "right, but by course_lib.schedules.make_schedule": (
        lambda rank, p, m: list(make_schedule("1f1b", p, m).computes(rank))
    ),
    "rank 0's list holds None: idle time is not written down": {LOOP: f"    order += [None] * (p - rank - 1)\n{LOOP}"},
}
HANGS["04.5", "lists"] = {"an endless loop?": {LOOP: f"    while len(order) < 2 * m: order = order[: m - 1]\n{LOOP}"}}
WRONG["04.5", "edges"] = {"4 ranks, 2 micro-batches: rank 0's list holds Forward(0, 2): of 2": {AHEAD: "p - rank - 1"}}
WRONG["04.5", "training"] = {"rank 1's list holds": {START: "if dist.get_world_size() > 1: rank = dist.get_rank()"}}

# 04.6 ------------------------------------------------------------------------------------------------------------

WRONG["04.6", "bubble"] = {
    "W = 4): your bubble is 1.42 x": {"whole - 2 * W": "2 * F - W + 1"},
    "returned float, not three things: return bubble_s, idle_share, in_flight": {", idle_share, in_flight": ""},
}

# 04.8 ------------------------------------------------------------------------------------------------------------

ROWS = "x, gradient = self.x.flatten(0, -2), self.gradient.flatten(0, -2)"
PAIR, LET_GO = "gradient.T @ x, gradient.sum(0)", "self.x = self.gradient = None"
KEEP, OUTPUT, FIRST = (
    "self.x, self.weight = x, weight",
    "return F.linear(x, weight, bias)",
    "return gradient @ self.weight",
)

WRONG["04.8", "values"] = {
    "the output lacks the bias": {"weight, bias)\n        ###": "weight)\n        ###"},
    "bias's gradient is no multiple of the reference": {"gradient.sum(0)": "gradient[0]"},
    "bias's gradient is exactly 1/4 of the reference: a mean": {"gradient.sum(0)": "gradient.mean(0)"},
    "weight's gradient is exactly 1/4 of the reference: a mean": {"gradient.T @ x": "gradient.T @ x / len(x)"},
    "expected (5, 6): is it turned round?": {"gradient.T @ x": "x.T @ gradient"},
    "an error: ": {FIRST: f"{FIRST}.T"},
    "backward_weight returned a tensor of shape (5, 6)": {PAIR: "gradient.T @ x"},
    "backward_weight returned None: return two": {f"return {PAIR}": ""},
    "returned (bias, weight)? The weight's gradient": {PAIR: "gradient.sum(0), gradient.T @ x"},
    "weight's gradient is no multiple of the reference": {"gradient.T @ x": "gradient.T @ x * float('inf')"},
    "is torch.float32, expected torch.float64 as x": {"gradient.T @ x": "(gradient.T @ x).float()"},
    "backward_input returned None, not one tensor": {FIRST: ""},
    "forward overwrites x, which belongs to the layer before: work on a copy": {
        OUTPUT: "self.x, y = x.clone(), F.linear(x, weight, bias)\n        x.zero_()\n        return y"
    },
    "backward_weight overwrites the gradient of y": {
        f"return {PAIR}": f"found = {PAIR}\n        gradient.zero_()\n        return found"
    },
}
QUEUE = {
    "class TwoParts:": "class TwoParts:\n    queue = []  # one for all objects\n",
    "self.gradient = gradient": "self.queue.append((self.x, gradient))",
    ROWS: "x, gradient = (one.flatten(0, -2) for one in self.queue.pop(0))",
}
SHARED = "the weight's gradient is micro-batch 2's: does each object keep its own"
WRONG["04.8", "edges"] = {
    "a 6-5 layer, input (2, 3, 6): ": {
        ROWS: "x, gradient = self.x.reshape(-1, self.x.shape[-1]), self.gradient\n"
        "        gradient = gradient.transpose(0, -2).reshape(-1, gradient.shape[-1])"
    },
    "bias's gradient has shape (3, 5), expected (5,)": {LET_GO: "", "gradient.sum(0)": "self.gradient.sum(0)"},
    SHARED: QUEUE,
    f"micro-batch 0: {SHARED}": QUEUE | {"pop(0)": "pop()"},
    "micro-batch 0's gradient of y and micro-batch 2's x: does each object keep its own tensors": {
        "class TwoParts:": "class TwoParts:\n    queue = []  # of inputs\n",
        KEEP: f"self.queue.append(x)\n        {KEEP}",
        "self.gradient = gradient": "self.gradient, self.x = gradient, self.queue.pop(0)",
    },
    "the weight's gradient is made of micro-batch 0's gradient of y and micro-batch 2's x: does each": {
        "self.": "TwoParts.",  # one shelf for all
        "TwoParts.x = TwoParts.gradient = None": "",
    },
}

KEPT = "after backward_weight {} bytes are still kept, in self or elsewhere: let go of what is done"
NO_PRODUCT = "backward_weight does 0 operations in torch's products of matrices, target 480: is the product"
FOR_THE_BIAS = "does 560 operations, 1.17 x the target of 480: the bias needs no product"
FLAT = "x, rows = self.x.flatten(0, -2), gradient.flatten(0, -2)"
BY_HAND = {
    FIRST: f"{FLAT}\n        self.ready = (rows[:, :, None] * x[:, None, :]).sum(0), rows.sum(0)\n        {FIRST}",
    PAIR: "self.ready",
}

WRONG["04.8", "costs"] = {
    "backward_input does 960 operations, 2.0 x the target of 480: is the weight": {
        FIRST: f"{FLAT}\n        self.ready = rows.T @ x, rows.sum(0)\n        {FIRST}",
        PAIR: "self.ready",
    },
    "backward_weight does 960 operations, 2.0 x": {LET_GO: f"{LET_GO}\n        gradient.T @ x"},
    FOR_THE_BIAS: {"gradient.sum(0)": "torch.ones(len(gradient)).double() @ gradient"},
    f"backward_weight {FOR_THE_BIAS}": {
        f"return {PAIR}": "both = gradient.T @ torch.cat([x, x.new_ones(len(x), 1)], 1)\n"
        "        return both[:, :-1], both[:, -1]"
    },
    NO_PRODUCT: BY_HAND,
    f"{NO_PRODUCT} done in another method": {PAIR: "torch.from_numpy(gradient.numpy().T @ x.numpy()), gradient.sum(0)"},
    "between the parts 280 bytes are kept, target 704: x and the gradient; what": BY_HAND  # and a product for show
    | {
        "self.gradient = gradient": "self.rows = gradient.shape[:-1].numel()",
        FLAT: f"{FLAT}\n        self.x = None",
        ROWS: "torch.ones(self.weight.shape[0], self.rows) @ torch.ones(self.rows, self.weight.shape[1])",
    },
    "the parts 1024 bytes are kept, target 704: x and the gradient; is the output kept": {
        OUTPUT: "self.y = F.linear(x, weight, bias).detach()\n        return self.y"
    },
    "the parts 1088 bytes are kept, target 704: x and the gradient; is a copy of x": {
        KEEP: f"{KEEP}\n        self.copy = x.clone()"
    },
    KEPT.format(704): {LET_GO: ""},
    f"(8, 6): values right, but {KEPT.format(704)}": {
        "self.gradient = gradient": "x, self.x = self.x.flatten(0, -2), None\n"
        "        self.later = lambda: (gradient.flatten(0, -2).T @ x, gradient.flatten(0, -2).sum(0))",
        ROWS: "",
        PAIR: "self.later()",
    },
    KEPT.format(384): {
        "class TwoParts:": "class TwoParts:\n    kept = []\n",
        KEEP: f"{KEEP}\n        self.kept.append(x)",
    },
    "backward_weight goes backward by autograd: write it with": {
        f"return {PAIR}": "weight, bias = (one.detach().requires_grad_() for one in (self.weight, gradient[0]))\n"
        "        return torch.autograd.grad(F.linear(x, weight, bias), (weight, bias), gradient)"
    },
    "backward_input goes backward by autograd: write it with": {
        FIRST: "x = self.x.detach().requires_grad_()\n"
        "        return torch.autograd.grad(F.linear(x, self.weight), x, gradient)[0]"
    },
    "backward_input goes backward by autograd: write it with products of matrices": {  # of one graph
        OUTPUT: "self.leaves = [one.detach().requires_grad_() for one in (x, weight, bias)]\n"
        "        self.y = F.linear(*self.leaves)\n"
        "        return self.y.detach()",
        FIRST: "return torch.autograd.grad(self.y, self.leaves[0], gradient, retain_graph=True)[0]",
        ROWS: "",
        LET_GO: "",
        f"return {PAIR}": "return torch.autograd.grad(self.y, self.leaves[1:], self.gradient)",
    },
}

# 04.9 ------------------------------------------------------------------------------------------------------------

THERE, BACK = "comm.recv(torch.empty(len(inputs), width), 0)", "comm.recv(torch.empty_like(y), 1)"
NATIVE_BACK = {
    "comm.send(x.grad, 0)": "dist.send(x.grad, 0)",
    BACK: "(dist.recv(gradient := torch.empty_like(y), 1), gradient)[1]",
}
BACKWARD, LOSS = "y.backward()", "sum(y.item() for _, y in kept)"
EACH_ALONE = "(y * total / len(x)).backward()"  # the mean of a micro-batch, without its weight


def some_at_a_time(many, half, parts, width):
    """Of 0, all rows in one piece."""
    total = sum(len(targets) for _, targets in parts)
    groups = [parts[first : first + many] for first in range(0, len(parts), many or len(parts))]
    groups = groups if many else [[tuple(map(torch.cat, zip(*parts, strict=True)))]]
    losses = [gpipe(half, group, width, weight=lambda mine, _: mine / total) for group in groups]
    return sum(losses) if dist.get_rank() == 1 else None


WRONG["04.9", "gradients"] = {
    "your gradient is exactly 4.0 x the reference: was the loss divided?": {BACKWARD: EACH_ALONE},
    "on rank 0 is exactly 1/4 of the reference: was the loss divided twice": {BACK: f"{BACK} / len(parts)"},
    "on rank 1 is exactly 4.0 x the reference: was the loss divided?": {
        BACKWARD: EACH_ALONE,
        BACK: f"{BACK} / len(parts)",
    },
    "your gradient is exactly 1/4 of the reference": {"/ total": "/ total / len(parts)"},
    "8.0 x the reference: was the loss summed over the rows, and": {" / total": ""},
    "2.0 x the reference: was the loss summed over a micro": {"/ total": "/ len(parts)"},
    "1/2 of the reference: was a mean over a micro-batch's rows divided": {"* len(targets) / total": "/ total"},
    "your gradient is 1.143 x the reference": {"/ total": "/ (total - 1)"},
    "3, 3 rows: your gradient is exactly 1/2 of the reference: divided by 4?": {"* len(targets) / total": "/ 4"},
    "3, 3 rows: your gradient is exactly 0.75 x the reference: divided by 8?": {"/ total": "/ 8"},
    "the loss on rank 1 is exactly 1/4 of that of all rows": {LOSS: f"{LOSS} / len(kept)"},
    NO_NUMBER.format("a tensor with its history"): {LOSS: "sum(y for _, y in kept)"},
    "right gradients, but the weights have changed": {
        "    return sum": "    for p in half.parameters(): p.data -= 0.1 * p.grad\n    return sum"
    },
    "right values, but nothing is in the ledger": {
        **NATIVE_BACK,
        "comm.send(y": "dist.send(y",
        THERE: "(dist.recv(x := torch.empty(len(inputs), width), 0), x)[1]",
    },
    "x.requires_grad_() comes before what is computed from x": {".requires_grad_()": ""},
    "a crash: rank 1 died": {START: "if dist.get_rank() == 1: import os; os._exit(0)"},
}
HANGS["04.9", "gradients"] = {
    "did it send as often as it is received from, and wait() for each isend?": {"comm.send(x.grad, 0)": ""}
}
WRONG["04.9", "uneven"] = {
    "the mean of the micro-batches' means: a row of number 2, the short one": {
        BACKWARD: EACH_ALONE.replace("total", "total / len(parts)")
    }
}
WRONG["04.9", "messages"] = {
    "values right, but one micro-batch after the other: rank 0 sends number 1 only": partial(some_at_a_time, 1),
    "values right, but the pipeline runs empty: rank 0 sends number 2 only when": partial(some_at_a_time, 2),
    "the ledger has no message from rank 1 to rank 0: use comm.send": NATIVE_BACK,
    "rank 0 sends rank 1 1 message of 128 bytes in all, target 4 messages of 128": partial(some_at_a_time, 0),
}

# 04.10 -----------------------------------------------------------------------------------------------------------

ADD, RETURN = "tied.grad += theirs", "    return loss"
REST, ALL = "    last =", "torch.zeros(20, 8) if tied is None else tied.grad"  # what all ranks can reduce together
HANDLES = "[comm.irecv(theirs, other), comm.isend(tied.grad, other)]"

WRONG["04.10", "gradients"] = {
    "1/2 of the reference: an average of the two copies": {ADD: "tied.grad = (tied.grad + theirs) / 2"},
    "exactly 2.0 x the reference: is it added twice?": {ADD: "tied.grad = 2 * (tied.grad + theirs)"},
    "came in, but tied.grad is what it was; what is sent": {ADD: "pass"},
    "right gradients, but the weights have changed": {
        RETURN: f"    for p in stage.parameters(): p.data -= 0.1 * p.grad\n{RETURN}"
    },
    "what comm.all_reduce returns is the sum, its input stays as it is": {
        REST: f"    comm.all_reduce({ALL})\n{RETURN}\n{REST}"
    },
    "the *weights* were written, which are equal anyway; add the gradients": {ADD: "tied.detach().copy_(tied.clone())"},
    ": the *weights* were written, which are equal anyway": {ADD: "tied.data = tied.data.clone()"},
    "right gradients, but rank 1 returned a tensor, not the loss": {RETURN: "    return torch.tensor(loss or 0.0)"},
    "embedding.weight on rank 0 holds nan, not a number: was a torch.empty(...) used before": {
        ADD: "",
        HANDLES: "[comm.irecv(theirs, other)]\n"
        "        own = tied.grad.clone()\n"
        "        tied.grad += theirs\n"
        "        dist.barrier()  # nothing can have come in before; without it, that is a matter of luck\n"
        "        handles.append(comm.isend(own, other))",
    },
}
WRONG["04.10", "bytes"] = {
    "the ledger has no message for the tied weight: use comm.isend": {
        REST: f"    dist.all_reduce({ALL})\n{RETURN}\n{REST}"
    },
    "640 bytes. All ranks take part in your all_reduce, also those without": {
        REST: f"    comm.all_reduce_({ALL})\n{RETURN}\n{REST}"
    },
}
WRONG["04.10", "edges"] = {
    "1 rank, 2 x 5 tokens: embedding.weight on rank 0 is exactly 2.0 x": {
        RETURN: f"    if last == 0: tied.grad *= 2\n{RETURN}"
    },
    "1 rank, 2 x 5 tokens: an error: ": {" and last > 0": ""},
}
HANGS["04.10", "gradients"] = {
    "a collective waits until every rank of its group has called it": {
        REST: f"    if tied is not None: comm.all_reduce_(tied.grad)\n{RETURN}\n{REST}"
    },
    "all that wait are sending, nobody receives": {"handles = [": "comm.send(tied.grad, other)\n        handles = ["},
}

# 04.11 -----------------------------------------------------------------------------------------------------------

_SUM, _SCALE = (
    'reduction="sum") / targets',
    "        scale_grads=False,  # a share of the batch's mean is no mean of its own\n",
)
WRONG["04.11", "gpipe"] = {
    "each micro-batch has its own mean, so a row counts more": {_SUM: 'reduction="mean")', _SCALE: ""},
    "the micro-batches' means are added up and not averaged": {_SUM: 'reduction="mean")'},
    "the schedule divides by it as well, unless scale_grads=False": {_SCALE: ""},
    "divided by the number of micro-batches instead of that of the targets": {_SUM: 'reduction="sum")', _SCALE: ""},
    "the losses are added up and not divided by the number of targets": {_SUM: 'reduction="sum")'},
    "a micro-batch without any target goes backward as well": {
        "        return F.cross_entropy(": (
            "        if not (y >= 0).any():\n            return torch.zeros(())\n        return F.cross_entropy("
        )
    },
    "divided by all rows of the batch, also by those without a target": {
        "targets = (y >= 0).sum()": "targets = len(y)"
    },
    "each batch is divided by the number of the first batch's targets": {
        "targets = (y >= 0).sum()": "targets = targets or (y >= 0).sum()"
    },
    "a step's gradients are added to those of the step before": {"        optimizer.zero_grad()\n": ""},
    "among the weights there is no tensor '3.0.weight'": {"for part in parts for": "for part in parts[:1] for"},
    "the weights of stage 1 are those of the start": {
        "        optimizer.step()\n": "        rank or optimizer.step()\n"
    },
    "rank 0 sends 12 messages, ": {'task["micro_batches"],': "4,"},
    "2 in flight at most; GPipe has 8": {'[task["schedule"]]': '["1F1B"]'},
}
WRONG["04.11", "1f1b"] = {
    "rank 0 sends 8 micro-batches before it asks for the first gradient, 8 in flight at most; 1F1B has 4": {
        '[task["schedule"]]': '["GPipe"]'
    },
    "0.0.weight is no multiple of the reference": {'task["optimizer"]': '"SGD"'},
}

# 04.12 -----------------------------------------------------------------------------------------------------------

_SHARE, _NO_GRAD = (
    'reduction="sum") / len(batch[1])',
    "            with torch.no_grad():\n                y = stage(x)\n",
)
_FORK = "            with torch.random.fork_rng():\n                torch.set_rng_state(state)\n                y = "
_REMEMBERING = {
    _NO_GRAD: "            y = stage(x.requires_grad_(rank > 0))\n            ys.append(y)\n",
    "dist.send(y, ": "dist.send(y.detach(), ",
    "        kept = []\n": "        kept, ys = [], []\n",
    f"        for (x, state), (_, targets) in zip(kept, parts):\n{_FORK}stage(x.requires_grad_(rank > 0))\n": (
        "        for (x, state), (_, targets), y in zip(kept, parts, ys):\n"
    ),
}
_PARTS = 'list(zip(*[rows.tensor_split(task["micro_batches"]) for rows in batch]))'
_ONE_AT_A_TIME = {
    'for batch in task["batches"]:': (
        "micro = [list(zip(*[rows.tensor_split(8) for rows in batch])) for batch in task['batches']]\n"
        "    for number, batch in enumerate(sum(micro, [])):"
    ),
    _PARTS: "[batch]",
    _SHARE: 'reduction="sum") / 44',
    "        optimizer.step()\n": "        if number % 8 < 7:\n            continue\n        optimizer.step()\n",
}
WRONG["04.12", "plain"] = {
    "each micro-batch has its own mean, so a row counts more in a short one": {
        _SHARE: 'reduction="mean") / task["micro_batches"]'
    },
    "the micro-batches' means are added up and not averaged": {_SHARE: 'reduction="mean")'},
    "the losses are added up and not divided by the rows of the batch": {_SHARE: 'reduction="sum")'},
    "too small by the number of micro-batches": {_SHARE: f'{_SHARE} / task["micro_batches"]'},
    "a step's gradients are added to those of the step before": {"        optimizer.zero_grad()\n": ""},
    "the weights of stage 0 are those of the start": {"y.backward(gradient)": "y.detach()"},
    "on rank 0 autograd keeps 6": _REMEMBERING,
    "rank 0 asks for the first gradient when it has sent 1 of 8 micro-batches": _ONE_AT_A_TIME,
    "values right, but rank 0 sends 12 messages, ": {'task["micro_batches"])': "4)"},
    "among the weights there is no tensor '3.1.weight'": {"for part in parts for": "for part in parts[:1] for"},
}
WRONG["04.12", "dropout"] = {
    "the second forward of a micro-batch draws other masks than the first": {
        _FORK: "            if True:\n                y = ",
    },
    "nothing is dropped: are the layers in eval()": {'task["dropout"])': "0.0)"},
    "all ranks draw the same numbers: add the rank to the seed": {'task["seed"] + rank': 'task["seed"]'},
    "without dropout the weights were right, so look at the masks": {'task["seed"] + rank': "rank"},
}
