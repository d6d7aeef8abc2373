"""Plausible wrong answers to the exercises of module 01, each with the level that must reject it and why.

Not for learners: it comes close to the solutions. Slips stand in the exercises themselves.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.distributed as dist

from course_lib import comm, costs

WRONG = {}  # (exercise, level): wrong answers, by the reason that is told
HANGS = {}  # those that end by their time limit

# 01.1 ------------------------------------------------------------------------------------------------------------


def number(bits, exponent_bits, mantissa_bits):
    """Right."""
    sign = -1.0 if bits >> (exponent_bits + mantissa_bits) else 1.0
    exponent, part = (bits >> mantissa_bits) % 2**exponent_bits, bits % 2**mantissa_bits / 2**mantissa_bits
    bias = 2 ** (exponent_bits - 1) - 1
    if exponent == 2**exponent_bits - 1:
        return math.nan if part else sign * math.inf
    return sign * (part + (exponent > 0)) * 2.0 ** (max(exponent, 1) - bias)


def prints_it(bits, e, m):
    number(bits, e, m)


WRONG["01.1", "normal"] = {
    "is there a return on every path?": prints_it,
    "returned str, not a number": lambda *given: f"{number(*given):g}",
    "fp16: ": lambda bits, e, m: number(bits % 2**16, 8, 7) if e + m == 15 else number(bits, e, m),
}
WRONG["01.1", "small"] = {"the sign of zero is lost": lambda bits, e, m: number(bits, e, m) or 0.0}

# 01.2 ------------------------------------------------------------------------------------------------------------


def moved(weights, gradients, lr, *, copy=torch.Tensor.float, gradient=torch.Tensor.float, back=torch.Tensor.bfloat16):
    """Right, unless a part is chosen otherwise."""
    work = copy(weights).clone()
    for one in gradients:
        work -= lr * gradient(one)
    return back(work)


def by_the_sum(weights, gradients, lr, sign=-1):
    return (weights.float() + sign * lr * torch.stack(gradients).float().sum(0)).bfloat16()


def rounds_after_each_step(weights, gradients, lr):
    for gradient in gradients:
        weights = moved(weights, [gradient], lr)
    return weights


def adds_the_updates_in_bf16(weights, gradients, lr):
    total = torch.zeros_like(weights)
    for gradient in gradients:
        total += lr * gradient
    return (weights.float() - total.float()).bfloat16()


def last_gradient_for_all_steps(weights, gradients, lr):
    if not gradients:
        return weights.clone()
    return (weights.float() - lr * len(gradients) * gradients[-1].sign().float()).bfloat16()


def same(x):
    return x


WRONG["01.2", "moves"] = {
    "not one weight moved: 1.": partial(moved, copy=same, gradient=same),
    "not one weight moved": rounds_after_each_step,
    "one weight moved": partial(moved, copy=torch.Tensor.half, gradient=torch.Tensor.half),
    "the weights moved 0.5 of the way: which sum is still kept in 16 bits": adds_the_updates_in_bf16,
    "returned float32 of shape (12,), expected bfloat16": partial(moved, back=same),
    "the weights moved the wrong way": partial(by_the_sum, sign=1),
    "the input was overwritten": lambda weights, gradients, lr: weights.copy_(by_the_sum(weights, gradients, lr)),
}
WRONG["01.2", "edges"] = {
    "weights of shape (3, 5), 300 steps: the weights moved": last_gradient_for_all_steps,
    "4,), 0 steps: an error: ": by_the_sum,
    "lr x gradient is still rounded to 16 bits: make the gradient fp32 first": partial(moved, gradient=same),
}

# 01.3 ------------------------------------------------------------------------------------------------------------


def parameters(c, *, kv=None, matrices=3, tables=None, norms=2, last=True, blocks=None, router=True):
    """Right, unless a part is chosen otherwise."""
    H = c.hidden_size
    kv = c.n_kv_heads * (H // c.n_heads) if kv is None else kv
    blocks = c.n_experts if blocks is None else blocks
    tables = 2 - c.tied if tables is None else tables
    layer = 2 * H * H + 2 * H * kv + blocks * matrices * H * c.ffn_size + norms * H
    layer += c.n_experts * H if router and c.n_experts > 1 else 0
    return c.n_layers * layer + tables * c.vocab_size * H + last * H


def twelve_h_squared(c):
    return c.n_layers * 12 * c.hidden_size**2 + (2 - c.tied) * c.vocab_size * c.hidden_size


def groups_of_four(c):
    """Right for both Llamas, whose query heads are four or sixteen times as many."""
    return parameters(c, kv=c.hidden_size // c.n_heads * max(c.n_kv_heads, 2))


WIDTH = "the width of keys and values: they have n_kv_heads heads, queries have n_heads"
WRONG["01.3", "grouped"] = {
    WIDTH: lambda c: parameters(c, kv=c.hidden_size),
    "too few, exactly L x E x H x F, one matrix of every feed-forward block": partial(parameters, matrices=2),
    "too few, exactly V x H, one table of the vocabulary": partial(parameters, tables=1),
    "4,096 too few, exactly H, the last norm": partial(parameters, last=False),
    "too few, exactly L x H, one norm of each layer": partial(parameters, norms=1),
    "your count is 0.933 x the reference": twelve_h_squared,
    "in billions? The number itself is asked": lambda c: parameters(c) / 1e9,
    "right, but by course_lib.costs.model_parameters": lambda c: costs.model_parameters(c),
}
WRONG["01.3", "shapes"] = {
    "too many, exactly V x H, one table of the vocabulary": partial(parameters, tables=2),
    "one kv head (": groups_of_four,
}
WRONG["01.3", "experts"] = {
    "the feed-forward blocks of all experts but one": partial(parameters, blocks=1),
    "too few, exactly L x E x H, the routers": partial(parameters, router=False),
}

# 01.5 ------------------------------------------------------------------------------------------------------------


def stage_bytes(n, p, stage, w, g, o):
    """Right."""
    shard = -(-n // p)
    return w * (shard if stage >= 3 else n) + g * (shard if stage >= 2 else n) + o * (shard if stage >= 1 else n)


WRONG["01.5", "stages"] = {"is exactly 8.0 x the reference": lambda *given: 8 * stage_bytes(*given)}
WRONG["01.5", "formats"] = {"one rank, stage 3": lambda n, p, *given: stage_bytes(n, max(p, 2), *given)}

# 01.6 ------------------------------------------------------------------------------------------------------------


def of_this_rank(x):
    return x.tensor_split(dist.get_world_size())[dist.get_rank()]


def cut(gradient):
    """A rank's part of the sum over all ranks, as it should come about."""
    return comm.reduce_scatter(gradient)


