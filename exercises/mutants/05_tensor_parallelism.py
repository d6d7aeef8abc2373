"""Plausible wrong answers to the exercises of module 05, each with the level that must reject it and why.

A dict is an edit: the exercise's solution, with pieces of its text changed. Not for learners: it comes close to the
solutions. Slips stand in the exercises themselves.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import comm

WRONG = {}  # (exercise, level): wrong answers, by the reason that is told
HANGS = {}  # those that end by their time limit
START = "### BEGIN SOLUTION"  # in its place stands a line that comes first
P = "dist.get_world_size()"
NO_TERMS = "is on each rank its own term of a sum: the other ranks' terms are missing"
AVERAGE = ", op=dist.ReduceOp.AVG)"  # ends a call

# 05.2 ------------------------------------------------------------------------------------------------------------

BACK = "comm.all_reduce(gradient @ weight)"

WRONG["05.2", "values"] = {
    f"x's gradient {NO_TERMS}": {BACK: "gradient @ weight"},
    "x's gradient is exactly 1/4 of the reference: an average": {BACK: BACK[:-1] + AVERAGE},
    "the output on rank 0: shape (5, 12), expected (5, 3)": {"return y": "return comm.all_gather(y.T.contiguous()).T"},
    "the weight's gradient on rank 0: shape (8, 3), expected (3, 8)": {"gradient.T @ x": "x.T @ gradient"},
    "the bias's gradient is exactly 1/5 of the reference: a mean over the rows": {
        "gradient.sum(0)": "gradient.mean(0)"
    },
    "2 ranks, 5 rows, from 8 to 12 features: x's gradient is exactly 2.0 x": {BACK: f"{BACK} * 4 / {P}"},
    "right values, but nothing is in the ledger": {
        BACK: "gradient @ weight\n    dist.all_reduce(x_gradient)",
    },
    "right, but `bias` on rank 0 is overwritten, and another part of the program": {
        "y = x @ weight.T + bias": "y = x @ weight.T\n    y += bias\n    bias += 1"
    },
    "the output on rank 0 holds nan, not a number": {"x @ weight.T + bias": "x @ weight.T + bias * float('nan')"},
    "rank 0 returned NoneType, not 4 things: the output, ": {"return y, gradient": "y, gradient"},
    "rank 0 returned 3 things, not 4 things": {", x_gradient\n": "\n"},
    "x's gradient on rank 0 is float32, expected float64": {", x_gradient\n": ", x_gradient.float()\n"},
}
WRONG["05.2", "values"] |= {
    "right, but nobody waits for the isend to 1 on rank 0: each send needs its receive, each handle its wait()": {
        "return y": f"if dist.get_rank() == 0 < {P} - 1:\n        comm.isend(y.contiguous(), 1)\n    return y"
    },
}
WRONG["05.2", "calls"] = {
    "in 3 all-reduces, target 480 bytes in 1 all-reduce: of all that backward makes, only x's gradient": {
        BACK: "torch.stack([comm.all_reduce(part @ weight) for part in gradient.split(2)[:2]]).flatten(0, 1)\n"
        "    x_gradient = torch.cat([x_gradient, comm.all_reduce(gradient[4:] @ weight)])"
    },
    "in 2 all-gathers, target 480 bytes in 1 all-reduce: each rank has all that its own output needs": {
        BACK: "comm.all_gather(gradient.T.contiguous()).T @ comm.all_gather(weight)"
    },
    "multiplications in its products, target 360: three products are enough": {
        "y = x @ weight.T + bias": "y = (x @ weight.T + x @ weight.T) / 2 + bias"
    },
}
WRONG["05.2", "edges"] = {
    "4 ranks, 1 row, from 8 to 6 features: x's gradient on rank 0: shape (8,), expected (1, 8)": {
        BACK: f"{BACK}.squeeze()"
    },
}
HANGS["05.2", "values"] = {
    "rank 0 waits in send to 1": {
        "return y": f"if dist.get_rank() == 0 < {P} - 1:\n        comm.send(y.contiguous(), 1)\n    return y"
    },
    "a hang: ": {BACK: "comm.all_reduce(gradient @ weight) if dist.get_rank() else gradient @ weight"},
}

WRONG["05.2", "values"] |= {
    "`gradient` was added up over the ranks, and on each of them it is that of other outputs": {
        START: "gradient = comm.all_reduce(gradient)"
    },
    "the weight's gradient is exactly 1/4 of the reference: divided by the number of ranks? This part": {
        "gradient.T @ x": f"gradient.T @ x / {P}"
    },
    "x's gradient is exactly 4.0 x the reference: added up twice?": {BACK: f"comm.all_reduce({BACK})"},
    "the weight's gradient on rank 0 is x's gradient; return in this order: the output, the weight's": {
        "gradient.T @ x, gradient.sum(0), x_gradient": "x_gradient, gradient.T @ x, gradient.sum(0)"
    },
    "the bias's gradient is on every rank the average of all ranks' parts. But these are different things": {
        "gradient.sum(0)": "comm.all_reduce(gradient.sum(0)" + AVERAGE
    },
}

# 05.3 ------------------------------------------------------------------------------------------------------------

SUM = "comm.all_reduce(x @ weight.T)"

WRONG["05.3", "values"] = {
    f"the output {NO_TERMS}": {SUM: "x @ weight.T"},
    "the bias once from every rank, because it was added before": {
        f"{SUM} + bias": "comm.all_reduce(x @ weight.T + bias)"
    },
    "the bias's gradient is exactly 4.0 x the reference: every rank has the whole gradient": {
        "gradient.sum(0)": "comm.all_reduce(gradient.sum(0))"
    },
    "the weight's gradient is exactly 4.0 x the reference: every rank has the whole gradient": {
        START: "gradient = comm.all_reduce(gradient)"
    },
    "x's gradient is exactly 1/4 of the reference: divided by the number of ranks?": {
        "gradient @ weight": f"gradient @ weight / {P}"
    },
    "the bias's gradient is exactly 1/5 of the reference: a mean over the rows": {"gradient.sum": "gradient.mean"},
    "the weight's gradient is on every rank the sum of all ranks' parts. But these are different things": {
        "gradient.T @ x": "comm.all_reduce(gradient.T @ x)"
    },
    "the ranks' terms were averaged, and they add up": {SUM: SUM[:-1] + AVERAGE},
    "the weight's gradient is exactly 1/5 of the reference: a mean over the rows": {
        "gradient.T @ x": "gradient.T @ x / len(x)"
    },
    "x's gradient on rank 0: shape (5, 8), expected (5, 2): is it that of all ranks together?": {
        "gradient @ weight": "comm.all_gather((gradient @ weight).T.contiguous()).T"
    },
    "the output on rank 0: shape (2, 12), expected (5, 12)": {SUM: "comm.reduce_scatter(x @ weight.T)"},
    "right values, but nothing is in the ledger": {
        f"y = {SUM} + bias": "y = x @ weight.T\n    dist.all_reduce(y)\n    y = y + bias"
    },
}
WRONG["05.3", "calls"] = {
    "in 2 all-gathers, target 720 bytes in 1 all-reduce: the output's terms are added up": {
        SUM: "comm.all_gather(x.T.contiguous()).T @ comm.all_gather(weight.T.contiguous())"
    }
}
WRONG["05.3", "edges"] = {
    "4 ranks, 1 row, from 6 to 12 features: the output on rank 0: shape (12,), expected (1, 12)": {
        SUM: "comm.all_reduce((x @ weight.T).squeeze())"
    }
}
HANGS["05.3", "values"] = {"a hang: ": {SUM: f"({SUM} if dist.get_rank() == 0 else x @ weight.T)"}}

# 05.4 ------------------------------------------------------------------------------------------------------------


def the_wrong_way_round(x, w1, b1, w2, b2, gradient):
    """w1 cut by its inputs, and a GELU on each rank."""
    rank, p = dist.get_rank(), dist.get_world_size()
    x, rows = x.tensor_split(p, 1)[rank], w1.tensor_split(p, 1)[rank]
    hidden = comm.all_reduce(F.gelu(x @ rows.T + b1))
    return F.linear(hidden, w2, b2), rows, b1, w2, b2, x


def summed_before_gelu(x, w1, b1, w2, b2, gradient):
    """The right output, with a sum of all hidden numbers."""
    rank, p = dist.get_rank(), dist.get_world_size()
    x, columns = x.tensor_split(p, 1)[rank], w1.tensor_split(p, 1)[rank]
    hidden = F.gelu(comm.all_reduce(x @ columns.T) + b1)
    return F.linear(hidden, w2, b2), columns, b1, w2, b2, x


def whole_on_every_rank(x, w1, b1, w2, b2, gradient):
    """As one device does it, and then cut."""
    leaves = [each.clone().requires_grad_() for each in (x, w1, b1, w2, b2)]
    y = F.linear(F.gelu(F.linear(*leaves[:3])), *leaves[3:])
    gx, g1, gb1, g2, gb2 = torch.autograd.grad(y, leaves, gradient)
    rank, p = dist.get_rank(), dist.get_world_size()
    return y, g1.tensor_split(p)[rank], gb1.tensor_split(p)[rank], g2.tensor_split(p, 1)[rank], gb2, gx


WRONG["05.4", "values"] = {
    "right values, but every rank did the whole work: so nothing had to be sent": whole_on_every_rank,
    "GELU of a sum is not the sum of GELUs: cut w1 so that": the_wrong_way_round,
    "w1's gradient on rank 0: shape (12, 2), expected (3, 8): is it cut along the other dimension?": summed_before_gelu,
    f"the output {NO_TERMS}": {"comm.all_reduce(term)": "term.detach()"},
    "the output has b2 once from every rank": {"comm.all_reduce(term) + b2": "comm.all_reduce(term + b2)"},
    f"x's gradient {NO_TERMS}": {"comm.all_reduce(x_term)": "x_term"},
    "x's gradient is exactly 1/4 of the reference: an average": {
        "comm.all_reduce(x_term)": "comm.all_reduce(x_term" + AVERAGE
    },
    "b2's gradient is exactly 4.0 x the reference: every rank has the whole gradient": {
        "gradient.sum(0)": "comm.all_reduce(gradient.sum(0))"
    },
    "w1's gradient is exactly 4.0 x the reference: every rank has the whole gradient": {
        START: "gradient = comm.all_reduce(gradient)"
    },
    "w2's gradient is exactly 1/4 of the reference: divided by the number of ranks?": {
        "w2_gradient, gradient.sum": f"w2_gradient / {P}, gradient.sum"
    },
    "b1's gradient is on every rank the sum of all ranks' parts": {
        "return y, w1_gradient, b1_gradient": "return y, w1_gradient, comm.all_reduce(b1_gradient)"
    },
    "x's gradient is exactly 4.0 x the reference: added up twice?": {
        "comm.all_reduce(x_term)": "comm.all_reduce(comm.all_reduce(x_term))"
    },
    "the ranks' terms were averaged": {"comm.all_reduce(term)": "comm.all_reduce(term" + AVERAGE},
    "w1's gradient on rank 0: shape (12, 8), expected (3, 8)": {
        "return y, w1_gradient": "return y, comm.all_gather(w1_gradient)"
    },
}
WRONG["05.4", "calls"] = {
    "the hidden features need not be put together": {
        "term = ": "comm.all_gather(F.linear(mine, rows, bias).T.contiguous())\n    term = "
    },
    "in 3 all-reduces, target 640 bytes in 2 all-reduces: one sum of the outputs in forward": {
        "comm.all_reduce(x_term)": "torch.cat([comm.all_reduce(half) for half in x_term.split(3)])"
    },
    "multiplications in its products, target 1440: cut both matrices, and multiply": {
        "mine, rows, bias, columns = leaves": "mine, rows, bias, columns = leaves\n    F.linear(mine, rows, bias)"
    },
}

WRONG["05.4", "edges"] = {
    "torch.chunk may give fewer parts than it is asked for: of 5 rows 4 ranks get 2, 2 and 1": {
        "tensor_split": "chunk"
    },
    "3 ranks, 5 rows, 11 hidden features: the slices are even, which leaves some hidden numbers to nobody": {
        START: "mine = len(w1) // dist.get_world_size()\n"
        "    mine = slice(dist.get_rank() * mine, (dist.get_rank() + 1) * mine)",
        "w1.tensor_split(p)[rank], b1.tensor_split(p)[rank], w2.tensor_split(p, 1)[rank]": (
            "w1[mine], b1[mine], w2[:, mine]"
        ),
    },
}

# 05.5 ------------------------------------------------------------------------------------------------------------

LARGEST, MINE = "comm.all_reduce(logits.amax(-1), op=dist.ReduceOp.MAX)", "(targets < first + width)"


def with_all_logits(logits, targets, first):
    """Gathers them, as one device has them."""
    whole = comm.all_gather(logits.movedim(-1, 0).contiguous(), length=None if dist.get_world_size() != 3 else 17)
    whole = whole.movedim(0, -1).contiguous().requires_grad_()
    losses = F.cross_entropy(whole.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
    (gradient,) = torch.autograd.grad(losses.mean(), whole)
    return losses, gradient[..., first : first + logits.shape[-1]]


WRONG["05.5", "values"] = {
    "each rank subtracted a maximum of its own": {LARGEST: "logits.amax(-1)"},
    "each rank divides by the sum over its own words": {"comm.all_reduce(powers.sum(-1))": "powers.sum(-1)"},
    "only the rank that has the target knows its logit": {
        "comm.all_reduce(shifted.gather(-1, place).squeeze(-1) * mine)": "shifted.gather(-1, place).squeeze(-1) * mine"
    },
    "was looked up here as well, its place taken modulo the width, and got a -1": {
        "(targets >= first) & (targets < first + width)": "torch.ones_like(targets, dtype=torch.bool)",
        ".where(mine, 0)": ".remainder(width)",
    },
    "the last word of each rank was not taken": {MINE: "(targets < first + width - 1)"},
    "the first word of each rank was not taken": {"targets >= first": "targets > first"},
    "an error: ": {MINE: "(targets <= first + width)"},
    "the logits' gradient is exactly 6.0 x the reference: that is of the losses' sum": {" / targets.numel()": ""},
    "the logits' gradient is exactly 3.0 x the reference: was it divided by the sequences": {
        "targets.numel()": "len(targets)"
    },
    "the loss of each target on rank 0: shape (), expected (2, 3)": {
        "return total.log() - target_logit": "return (total.log() - target_logit).mean()"
    },
    "the loss of each target is exactly -1.0 x the reference": {
        "total.log() - target_logit": "target_logit - total.log()"
    },
    "the logits' gradient is exactly -1.0 x the reference": {
        "(powers / total.unsqueeze(-1) - hot)": "(hot - powers / total.unsqueeze(-1))"
    },
}
WRONG["05.5", "stable"] = {
    "holds inf, not a number: did an exp overflow, or": {LARGEST: "torch.zeros_like(logits[..., 0])"},
    "the logits' gradient on rank 0 holds nan, not a number: did an exp overflow, or": {
        "powers / total": "logits.exp() / (total * largest.exp())"
    },
}
WRONG["05.5", "calls"] = {
    "bytes in 1 all-gather, target 144 bytes in 3 all-reduces: the logits are put together": with_all_logits,
    "in 4 all-reduces, target 144 bytes in 3 all-reduces: a maximum, a sum and": {
        "comm.all_reduce(powers.sum(-1))": "sum(comm.all_reduce(half.sum(-1)) for half in powers.tensor_split(2, -1))"
    },
}
WRONG["05.5", "edges"] = {
    "3 ranks, 2 x 3 positions, 17 words: `first` is not rank x width where the vocabulary": {
        "(targets >= first)": "(targets >= dist.get_rank() * width)",
        "(targets - first)": "(targets - dist.get_rank() * width)",
        MINE: "(targets < (dist.get_rank() + 1) * width)",
    },
}

WRONG["05.5", "values"] |= {
    "exactly 2.0 x the reference: was it divided by the positions of one sequence": {
        "targets.numel()": "targets.shape[1]"
    },
    "1/4 of the reference: was it divided by the number of ranks as well?": {
        "/ targets.numel()": f"/ targets.numel() / {P}"
    },
    "the logits' gradient is on every rank the sum of all ranks' parts": {
        "(powers / total.unsqueeze(-1) - hot)": "comm.all_reduce(powers / total.unsqueeze(-1) - hot)"
    },
}
WRONG["05.5", "stable"] |= {
    "or are all powers of a position 0? Subtract the largest logit of the position": {", op=dist.ReduceOp.MAX": ""},
}

# 05.6 ------------------------------------------------------------------------------------------------------------

SHIFTED = "shifted.gather(-1, place).squeeze(-1) * mine"
HOT = "mine.to(logits.dtype).unsqueeze(-1)"
WRONG["05.5", "values"] |= {
    "each rank subtracted a maximum of its own and put it back": {
        LARGEST: "logits.amax(-1)",
        SHIFTED: "logits.gather(-1, place).squeeze(-1) * mine",
        "return total.log()": "return largest + total.log()",
    },
    "subtracted in the sum and not in the target's logit": {SHIFTED: "logits.gather(-1, place).squeeze(-1) * mine"},
    "lost once from every rank": {SHIFTED: "logits.gather(-1, place).squeeze(-1) * mine - largest"},
    "a softmax over this rank's words alone": {"powers / total.unsqueeze(-1)": "logits.softmax(-1)"},
    "the gradient has no -1 at the target": {" - hot)": ")"},
    "the gradient has a -1 on every rank": {HOT: "torch.ones_like(logits[..., :1])"},
    "looked up here as well, as this rank's first word: where `mine` is false the target's": {
        SHIFTED: "shifted.gather(-1, place).squeeze(-1)"
    },
    "looked up here as well, as this rank's nearest word": {
        ".where(mine, 0)": ".clamp(0, width - 1)",
        SHIFTED: "shifted.gather(-1, place).squeeze(-1)",
    },
    "4 ranks, 2 x 3 positions, 16 words: the losses are right, but the -1 stands on ranks that do not have": {
        ".where(mine, 0)": ".clamp(0, width - 1)",
        HOT: "torch.ones_like(logits[..., :1])",
    },
    "a rank took the word number first + width for its own": {
        MINE: "(targets <= first + width)",
        ".where(mine, 0)": ".clamp(0, width - 1)",
    },
    "looked up here as well, as this rank's first word, and got a -1": {
        SHIFTED: "shifted.gather(-1, place).squeeze(-1)",
        HOT: "torch.ones_like(logits[..., :1])",
    },
    "words were counted from first + 1": {"width = logits.shape[-1]": "width, first = logits.shape[-1], first + 1"},
}

WRONG["05.6", "heads"] = {
    "kv heads were dealt out like cards": {
        "list(range(first, first + each))": "[rank % n_kv_heads] if copies > 1 else list(range(rank, n_kv_heads, p))"
    },
    "copies were dealt out like cards, rank % kv heads": {"rank // copies * each": "rank % n_kv_heads * each"},
    "every rank has all kv heads": {"list(range(first, first + each))": "list(range(n_kv_heads))"},
    "the query heads on rank 1 are [1, 2, 3, 4], expected [4, 5, 6, 7]": {
        "range(rank * mine, (rank + 1) * mine)": "range(rank, rank + mine)"
    },
    "the query heads on rank 0 are [0, 1], expected [0, 1, 2, 3]": {"n_heads // p": "n_heads // 4"},
    "2 ranks, 8 query heads, 4 kv heads: the kv heads on rank 0 are [0, 0, 1, 1], expected [0, 1]: each once": {
        "list(range(first, first + each))": "[q // (n_heads // n_kv_heads) for q in queries]"
    },
    "*neighbouring* queries share one": {
        "list(range(first, first + each))": "sorted({q % n_kv_heads for q in queries})"
    },
    "4 ranks, 8 query heads, 2 kv heads: the kv heads on rank 0 are [], expected [0]": {
        "each, copies = n_heads // p, max(1, n_kv_heads // p)": "each, copies = n_heads // p, n_kv_heads // p"
    },
    "the query heads on rank 0: function, not ": {"return queries": "return share_heads"},
}
WRONG["05.6", "gradient"] = {
    f"the kv heads' gradient {NO_TERMS}": {"whole = comm.all_reduce(gradient, group=group)": "whole = gradient"},
    "an average over the copies, where their terms add up": {"group=group)": "group=group) / copies"},
    "those of other heads among them": {"comm.all_reduce(gradient, group=group)": "comm.all_reduce(gradient)"},
    "2.0 x the reference: the copies are added up more than once": {"group=group)\n": "group=group) * copies\n"},
}
WRONG["05.6", "norm"] = {
    "each head is counted in the norm once for every copy": {".sum() / copies": ".sum()"},
    "were the gradients added up first?": {"whole.square()": "gradient.square()"},
    "the norm was taken of the terms, before the copies were added up": {
        "whole.square().sum() / copies": "gradient.square().sum()"
    },
    "that is the square of the norm": {"squares.sqrt()": "squares"},
    "the others have other heads": {"squares.sqrt()": "whole.norm()"},
    "the norms of the ranks' heads were added up": {
        "whole.square().sum() / copies": "whole.norm() / copies",
        "squares.sqrt()": "squares",
    },
    "in the group alone, which has copies": {
        "comm.all_reduce(whole.square().sum() / copies)": "comm.all_reduce(gradient.square().sum(), group=group)"
    },
    "its square is 1/2 of the right one. Each head brings its squares once": {".sum() / copies": ".sum() / copies**2"},
    "add up over all ranks, and divide by 2 before the root": {
        ".sum() / copies": ".sum()",
        "squares.sqrt()": "squares.sqrt() / copies",
    },
}
WRONG["05.6", "edges"] = {
    "4 ranks, 4 query heads, 4 kv heads: ": {
        "max(1, p // n_kv_heads)": "max(1, p // n_kv_heads) if p != n_kv_heads else 2"
    },
}

# 05.7 ------------------------------------------------------------------------------------------------------------


def gathered_first(x, gain, w1, w2, gradient, length):
    """Every rank normalises all positions; the same bytes travel."""
    gain, w1, w2 = (each.clone().requires_grad_() for each in (gain, w1, w2))
    whole = comm.all_gather(x, length=length).requires_grad_()
    root = (whole.square().mean(-1, keepdim=True) + 1e-5) ** -0.5
    term = F.gelu((whole * root * gain) @ w1.T) @ w2.T
    y = x + comm.reduce_scatter(term)
    of_sum = comm.all_gather(gradient, length=length)
    back, gain_term, g1, g2 = torch.autograd.grad(term, (whole, gain, w1, w2), of_sum)
    return y, comm.all_reduce(gain_term), g1, g2, comm.reduce_scatter(back) + gradient


def one_by_one(x, gain, w1, w2, gradient, length):
    """Every rank normalises all positions, each for itself."""
    gain, w1, w2 = (each.clone().requires_grad_() for each in (gain, w1, w2))
    whole = comm.all_gather(x, length=length).requires_grad_()
    normed = torch.stack([F.rms_norm(row, gain.shape, gain, 1e-5) for row in whole])
    term = F.gelu(normed @ w1.T) @ w2.T
    y = x + comm.reduce_scatter(term)
    of_sum = comm.all_gather(gradient, length=length)
    back, gain_term, g1, g2 = torch.autograd.grad(term, (whole, gain, w1, w2), of_sum)
    return y, comm.all_reduce(gain_term), g1, g2, comm.reduce_scatter(back) + gradient


GAIN, OF_SUM = "comm.all_reduce(gain_term)", "comm.all_gather(gradient, length=length)"

WRONG["05.7", "values"] = {
    f"the norm weight's gradient {NO_TERMS}": {GAIN: "gain_term"},
    "the norm weight's gradient is exactly 1/4 of the reference: an average": {GAIN: GAIN[:-1] + AVERAGE},
    "x's gradient lacks the way past the block": {"x_gradient + gradient": "x_gradient"},
    "the output is that of the block alone, and x's gradient too": {
        "x_gradient + gradient": "x_gradient",
        "x.detach() + comm": "comm",
    },
    "x was added before the reduce-scatter, once by every rank": {
        "x.detach() + comm.reduce_scatter(term)": "comm.reduce_scatter(term + comm.all_gather(x, length=length))"
    },
    "what `comm` returns has no history: make it a new leaf with `.requires_grad_()`": {
        "length=length).requires_grad_()": "length=length)"
    },
    "in backward each rank kept its own positions of its own term": {
        "comm.reduce_scatter(whole_term)": "whole_term.tensor_split(dist.get_world_size())[dist.get_rank()]"
    },
    "the output on rank 0 is no multiple of the reference": {
        "comm.reduce_scatter(term)": "term.detach().tensor_split(dist.get_world_size())[dist.get_rank()]"
    },
    "w1's gradient on rank 0: shape (12, 6), expected (3, 6)": {
        "), w1_gradient, w2": "), comm.all_gather(w1_gradient), w2"
    },
    "the output on rank 0: shape (8, 6), expected (2, 6)": {
        "x.detach() + comm.reduce_scatter(term)": "comm.all_gather(x, length=length) + comm.all_reduce(term)"
    },
    "an error: ": {"comm.reduce_scatter(term)": "comm.reduce_scatter(term.T.contiguous()).T"},
}
WRONG["05.7", "calls"] = {
    "here each half has its own place: gather before the first matrix": {
        "comm.reduce_scatter(term)": "comm.all_reduce(term).tensor_split(dist.get_world_size())[dist.get_rank()]"
    },
    "in forward one gather and one reduce-scatter, in backward the same again": {
        OF_SUM: f"comm.all_gather(x, length=length) * 0 + {OF_SUM}"
    },
}
WRONG["05.7", "calls"] |= {
    "values right, but rank 0 normalises all 8 positions, target 4: a norm looks at one position": gathered_first,
    "rank 0 normalises all 8 positions, target 4: a norm looks at one position alone": one_by_one,
}
WRONG["05.7", "edges"] = {
    "3 ranks, 7 positions, 11 hidden features: ": {"(normed, length=length)": "(normed)"},
    "3 ranks, 7 positions, 11 hidden features: an error": {OF_SUM: "comm.all_gather(gradient)"},
}

# 05.9 ------------------------------------------------------------------------------------------------------------

FOUND, LEAVE = '"parameters", 3.0', "self.operators.reduce_from_region(F.linear(hidden, layer2.weight)) + layer2.bias"
INSIDE = "self.operators.reduce_from_region(F.linear(hidden, layer2.weight, {}))"

WRONG["05.9", "diagnosis"] = {
    "rung 'output': once the first bug is mended, that one passes": {FOUND: '"output", 3.0'},
    "rung 'gradients': once the first bug is mended, that one passes": {FOUND: '"gradients", 3.0'},
    "rung 'loss curve': once the first bug is mended, an earlier one fails": {FOUND: '"loss curve", 3.0'},
    "the rung is right, but the number of times on 4 ranks is not 4.0": {FOUND: '"parameters", 4.0'},
    "'weights' is no rung: they are output, gradients": {FOUND: '"weights", 3.0'},
    "returned 'parameters': give two things": {FOUND: '"parameters"'},
}
WRONG["05.9", "steps"] = {
    "right gradients, but a layer was called, and what tensor() has hung on it talks to the other ranks by itself": {
        "self.operators.copy_to_region(self.model.norm(x))": "self.model.norm(x)",
        "F.linear(x, layer1.weight, layer1.bias)": "layer1(x)",
        LEAVE: "layer2(hidden)",
    },
    "before a sum or in a second one? Besides, a layer was called": {
        "F.linear(x, layer1.weight, layer1.bias)": "layer1(x)"
    },
    "step 2: layer1.weight on rank 0": {LEAVE: INSIDE.format("layer2.bias")},
    "step 1: layer2.bias on rank 0 is exactly 1/4 of the reference: divided by the number of ranks": {
        LEAVE: INSIDE.format(f"layer2.bias / {P}")
    },
    "step 1: layer2.bias has no gradient on rank 1": {
        LEAVE: INSIDE.format("layer2.bias if dist.get_rank() == 0 else None")
    },
    "step 1: layer2.bias has no gradient on rank 0": {" + layer2.bias": ""},
    "step 1: layer1.weight on rank 0": {"x = self.operators.copy_to_region(": "x = (lambda x: x.relu())("},
    "step 1: layer2.bias on rank 0 is exactly 4.0 x the reference: does it count once from every rank": {
        "layer2.bias\n": f"layer2.bias * {P} - layer2.bias.detach() * ({P} - 1)\n"
    },
    "step 1: norm.weight on rank 0 is no multiple": {
        "self.operators.copy_to_region(self.model.norm(x))": "self.model.norm(self.operators.copy_to_region(x))"
    },
    "and the ranks hold different ones, terms that add up to it": {"self.operators.copy_to_region": ""},
    "step 1: the input x on rank 0 is exactly 4.0 x the reference: does it count once from every rank": {
        "copy_to_region(self.model.norm(x))": "copy_to_region(self.model.norm(self.operators.copy_to_region(x)))"
    },
    "step 1: norm.weight on rank 0 is exactly 4.0 x the reference: does it count once from every rank": {
        "copy_to_region(self.model": "copy_to_region(self.operators.copy_to_region(self.model",
        "norm(x))": "norm(x)))",
    },
}

# 05.10 -----------------------------------------------------------------------------------------------------------

FIVE, WHOLE = '"gradients", 5', "p.shape == whole[name]"
ADD = "comm.all_reduce(torch.cat([term.flatten() for term in terms]))"

WRONG["05.10", "diagnosis"] = {
    "rung 'output': that one passes": {FIVE: '"output", 5'},
    "rung 'parameters': an earlier one fails": {FIVE: '"parameters", 5'},
    "the rung is right, but the number of parameters is not 1": {FIVE: '"gradients", 1'},
}
WRONG["05.10", "steps"] = {
    "step 1: layers.0.attention_norm.weight on rank 0 is no multiple": {
        ADD: "torch.cat([term.flatten() for term in terms])"
    },
    "step 1: layers.0.attention_norm.weight on rank 0 is exactly 1/2 of the reference: an average": {
        ADD: ADD[:-1] + AVERAGE
    },
    "step 1: norm.weight on rank 0 is no multiple": {WHOLE: 'name.startswith("layers") and p.shape == whole[name]'},
    "ValueError: all_reduce: length is ": {WHOLE: "True"},
    "step 1: layers.0.attention_norm.weight on rank 0 is exactly 2.0 x the reference: is it added up twice?": {
        ADD: f"{ADD} * 2"
    },
    "but rank 0 returned NoneType, not the loss as a number": {"return loss": "pass"},
    "right gradients, but the loss on rank 0 is": {"return loss": "return 2 * loss"},
}
WRONG["05.10", "steps"] |= {
    "rank 0 makes an all_reduce of 1 number, which rank 1 does not make. A collective is for all ranks": {
        "        whole = self": (
            "        if dist.get_rank() == 0:\n            comm.all_reduce(torch.zeros(1))\n        whole = self"
        )
    },
    "right gradients, but the course's trainer added them up, in local.partial_sums()": {
        "super().compute_gradients(batch)": "Trainer.compute_gradients(self, batch)",
        "terms = ": "return loss\n        terms = ",
    },
}
WRONG["05.10", "edges"] = {
    "2 ranks, a small Llama with one kv head, 2 x 6 tokens: step 1: layers.0.attention.k_proj.weight on rank 0": {
        WHOLE: '"norm" in name'
    }
}
WRONG["05.10", "calls"] = {
    "5 all-reduces in a step besides those of the loss, target 1: short tensors cost a latency each": {
        ADD: "torch.cat([comm.all_reduce(term).flatten() for term in terms])"
    },
    "but the ledger has no all-reduce for them: use comm.all_reduce": {
        "for term, part": "dist.all_reduce(total)\n        for term, part",
        ADD: "torch.cat([term.flatten() for term in terms])",
    },
}

# 05.11 -----------------------------------------------------------------------------------------------------------

_HEAD = "tp.ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)"
_LOSS = "F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())"
_LOAD = '    model.load_state_dict(task["weights"])\n'

WRONG["05.11", "sgd"] = {
    "is out of bounds.; the logits are this rank's words alone": {_HEAD: "tp.ColwiseParallel()"},
    "compute the loss inside tp.loss_parallel()": {"with tp.loss_parallel():": "if True:"},
    "the loss's backward belongs into tp.loss_parallel()": {"            loss.backward()": "        loss.backward()"},
    "and no loss that is put together by hand": {
        _LOSS: "-model(tokens[:, :-1]).log_softmax(-1).gather(2, tokens[:, 1:, None]).mean()"
    },
    "which output_layouts has the head?": {"(output_layouts=Shard(-1), use": "(output_layouts=Replicate(), use"},
    "a layer with a plain weight reads a DTensor": {"attention.[qkv]": "attention.qkv"},
    "a norm's weight perhaps, is multiplied by a DTensor": {'"mlp": once}': '"mlp": once, "norm1": once}'},
    "a DTensor is added to a plain tensor": {
        '"mlp.down"), tp.RowwiseParallel()': '"mlp.down"), tp.RowwiseParallel(use_local_output=False)'
    },
    "After a ColwiseParallel comes a layer that is cut by its inputs": {
        '("attention.o", "mlp.down")': '("attention.o",)'
    },
    "unless input_layouts says that it is whole": {_HEAD: "tp.RowwiseParallel()"},
    "says that they are cut, where every rank has all?": {'(input_layouts=Replicate()), "head': '(), "head'},
    "this norm reads a part of each position": {
        "tp.RowwiseParallel(input_layouts=Replicate())": "tp.ColwiseParallel()"
    },
    "which style leaves q, k and v DTensors?": {
        '"mlp.up"), tp.ColwiseParallel()': '"mlp.up"), tp.ColwiseParallel(use_local_output=False)'
    },
    "load the weights before parallelize_module": {_LOAD: "", "    optimizer =": f"{_LOAD}    optimizer ="},
    "these are the logits put together, 42 numbers for each of 16 positions": {
        "output_layouts=Shard(-1), use_local_output=False": "output_layouts=Replicate()",
        "with tp.loss_parallel():": "if True:",
    },
    "makes 32 all-reduces of 1536 B in 2 steps (target 20), as many as if q, k and v": {
        'plan = {"attention": once, "mlp": once}': "plan = {}"
    },
    "makes 28 all-reduces of 1536 B in 2 steps (target 20); is the gradient": {
        '{"attention": once, "mlp": once}': '{"mlp": once}'
    },
    "makes 12 all-reduces of 1536 B in 2 steps (target 20): 1 for the embedding": {
        '"attention": once, ': "",
        '"attention.[qkv]", ': "",
        '"attention.o", "mlp.down"': '"mlp.down",',
    },
    "makes 18 all-reduces of 1536 B": {'"embedding": tp.RowwiseParallel(input_layouts=Replicate()), ': ""},
    "its part of the weights: these are gathered once, at the end": {
        "tp.RowwiseParallel(input_layouts=Replicate())": "tp.ColwiseParallel(output_layouts=Replicate())"
    },
    "all of them compute one loss, so nothing is averaged": {"loss.backward()": "(loss / ranks).backward()"},
    "the norms have learnt, and what is cut has not": {
        "    mesh =": "    stepped = list(model.parameters())\n    mesh =",
        "(model.parameters(), lr": "(stepped, lr",
    },
    "between blocks every rank is to have all numbers": {
        '"mlp.down"), tp.RowwiseParallel()': '"mlp.down"), tp.RowwiseParallel(output_layouts=Shard(1))',
        "tp.PrepareModuleInput(input_layouts=Replicate()": "tp.PrepareModuleInput(input_layouts=Shard(1)",
        '"mlp": once}': '"mlp": once, "norm?": tp.SequenceParallel()}',
        "tp.RowwiseParallel(input_layouts=Replicate())": "tp.RowwiseParallel(input_layouts=Replicate(), "
        'output_layouts=Shard(1)), "norm": tp.SequenceParallel()',
        "tp.ColwiseParallel(output": "tp.ColwiseParallel(input_layouts=Shard(1), output",
    },
    "is no part of a weight": {
        '("attention.[qkv]", ': "(",
        '("attention.o", "mlp.down")': '("mlp.down",)',
        "    for block": '    plan["attention.[qkv]"] = tp.ColwiseParallel(output_layouts=Replicate())\n'
        '    plan["attention.o"] = tp.RowwiseParallel(input_layouts=Replicate())\n    for block',
    },
    "a gradient is left from the step before": {"optimizer.zero_grad()": "pass"},
    "in tensor parallelism every rank has the same batch": {
        'in task["batches"]:': "in (one.chunk(ranks)[rank] for one in task['batches']):"
    },
    "embedding.weight is a DTensor": {"torch.save(whole": "torch.save(model.state_dict()"},
    "embedding.weight has shape (21, 12), expected (42, 12)": {"one.full_tensor() if": "one.to_local() if"},
}

# 05.12 -----------------------------------------------------------------------------------------------------------

LEAVES, ENTERS = (
    "x = x.clone()\n        dist.all_reduce(x)",
    "gradient = gradient.contiguous()\n        dist.all_reduce(gradient)",
)

PASSES_ON = "backward(ctx, gradient):\n        return gradient"

WRONG["05.12", "cut"] = {
    "rank 0: the output is only this rank's share of the sum": {LEAVES: "x = x.clone()"},
    "the output is with the input added 2 times": {"x + Leave.apply(seen": "Leave.apply(x + seen"},
    "the output is without the input": {"x + Leave": "Leave"},
    "the output is what attention gives that sees later positions too": {"is_causal=True, ": ""},
    "scores are divided by the root of the width": {"is_causal=True, ": "is_causal=True, scale=x.shape[-1] ** -0.5, "},
    "the gradient of x is only this rank's share": {ENTERS: "pass"},
    "the gradient of x is with that of the added input 2 times": {
        "read = Enter.apply(F.rms_norm(x, ": "x_in = Enter.apply(x)\n    read = (F.rms_norm(x_in, ",
        "x + Leave": "x_in + Leave",
    },
    "the gradient of x is with what flows through attention 2 times": {
        PASSES_ON: f"{PASSES_ON} * dist.get_world_size()"
    },
    "the gradient of norm is only this rank's share": {"Enter.apply(F.rms_norm(x, ": "(F.rms_norm(Enter.apply(x), "},
    "the gradient of norm is exactly 2.0 x the right one": {
        "    gradients = {": "    dist.all_reduce(parts['norm'].grad)\n    gradients = {"
    },
    "rank 0 makes 4 all-reduces of 800 B, as large as x": {
        "read = Enter.apply(": "read = (",
        "(read @ parts": "(Enter.apply(read) @ parts",
    },
    "the gradient of norm has shape (20,), expected (10,)": {
        "{name: one.grad for": "{name: torch.cat([one.grad, one.grad]) for"
    },
}
WRONG["05.12", "shared"] = {
    "the gradient of k is only what this rank's own heads give": {"if kv_heads < ranks": "if False"},
    "2 heads of keys: output right; rank 0: the gradient of k is the sum over all ranks": {
        ", group=groups[rank // several]": ""
    },
    "besides these two rank 0 hands over 1440 B": {
        "        dist.all_reduce(both, group": "        dist.all_reduce(both.clone(), group=groups[rank // several])\n"
        "        dist.all_reduce(both.clone(), group=groups[rank // several])\n        dist.all_reduce(both, group"
    },
}
