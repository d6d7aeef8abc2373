"""Plausible wrong answers to the exercises of module 01, each with the level that must reject it and why.

A dict is an edit: the exercise's solution, with pieces of its text changed. Not for learners: it comes close to the
solutions. Slips stand in the exercises themselves.
"""

from __future__ import annotations

from course_lib import costs

WRONG = {}  # (exercise, level): wrong answers, by the reason that is told
HANGS = {}  # those that end by their time limit
START = "### BEGIN SOLUTION"  # in its place stands a line that comes first

# 01.1 ------------------------------------------------------------------------------------------------------------

WRONG["01.1", "normal"] = {
    "is there a return on every path?": {"return ": ""},
    "returned str, not a number": {
        "return sign * (1": "return str(sign * (1",
        "(exponent - bias)": "(exponent - bias))",
    },
    "fp16: ": {START: "if mantissa_bits == 10: exponent_bits, mantissa_bits = 8, 7"},
}
WRONG["01.1", "small"] = {"the sign of zero is lost": {"(1 - bias)": "(1 - bias) or 0.0"}}

# 01.2 ------------------------------------------------------------------------------------------------------------

WRONG["01.2", "moves"] = {
    "not one weight moved: 1.": {"weights.float()": "weights.clone()", "gradient.float()": "gradient"},
    "not one weight moved": {"gradient.float()": "gradient.float()\n        copy = copy.bfloat16().float()"},
    "one weight moved": {"weights.float()": "weights.half()", "gradient.float()": "gradient.half()"},
    "the weights moved 0.5 of the way: which sum is still kept in 16 bits": {
        "copy = weights.float()": "copy = torch.zeros_like(weights)",
        "-= lr * gradient.float()": "+= lr * gradient",
        "return copy": "return (weights.float() - copy.float())",
    },
    "returned float32 of shape (12,), expected bfloat16": {"copy.bfloat16()": "copy"},
    "the weights moved the wrong way": {"-=": "+="},
    "right, but `weights` is overwritten, and another part of the program may still need it: work on a copy": {
        "copy.bfloat16()": "weights.copy_(copy)"
    },
}
WRONG["01.2", "edges"] = {
    "weights of shape (3, 5), 300 steps: the weights moved": {"gradient.float()": "gradients[-1].sign().float()"},
    "4,), 0 steps: an error: ": {
        "for gradient in gradients:": "if True:",
        "gradient.float()": "torch.stack(gradients).float().sum(0)",
    },
    "lr x gradient is still rounded to 16 bits: make the gradient fp32 first": {"gradient.float()": "gradient"},
}

# 01.3 ------------------------------------------------------------------------------------------------------------

WIDTH = "the width of keys and values: they have n_kv_heads heads, queries have n_heads"
WRONG["01.3", "grouped"] = {
    WIDTH: {"2 * H * kv": "2 * H * H"},
    "too few, exactly L x E x H x F, one matrix of every feed-forward block": {"3 * H": "2 * H"},
    "too few, exactly V x H, one table of the vocabulary": {"else 2)": "else 1)"},
    "4,096 too few, exactly H, the last norm": {"tables + H": "tables"},
    "too few, exactly L x H, one norm of each layer": {"router + 2 * H": "router + H"},
    "your count is 0.933 x the reference": {"(attention + blocks + router + 2 * H) + tables + H": "12 * H**2 + tables"},
    "in billions? The number itself is asked": {"return ": "return 1e-9 * (", "tables + H": "tables + H)"},
    "right, but by course_lib.costs.model_parameters": lambda c: costs.model_parameters(c),
}
WRONG["01.3", "shapes"] = {
    "too many, exactly V x H, one table of the vocabulary": {"(1 if c.tied else 2)": "2"},
    "one kv head (": {"c.n_kv_heads *": "max(c.n_kv_heads, 2) *"},  # right for both Llamas
}
WRONG["01.3", "experts"] = {
    "the feed-forward blocks of all experts but one": {"c.n_experts * 3": "3"},
    "too few, exactly L x E x H, the routers": {"blocks + router": "blocks"},
}

# 01.5 ------------------------------------------------------------------------------------------------------------

WRONG["01.5", "stages"] = {"is exactly 8.0 x the reference": {"return (": "return 8 * ("}}
WRONG["01.5", "formats"] = {"one rank, stage 3": {"// ranks": "// max(ranks, 2)"}}

# 01.6 ------------------------------------------------------------------------------------------------------------

CUT = "weights.tensor_split(p)[rank].float()"
SUM = "comm.reduce_scatter(gradient)"
JOINED = "comm.all_gather(mine.detach().bfloat16(), length=len(weights))"
ON_ALL_WEIGHTS = {CUT: "weights.float()", JOINED: "mine.detach().bfloat16()"}  # every rank holds the state of all