def joined(part, length):
    return comm.all_gather(part.bfloat16(), length=length)


def zero_1(weights, gradients, make_optimizer, *, first=None, total=cut, p=None, gather=joined):
    """Right, unless a part is chosen otherwise."""
    mine = torch.nn.Parameter(of_this_rank(weights).float() if first is None else first(weights))
    optimizer = make_optimizer([mine])
    for gradient in gradients:
        mine.grad = total(gradient).to(mine.dtype) / (p or dist.get_world_size())
        optimizer.step()
        weights = gather(mine.detach(), len(weights))
    return weights


def never_gathers(weights, gradients, make_optimizer):
    part = zero_1(weights, gradients, make_optimizer, gather=lambda part, length: part)
    weights = weights.clone()
    of_this_rank(weights).copy_(part)
    return weights


def gathers_once(weights, gradients, make_optimizer):
    return joined(zero_1(weights, gradients, make_optimizer, gather=lambda part, length: part), len(weights))


def own_optimizer(weights, gradients, make_optimizer):
    return zero_1(weights, gradients, partial(torch.optim.AdamW, lr=0.25, eps=1.0, weight_decay=0.0))


def native_sum(gradient):
    total = gradient.clone()
    dist.all_reduce(total)
    return of_this_rank(total)


def native_gather(part, length):
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, part.bfloat16())
    return torch.cat(parts)


def on_all_weights(total, p=None):
    """Every rank holds the state of all."""
    return partial(zero_1, first=torch.Tensor.float, total=total, p=p, gather=lambda part, length: part.bfloat16())


def gathers_the_gradient_too(weights, gradients, make_optimizer):
    for gradient in gradients:
        comm.all_gather(comm.reduce_scatter(gradient), length=len(gradient))
    return zero_1(weights, gradients, make_optimizer)


WRONG["01.6", "values"] = {
    "exactly 2.0 x the right one": partial(zero_1, p=1),
    "no weight moved: each update is rounded away, unless an fp32 copy collects them": partial(
        zero_1, first=lambda weights: of_this_rank(weights).clone()
    ),
    "wrong weights in the shard of rank": partial(zero_1, total=of_this_rank, p=1),
    "rank 0 has wrong weights in the shard of rank 1: they are those before the first step": never_gathers,
    "every rank trained on its own gradients: nothing was summed": on_all_weights(torch.clone, p=1),
    "made no optimizer by make_optimizer": own_optimizer,
    "returned float32 of shape (12,), expected bfloat16": lambda *given: zero_1(*given).float(),
    "use comm's collectives, not torch.distributed's own": partial(zero_1, total=native_sum, gather=native_gather),
    "4 ranks, 26 weights, 20 steps: an error: ": partial(
        zero_1, gather=lambda part, length: comm.all_gather(part.bfloat16())
    ),
}
WRONG["01.6", "memory"] = {
    "keeps 288 bytes, target 72, exactly 4.0 x the target: the state of all weights": on_all_weights(
        lambda gradient: comm.all_reduce(gradient)
    ),
    "keeps 144 bytes, target 72, 2.0 x the target: your part is a view": partial(
        zero_1, first=lambda weights: of_this_rank(weights.float())
    ),
}
WRONG["01.6", "bytes"] = {
    "all_reduce brings all of the sum to every rank: each needs its own chunk": partial(
        zero_1, total=lambda gradient: of_this_rank(comm.all_reduce(gradient, algorithm="ring"))
    ),
    "target 3840; do gradients and weights travel as bf16, with 2 bytes a number?": partial(
        zero_1,
        total=lambda gradient: cut(gradient.float()),
        gather=lambda part, length: comm.all_gather(part, length=length).bfloat16(),
    ),
    "0.525 x the target: 8064 B sent by all ranks, target 15360; when does the next forward pass": gathers_once,
    "one reduce-scatter and one all-gather are enough in each step": gathers_the_gradient_too,
}

