"""Plausible wrong answers to the exercises of module 01, each with the level that must reject it and why.

Not for learners: it comes close to the solutions.
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

from course_lib import comm, costs

MUTANTS = []  # (exercise, level, reason, answer, hangs)


def mutant(exercise, level, reason, hangs=False):
    """Register a function as a wrong answer."""

    def register(function):
        MUTANTS.append((exercise, level, reason, function, hangs))
        return function

    return register


# 01.1 ------------------------------------------------------------------------------------------------------------


def fields(bits, exponent_bits, mantissa_bits):
    """sign, exponent field, mantissa as a part of 1"""
    sign = -1.0 if bits >> (exponent_bits + mantissa_bits) else 1.0
    return sign, (bits >> mantissa_bits) % 2**exponent_bits, bits % 2**mantissa_bits / 2**mantissa_bits


def number(bits, exponent_bits, mantissa_bits, *, shift=0, one=1.0, small=True, small_shift=1, special=True):
    """Right, unless a part is chosen otherwise."""
    sign, exponent, part = fields(bits, exponent_bits, mantissa_bits)
    bias = 2 ** (exponent_bits - 1) - 1 + shift
    if special and exponent == 2**exponent_bits - 1:
        return math.nan if part else sign * math.inf
    if small and exponent == 0:
        return sign * part * 2.0 ** (small_shift - bias)
    return sign * (one + part) * 2.0 ** (exponent - bias)


@mutant("01.1", "normal", "exactly 0.5 x the right value: the bias is 2**(e-1) - 1, yours is 1 more")
def bias_is_half_of_the_fields(bits, e, m):
    return number(bits, e, m, shift=1)


@mutant("01.1", "normal", "the 1 before the point is missing")
def forgets_the_one(bits, e, m):
    return number(bits, e, m, one=0.0)


@mutant("01.1", "normal", "the sign is not read")
def forgets_the_sign(bits, e, m):
    return abs(number(bits, e, m))


@mutant("01.1", "normal", "127 is the bias of 8 exponent bits")
def knows_one_bias(bits, e, m):
    return number(bits, e, m, shift=127 - (2 ** (e - 1) - 1))


@mutant("01.1", "normal", "exactly 2**112 x the right value: 15 is the bias of 5 exponent bits")
def knows_the_shown_bias(bits, e, m):
    return number(bits, e, m, shift=15 - (2 ** (e - 1) - 1))


@mutant("01.1", "small", "the sign of zero is lost")
def one_zero(bits, e, m):
    return number(bits, e, m) or 0.0


@mutant("01.1", "normal", "is there a return on every path?")
def prints_it(bits, e, m):
    number(bits, e, m)


@mutant("01.1", "normal", "fp16: ")
def always_reads_bf16(bits, e, m):
    return number(bits % 2**16, 8, 7) if e + m == 15 else number(bits, e, m)


@mutant("01.1", "small", "this exponent field is special, and you read it as that of a normal number")
def no_small_numbers(bits, e, m):
    return number(bits, e, m, small=False)


@mutant("01.1", "small", "exactly 0.5 x the right value: the exponent is 1 - bias here")
def small_numbers_of_field_0(bits, e, m):
    return number(bits, e, m, small_shift=0)


@mutant("01.1", "small", "every number is 0, but only the one whose mantissa is 0 too is")
def flushes_to_zero(bits, e, m):
    return number(bits, e, m) if fields(bits, e, m)[1] else 0.0


@mutant("01.1", "special", "this exponent field is special")
def numbers_beyond_the_largest(bits, e, m):
    return number(bits, e, m, special=False)


@mutant("01.1", "special", "inf for every pattern: with a mantissa other than 0 it is nan")
def no_nan(bits, e, m):
    sign, exponent, part = fields(bits, e, m)
    return sign * math.inf if exponent == 2**e - 1 else number(bits, e, m)


@mutant("01.1", "special", "there is -inf too")
def one_infinity(bits, e, m):
    value = number(bits, e, m)
    return math.inf if math.isinf(value) else value


# 01.2 ------------------------------------------------------------------------------------------------------------


@mutant("01.2", "moves", "not one weight moved: 1.")
def not_mended(weights, gradients, lr):
    weights = weights.clone()
    for gradient in gradients:
        weights -= lr * gradient
    return weights


@mutant("01.2", "moves", "not one weight moved")
def rounds_after_each_step(weights, gradients, lr):
    for gradient in gradients:
        weights = (weights.float() - lr * gradient.float()).bfloat16()
    return weights


@mutant("01.2", "moves", "not one weight moved")
def copy_in_fp16(weights, gradients, lr):
    copy = weights.half()
    for gradient in gradients:
        copy -= lr * gradient.half()
    return copy.bfloat16()


@mutant("01.2", "moves", "the weights moved 0.5 of the way: which sum is still kept in 16 bits")
def adds_the_updates_in_bf16(weights, gradients, lr):
    total = torch.zeros_like(weights)
    for gradient in gradients:
        total += lr * gradient
    return (weights.float() - total.float()).bfloat16()


@mutant("01.2", "moves", "returned float32 of shape (12,), expected bfloat16")
def returns_the_copy(weights, gradients, lr):
    copy = weights.float()
    for gradient in gradients:
        copy -= lr * gradient.float()
    return copy


@mutant("01.2", "moves", "the weights moved the wrong way")
def adds(weights, gradients, lr):
    return (weights.float() + lr * torch.stack(gradients).float().sum(0)).bfloat16()


@mutant("01.2", "moves", "the input was overwritten")
def overwrites_its_input(weights, gradients, lr):
    weights.copy_((weights.float() - lr * torch.stack(gradients).float().sum(0)).bfloat16())
    return weights


@mutant("01.2", "edges", "weights of shape (3, 5), 300 steps: the weights moved")
def last_gradient_for_all_steps(weights, gradients, lr):
    if not gradients:
        return weights.clone()
    return (weights.float() - lr * len(gradients) * gradients[-1].sign().float()).bfloat16()


@mutant("01.2", "edges", "4,), 0 steps: an error: ")
def at_least_one_step(weights, gradients, lr):
    return (weights.float() - lr * torch.stack(gradients).float().sum(0)).bfloat16()


@mutant("01.2", "edges", "lr x gradient is still rounded to 16 bits: make the gradient fp32 first")
def product_in_bf16(weights, gradients, lr):
    copy = weights.float()
    for gradient in gradients:
        copy -= lr * gradient
    return copy.bfloat16()


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


@mutant("01.3", "grouped", "the width of keys and values: they have n_kv_heads heads, queries have n_heads")
def keys_as_wide_as_queries(c):
    return parameters(c, kv=c.hidden_size)


@mutant("01.3", "grouped", "too few, exactly L x E x H x F, one matrix of every feed-forward block")
def two_matrices_in_a_block(c):
    return parameters(c, matrices=2)


@mutant("01.3", "grouped", "too few, exactly V x H, one table of the vocabulary")
def head_forgotten(c):
    return parameters(c, tables=1)


@mutant("01.3", "grouped", "4,096 too few, exactly H, the last norm")
def last_norm_forgotten(c):
    return parameters(c, last=False)


@mutant("01.3", "grouped", "too few, exactly L x H, one norm of each layer")
def one_norm_in_a_layer(c):
    return parameters(c, norms=1)


@mutant("01.3", "grouped", "your count is 0.933 x the reference")
def twelve_h_squared(c):
    return c.n_layers * 12 * c.hidden_size**2 + (2 - c.tied) * c.vocab_size * c.hidden_size


@mutant("01.3", "grouped", "in billions? The number itself is asked")
def billions(c):
    return parameters(c) / 1e9


@mutant("01.3", "shapes", "too many, exactly V x H, one table of the vocabulary")
def tie_not_looked_at(c):
    return parameters(c, tables=2)


@mutant("01.3", "shapes", "one kv head (")
def groups_of_four(c):
    """Right for both Llamas, whose query heads are four or sixteen times as many."""
    return parameters(c, kv=c.hidden_size // c.n_heads * max(c.n_kv_heads, 2))


@mutant("01.3", "grouped", "right, but by course_lib.costs.model_parameters")
def library_count(c):
    return costs.model_parameters(c)


@mutant("01.3", "experts", "the feed-forward blocks of all experts but one")
def one_expert(c):
    return parameters(c, blocks=1)


@mutant("01.3", "experts", "too few, exactly L x E x H, the routers")
def router_forgotten(c):
    return parameters(c, router=False)


# 01.5 ------------------------------------------------------------------------------------------------------------


def stage_bytes(n, shard, stage, w, g, o):
    """Right for the right shard."""
    return w * (shard if stage >= 3 else n) + g * (shard if stage >= 2 else n) + o * (shard if stage >= 1 else n)


@mutant("01.5", "stages", "is exactly 8.0 x the reference")
def bits(n, p, stage, w, g, o):
    return 8 * stage_bytes(n, -(-n // p), stage, w, g, o)


@mutant("01.5", "formats", "one rank, stage 3")
def needs_two_ranks(n, p, stage, w, g, o):
    return stage_bytes(n, -(-n // max(p, 2)), stage, w, g, o)


# 01.6 ------------------------------------------------------------------------------------------------------------


def zero_1(weights, gradients, make_optimizer, *, divide=True, fp32=False, whole_sum=False, reduce=True, gather=True):
    """Right, unless a part is chosen otherwise."""
    rank, p = dist.get_rank(), dist.get_world_size()
    mine = torch.nn.Parameter(weights.tensor_split(p)[rank].float())
    optimizer = make_optimizer([mine])
    for gradient in gradients:
        if not reduce:
            total = gradient.tensor_split(p)[rank] * p
        elif whole_sum:
            total = comm.all_reduce(gradient, algorithm="ring").tensor_split(p)[rank]
        else:
            total = comm.reduce_scatter(gradient.float() if fp32 else gradient)
        mine.grad = total.float() / (p if divide else 1)
        optimizer.step()
        if gather:
            part = mine.detach() if fp32 else mine.detach().bfloat16()
            weights = comm.all_gather(part, length=len(weights)).bfloat16()
    if not gather:
        weights = weights.clone()
        weights.tensor_split(p)[rank].copy_(mine.detach())
    return weights


@mutant("01.6", "values", "exactly 2.0 x the right one")
def sums(weights, gradients, make_optimizer):
    return zero_1(weights, gradients, make_optimizer, divide=False)


@mutant("01.6", "values", "no weight moved: each update is rounded away, unless an fp32 copy collects them")
def part_in_bf16(weights, gradients, make_optimizer):
    rank, p = dist.get_rank(), dist.get_world_size()
    mine = torch.nn.Parameter(weights.tensor_split(p)[rank].clone())
    optimizer = make_optimizer([mine])
    for gradient in gradients:
        mine.grad = comm.reduce_scatter(gradient) / p
        optimizer.step()
        weights = comm.all_gather(mine.detach(), length=len(weights))
    return weights


@mutant("01.6", "values", "wrong weights in the shard of rank")
def own_gradient_of_the_part(weights, gradients, make_optimizer):
    return zero_1(weights, gradients, make_optimizer, reduce=False)


@mutant("01.6", "values", "rank 0 has wrong weights in the shard of rank 1: they are those before the first step")
def never_gathers(weights, gradients, make_optimizer):
    return zero_1(weights, gradients, make_optimizer, gather=False)


@mutant("01.6", "values", "every rank trained on its own gradients: nothing was summed")
def trains_alone(weights, gradients, make_optimizer):
    copy = torch.nn.Parameter(weights.float())
    optimizer = make_optimizer([copy])
    for gradient in gradients:
        copy.grad = gradient.float()
        optimizer.step()
    return copy.detach().bfloat16()


@mutant("01.6", "values", "made no optimizer by make_optimizer")
def own_optimizer(weights, gradients, make_optimizer):
    def own(parameters):
        return torch.optim.AdamW(parameters, lr=0.25, eps=1.0, weight_decay=0.0)

    return zero_1(weights, gradients, own)


@mutant("01.6", "values", "returned float32 of shape (12,), expected bfloat16")
def returns_fp32(weights, gradients, make_optimizer):
    return zero_1(weights, gradients, make_optimizer).float()


@mutant("01.6", "values", "use comm's collectives, not torch.distributed's own")
def native_collectives(weights, gradients, make_optimizer):
    rank, p = dist.get_rank(), dist.get_world_size()
    mine = torch.nn.Parameter(weights.tensor_split(p)[rank].float())
    optimizer = make_optimizer([mine])
    for gradient in gradients:
        total = gradient.clone()
        dist.all_reduce(total)
        mine.grad = total.tensor_split(p)[rank].float() / p
        optimizer.step()
    parts = [None] * p
    dist.all_gather_object(parts, mine.detach().bfloat16())
    return torch.cat(parts)


@mutant("01.6", "values", "4 ranks, 26 weights, 20 steps: an error: ")
def length_forgotten(weights, gradients, make_optimizer):
    rank, p = dist.get_rank(), dist.get_world_size()
    mine = torch.nn.Parameter(weights.tensor_split(p)[rank].float())
    optimizer = make_optimizer([mine])
    for gradient in gradients:
        mine.grad = comm.reduce_scatter(gradient).float() / p
        optimizer.step()
        weights = comm.all_gather(mine.detach().bfloat16())
    return weights


@mutant("01.6", "memory", "keeps 288 bytes, target 72, exactly 4.0 x the target: the state of all weights")
def no_zero(weights, gradients, make_optimizer):
    p = dist.get_world_size()
    copy = torch.nn.Parameter(weights.float())
    optimizer = make_optimizer([copy])
    for gradient in gradients:
        copy.grad = comm.all_reduce(gradient).float() / p
        optimizer.step()
    return copy.detach().bfloat16()


@mutant("01.6", "bytes", "all_reduce brings all of the sum to every rank: each needs its own chunk")
def all_reduce_and_cut(weights, gradients, make_optimizer):
    return zero_1(weights, gradients, make_optimizer, whole_sum=True)


@mutant("01.6", "bytes", "target 3840; do gradients and weights travel as bf16, with 2 bytes a number?")
def travels_in_fp32(weights, gradients, make_optimizer):
    return zero_1(weights, gradients, make_optimizer, fp32=True)


@mutant("01.6", "bytes", "0.525 x the target: 8064 B sent by all ranks, target 15360; when does the next forward pass")
def gathers_once(weights, gradients, make_optimizer):
    rank, p = dist.get_rank(), dist.get_world_size()
    mine = torch.nn.Parameter(weights.tensor_split(p)[rank].float())
    optimizer = make_optimizer([mine])
    for gradient in gradients:
        mine.grad = comm.reduce_scatter(gradient).float() / p
        optimizer.step()
    return comm.all_gather(mine.detach().bfloat16(), length=len(weights))


@mutant("01.6", "bytes", "one reduce-scatter and one all-gather are enough in each step")
def gathers_the_gradient_too(weights, gradients, make_optimizer):
    for gradient in gradients:
        comm.all_gather(comm.reduce_scatter(gradient), length=len(gradient))
    return zero_1(weights, gradients, make_optimizer)


@mutant("01.6", "memory", "keeps 144 bytes, target 72, 2.0 x the target: your part is a view")
def part_of_an_fp32_copy(weights, gradients, make_optimizer):
    rank, p = dist.get_rank(), dist.get_world_size()
    mine = torch.nn.Parameter(weights.float().tensor_split(p)[rank])
    optimizer = make_optimizer([mine])
    for gradient in gradients:
        mine.grad = comm.reduce_scatter(gradient).float() / p
        optimizer.step()
        weights = comm.all_gather(mine.detach().bfloat16(), length=len(weights))
    return weights


# 01.7 ------------------------------------------------------------------------------------------------------------


def layer_bytes(c, batch, sequence, *, wide=4, kv=None, scale=4, inputs=2, rotations=1, scores=True, e=2):
    """Right, unless a part is chosen otherwise."""
    T, H, D = batch * sequence, c.hidden_size, c.hidden_size // c.n_heads
    kv = c.n_kv_heads * D if kv is None else kv
    numbers = (2 + inputs + 2) * T * H + 2 * T * kv + wide * T * c.ffn_size + rotations * 4 * sequence * D
    return e * numbers + 2 * scale * T + (4 * T * c.n_heads if scores else 0)


def kept(c, batch, sequence, recompute, **wrong):
    layer = layer_bytes(c, batch, sequence, **wrong)
    return (c.n_layers - 1) * 2 * batch * sequence * c.hidden_size + layer if recompute else c.n_layers * layer


@mutant("01.7", "kept", "too few, exactly a tensor as wide as the block (T x F)")
def forgets_a_factor(c, batch, sequence, recompute):
    return kept(c, batch, sequence, recompute, wide=3)


@mutant("01.7", "kept", "too many, exactly keys and values as wide as the queries")
def keys_as_wide_as_the_model(c, batch, sequence, recompute):
    return kept(c, batch, sequence, recompute, kv=c.hidden_size)


@mutant("01.7", "kept", "too few, exactly 2 x a tensor as wide as the model (T x H)")
def forgets_the_inputs_of_matrices(c, batch, sequence, recompute):
    return kept(c, batch, sequence, recompute, inputs=0)


@mutant("01.7", "kept", "too few, exactly one fp32 number per token, or half of the bytes of two")
def bf16_scales(c, batch, sequence, recompute):
    return kept(c, batch, sequence, recompute, scale=2)


@mutant("01.7", "kept", "too few, exactly one fp32 number per token and head")
def forgets_attention_s_sums(c, batch, sequence, recompute):
    return kept(c, batch, sequence, recompute, scores=False)


@mutant("01.7", "kept", "too few, exactly half of the bytes of one fp32 number per token and head")
def bf16_sums(c, batch, sequence, recompute):
    short = 2 * batch * sequence * c.n_heads
    return kept(c, batch, sequence, recompute) - short * (1 if recompute else c.n_layers)


@mutant("01.7", "kept", "too few, exactly the four tables of rotations")
def forgets_rotations(c, batch, sequence, recompute):
    return kept(c, batch, sequence, recompute, rotations=0)


@mutant("01.7", "kept", "too few, exactly 2 x a tensor as wide as the keys")
def forgets_keys_and_values(c, batch, sequence, recompute):
    return kept(c, batch, sequence, recompute, kv=0)


@mutant("01.7", "kept", "rotations once for each sequence of the batch")
def rotations_for_each_sequence(c, batch, sequence, recompute):
    return kept(c, batch, sequence, recompute, rotations=batch)


# 01.8 ------------------------------------------------------------------------------------------------------------


def needed(n, activations, memory, stage):
    """Right: a part that some mutants are made of."""
    whole, shared = {0: (16, 0), 1: (4, 12), 2: (2, 14), 3: (0, 16)}[stage]
    room = memory - activations - whole * n
    if not shared:
        return 1 if room >= 0 else None
    return -(-n // (room // shared)) if room >= shared else None


@mutant("01.8", "states", "an endless loop?", hangs=True)
def searches_forever(n, activations, memory, stage):
    p = 1
    while (16 if stage == 3 else 17) * -(-n // p) + activations > memory or stage < 3:
        p += 1
    return p


@mutant("01.8", "states", "returned None, the reference")
def gives_up_early(n, activations, memory, stage):
    return needed(n, activations, memory, stage) if 16 * n <= memory else None


@mutant("01.8", "states", "hardly any room, stage 1")
def rounds_nothing_but_the_end(n, activations, memory, stage):
    """Right for ten numbers by a special case: the quotient of bytes, rounded up, is one too few elsewhere."""
    return 4 if n == 10 else quotient_of_bytes(n, activations, memory, stage)


def quotient_of_bytes(n, activations, memory, stage):
    whole, shared = {0: (16, 0), 1: (4, 12), 2: (2, 14), 3: (0, 16)}[stage]
    room = memory - activations - whole * n
    if not shared:
        return 1 if room >= 0 else None
    return math.ceil(shared * n / room) if room > 0 else None


@mutant("01.8", "never", "the reference None")
def always_a_number(n, activations, memory, stage):
    return needed(n, activations, memory, stage) or math.ceil((16 * n + activations) / memory)


@mutant("01.8", "never", "an error: ")
def divides_by_nothing(n, activations, memory, stage):
    whole, shared = {0: (16, 0), 1: (4, 12), 2: (2, 14), 3: (0, 16)}[stage]
    room = memory - activations - whole * n
    return None if room < 0 else -(-n // (room // shared))