WRONG["01.6", "values"] = {
    "exactly 2.0 x the right one": {" / p": ""},
    "no weight moved: each update is rounded away, unless an fp32 copy collects them": {
        CUT: "weights.tensor_split(p)[rank].clone()",
        f"{SUM}.float()": SUM,
    },
    "wrong weights in the shard of rank": {f"{SUM}.float() / p": "gradient.tensor_split(p)[rank].float()"},
    "rank 0 has wrong weights in the shard of rank 1: they are those before the first step": {
        JOINED: "weights.clone()\n        weights.tensor_split(p)[rank].copy_(mine.detach())"
    },
    "every rank trained on its own gradients: nothing was summed": {
        f"{SUM}.float() / p": "gradient.float()",
        **ON_ALL_WEIGHTS,
    },
    "made no optimizer by make_optimizer": {
        "make_optimizer([mine])": "torch.optim.AdamW([mine], lr=0.25, eps=1.0, weight_decay=0.0)"
    },
    "returned float32 of shape (12,), expected bfloat16": {"return weights": "return weights.float()"},
    "use comm's collectives, not torch.distributed's own": {
        "mine.grad =": "dist.all_reduce(gradient)\n        mine.grad =",
        SUM: "gradient.tensor_split(p)[rank]",
        f"weights = {JOINED}": "dist.all_gather_object(parts := [None] * p, mine.detach().bfloat16())\n"
        "        weights = torch.cat(parts)",
    },
    "4 ranks, 26 weights, 20 steps: an error: ": {", length=len(weights)": ""},
}
WRONG["01.6", "values"] |= {
    "right, but `gradients` on rank 0 is overwritten": {
        "    return weights": "    gradients.clear()\n    return weights"
    },
}
WRONG["01.6", "memory"] = {
    "keeps 288 bytes, target 72, exactly 4.0 x the target: the state of all weights": {
        "reduce_scatter": "all_reduce",
        **ON_ALL_WEIGHTS,
    },
    "keeps 144 bytes, target 72, 2.0 x the target: your part is a view": {CUT: "weights.float().tensor_split(p)[rank]"},
    "beside its optimizer rank 0 keeps all 24 weights in fp32, 96 bytes, from step to step; its part is enough": {
        CUT: "(whole := weights.float()).tensor_split(p)[rank].clone()",
        f"weights = {JOINED}": f"weights = {JOINED}\n        whole.copy_(weights)",
    },
}
WRONG["01.6", "bytes"] = {
    "values right, but the gradients of several steps were reduced before the first of these steps was taken": {
        "for gradient in gradients:": "for mine.grad in [comm.reduce_scatter(g).float() / p for g in gradients]:",
        "        mine.grad = comm.reduce_scatter(gradient).float() / p\n": "",
    },
    "all_reduce brings all of the sum to every rank: each needs its own chunk": {
        SUM: 'comm.all_reduce(gradient, algorithm="ring").tensor_split(p)[rank]'
    },
    "target 3840; do gradients and weights travel as bf16, with 2 bytes a number?": {
        f"{SUM}.float()": "comm.reduce_scatter(gradient.float())",
        JOINED: "comm.all_gather(mine.detach(), length=len(weights)).bfloat16()",
    },
    "0.525 x the target: 8064 B sent by all ranks, target 15360; when does the next forward pass": {
        f"weights = {JOINED}": "",
        "return weights": f"return {JOINED}",
    },
    "one reduce-scatter and one all-gather are enough in each step": {
        "mine.grad =": f"comm.all_gather({SUM}, length=len(gradient))\n        mine.grad ="
    },
}

# 01.7 ------------------------------------------------------------------------------------------------------------

HALF = "too few, exactly half of the bytes of one fp32 number per token and head"
WRONG["01.7", "kept"] = {
    "too few, exactly a tensor as wide as the block (T x F)": {"4 * T * c.ffn_size": "3 * T * c.ffn_size"},
    "too many, exactly keys and values as wide as the queries": {"c.n_kv_heads * head_size": "H"},
    "too few, exactly 2 x a tensor as wide as the model (T x H)": {"3 * T * H": "T * H"},
    "too few, exactly one fp32 number per token, or half of the bytes of two": {"4 * T)": "2 * T)"},
    "too few, exactly one fp32 number per token and head": {" + 4 * T * c.n_heads": ""},
    HALF: {"4 * T * c.n_heads": "2 * T * c.n_heads"},
    "too few, exactly the four tables of rotations": {" + 4 * sequence * head_size": ""},
    "too few, exactly 2 x a tensor as wide as the keys": {"2 * T * kv + ": ""},
    "rotations once for each sequence of the batch": {"4 * sequence": "4 * T"},
}

# 01.8 ------------------------------------------------------------------------------------------------------------

WRONG["01.8", "states"] = {
    "returned None, the reference": {START: "if 16 * parameters > memory: return None"},
    "hardly any room, stage 1": {  # a special case, and the quotient of bytes, rounded up
        "-(-parameters // longest)": "(4 if parameters == 10 else math.ceil(shared * parameters / room))"
    },
}
HANGS["01.8", "states"] = {
    "an endless loop?": {START: "p = 1\n    while 16 * -(-parameters // p) + activations > memory or stage < 3: p += 1"}
}
WRONG["01.8", "never"] = {
    "the reference None": {"else None": "else math.ceil((16 * parameters + activations) / memory)"},
    "an error: ": {
        " if longest > 0 else None": "",
        "if shared == 0": "if room < 0",
        "1 if room >= 0 else None": "None",
    },
}