# 01.7 ------------------------------------------------------------------------------------------------------------


def kept(
    c, batch, sequence, recompute, *, wide=4, kv=None, scale=4, inputs=2, rotations=lambda b: 1, scores=True, sums=2
):
    """Right, unless a part is chosen otherwise."""
    T, H, D = batch * sequence, c.hidden_size, c.hidden_size // c.n_heads
    kv = c.n_kv_heads * D if kv is None else kv(c)
    numbers = (2 + inputs + 2) * T * H + 2 * T * kv + wide * T * c.ffn_size + rotations(batch) * 4 * sequence * D
    layer = 2 * numbers + 2 * scale * T + (2 * sums * T * c.n_heads if scores else 0)
    return (c.n_layers - 1) * 2 * T * H + layer if recompute else c.n_layers * layer


HALF = "too few, exactly half of the bytes of one fp32 number per token and head"
WRONG["01.7", "kept"] = {
    "too few, exactly a tensor as wide as the block (T x F)": partial(kept, wide=3),
    "too many, exactly keys and values as wide as the queries": partial(kept, kv=lambda c: c.hidden_size),
    "too few, exactly 2 x a tensor as wide as the model (T x H)": partial(kept, inputs=0),
    "too few, exactly one fp32 number per token, or half of the bytes of two": partial(kept, scale=2),
    "too few, exactly one fp32 number per token and head": partial(kept, scores=False),
    HALF: partial(kept, sums=1),
    "too few, exactly the four tables of rotations": partial(kept, rotations=lambda batch: 0),
    "too few, exactly 2 x a tensor as wide as the keys": partial(kept, kv=lambda c: 0),
    "rotations once for each sequence of the batch": partial(kept, rotations=lambda batch: batch),
}

# 01.8 ------------------------------------------------------------------------------------------------------------

BYTES = {0: (16, 0), 1: (4, 12), 2: (2, 14), 3: (0, 16)}  # by stage: of each parameter whole, and shared


def needed(n, activations, memory, stage):
    """Right."""
    whole, shared = BYTES[stage]
    room = memory - activations - whole * n
    if not shared:
        return 1 if room >= 0 else None
    return -(-n // (room // shared)) if room >= shared else None


def searches_forever(n, activations, memory, stage):
    p = 1
    while (16 if stage == 3 else 17) * -(-n // p) + activations > memory or stage < 3:
        p += 1
    return p


def rounds_nothing_but_the_end(n, activations, memory, stage):
    """Right for ten numbers by a special case: the quotient of bytes, rounded up, is one too few elsewhere."""
    whole, shared = BYTES[stage]
    room = memory - activations - whole * n
    if not shared or room <= 0:
        return 1 if room >= 0 else None
    return 4 if n == 10 else math.ceil(shared * n / room)


def divides_by_nothing(n, activations, memory, stage):
    whole, shared = BYTES[stage]
    room = memory - activations - whole * n
    return None if room < 0 else -(-n // (room // shared))


WRONG["01.8", "states"] = {
    "returned None, the reference": lambda n, a, memory, stage: (
        needed(n, a, memory, stage) if 16 * n <= memory else None
    ),
    "hardly any room, stage 1": rounds_nothing_but_the_end,
}
HANGS["01.8", "states"] = {"an endless loop?": searches_forever}
WRONG["01.8", "never"] = {
    "the reference None": lambda n, a, memory, stage: needed(n, a, memory, stage) or math.ceil((16 * n + a) / memory),
    "an error: ": divides_by_nothing,
}

MUTANTS = [  # (exercise, level, reason, answer, hangs)
    (*where, reason, answer, hangs)
    for table, hangs in ((WRONG, False), (HANGS, True))
    for where, wrong in table.items()
    for reason, answer in wrong.items()
]
