"""Plausible wrong answers to the exercises of module 09, each with the level that must reject it and why.

A dict is an edit: the exercise's solution, with pieces of its text changed. Not for learners: it comes close to the
solutions. Slips stand in the exercises themselves.
"""

from __future__ import annotations

WRONG = {}  # (exercise, level): wrong answers, by the reason that is told
HANGS = {}  # those that end by their time limit

# 09.2 ------------------------------------------------------------------------------------------------------------

TOP, FINITE = "torch.maximum(first[0], second[0])", "top.nan_to_num(neginf=0.0)"

WRONG["09.2", "plain"] = {
    "returned 2 things, not 3 things: the max, the sum, the out": {"return top, one": "return one"},
    "the max is the sum; return in this order: the max, the sum, the out": {
        "return top, one * first[1] + other * second[1], out": "return one * first[1] + other * second[1], top, out"
    },
    "the max: shape (), expected (6,)": {TOP: f"{TOP}.max()"},
    "the out is exactly 2.0 x the reference": {", out\n": ", out * 2\n"},
    "the sum is no multiple": {"one * first[1] +": "first[1] +"},
    "right, but `first` is overwritten": {"one.unsqueeze(-1) * first[2]": "first[2].mul_(one.unsqueeze(-1))"},
}
WRONG["09.2", "large"] = {
    "scores of about 2000: the max is no multiple of the reference": {
        "    return top": "    return top.clamp(max=1000.0)"
    },
    "the sum holds nan, not a number: an exp of a large number overflows": {
        "(first[0] - finite).exp(), (second[0] - finite).exp()": (
            "first[0].exp() / finite.exp(), second[0].exp() / finite.exp()"
        )
    },
}
WRONG["09.2", "blind"] = {
    "rows that have seen nothing yet: the sum of a row that has seen no key yet is nan, and it stays 0": {
        FINITE: "top"
    },
    "the max of a row that has seen no key yet is 0, and it stays -inf": {"return top,": "return finite,"},
    "rows that see nothing in the first block: the sum holds nan, not a number: in rows that see nothing": {
        "    one, other =": "    finite = finite + 0 * (first[0] + second[0])\n    one, other ="
    },
    "rows that see nothing in the second block: the max": {TOP: f"torch.where(second[0].isinf(), second[0], {TOP})"},
}

# 09.3 ------------------------------------------------------------------------------------------------------------

TAKEN, SHOWN = "if step > 0:", "mine < torch.tensor(positions[source])"
SENDS, WAITS = "comm.isend(both, (rank + 1) % p).wait()", "            receiving.wait()\n"

WRONG["09.3", "values"] = {
    "the output on rank 0: tuple, not a tensor of shape (2, 4, 3)": {"return out /": "return out, "},
    "the output on rank 0: shape (4, 2, 3), expected (2, 4, 3)": {
        "return out / total.unsqueeze(-1)": "return (out / total.unsqueeze(-1)).transpose(0, 1)"
    },
    "row against column": {SHOWN: "torch.arange(len(mine)).unsqueeze(-1) < torch.arange(both.shape[2])"},
    "no key is masked": {SHOWN: "torch.zeros(1, dtype=torch.bool)"},
    "by the number of their rank": {
        SHOWN: "(mine < torch.tensor(positions[source])) if source == rank else torch.tensor(source > rank)"
    },
    "only the rank's own block is masked": {SHOWN: f"({SHOWN}) & torch.tensor(source == rank)"},
    "the mask is that of another rank's positions": {SHOWN: "mine < torch.tensor(positions[(rank + step) % p])"},
    "the rank's own keys and values were used in each step": {"both[0].mT": "k.mT", "powers @ both[1]": "powers @ v"},
    "keys have travelled, and values have stayed": {"powers @ both[1]": "powers @ v"},
    "the last block is missing": {"range(p)": "range(max(1, p - 1))"},
    "the first block counts twice": {"range(p)": "range(p + 1)"},
    "the output is exactly 2.0 x the reference": {"return out": "return 2 * out"},
    "the output on rank 0 is no multiple of the reference": {"total * old": "total"},
    "holds nan, not a number: a row that sees nothing in a block": {
        "torch.maximum(largest, scores.amax(-1))": "scores.amax(-1)"
    },
    "the blocks' outputs were added up": {
        "top = torch": (
            "largest, total = torch.full_like(total, -torch.inf), torch.zeros_like(total)\n        top = torch"
        ),
        "torch.maximum(largest, scores.amax(-1))": "scores.amax(-1).nan_to_num(neginf=0.0)",
        "out = out * old.unsqueeze(-1) + powers @ both[1]": (
            "out = out + powers @ both[1] / total.clamp(min=1e-30).unsqueeze(-1)"
        ),
        "return out / total.unsqueeze(-1)": "return out",
    },
    "right values, but by comm.all_gather: this exercise asks you to build it from comm.irecv and comm.isend": {
        "range(p)": "[0]",
        "both = torch.stack([k, v])": (
            "both = comm.all_gather(torch.stack([k, v]).movedim(2, 0).contiguous()).movedim(0, 2)"
        ),
        "torch.tensor(positions[source])": "torch.tensor(sum(positions, []))",
    },
    "right values, but nothing is in the ledger": {
        "receiving = comm.irecv(into, (rank - 1) % p)": "receiving = dist.irecv(into, (rank - 1) % p)",
        SENDS: "dist.isend(both, (rank + 1) % p).wait()",
    },
    "right, but `k` on rank 0 is overwritten": {
        "both = torch.stack([k, v])": "both = torch.stack([k, v])\n    k.zero_()"
    },
}
WRONG["09.3", "uneven"] = {
    "4 ranks, 13 positions, zigzag: an error": {"len(positions[source])": "len(mine)"},
}
WRONG["09.3", "ring"] = {
    "rank 0 sends 1248 bytes, target 960: that is one hop more than needed": {
        "    return out": "    both = hop(both) if p > 1 else both\n    return out",
        "    mine =": (
            "\n    def hop(x):\n        into = x.new_empty(2, 2, len(positions[(rank - p) % p]), 3)\n"
            "        receiving = comm.irecv(into, (rank - 1) % p)\n        comm.isend(x, (rank + 1) % p).wait()\n"
            "        receiving.wait()\n        return into\n\n    mine ="
        ),
    },
    "in this ring it sends to rank 1 alone": {
        "(rank - 1) % p": "source",
        SENDS: "comm.isend(torch.stack([k, v]), (rank + step) % p).wait()",
    },
}
HANGS["09.3", "values"] = {
    "rank 0 waits in isend to 1": {
        "            receiving = comm.irecv(into, (rank - 1) % p)\n": "",
        WAITS: "            comm.recv(into, (rank - 1) % p)\n",
    },
}

# 09.4 ------------------------------------------------------------------------------------------------------------

HOME, HIDDEN = (
    "        if p > 1:\n            of_both = hop(of_both, coming)\n",
    "mine < torch.tensor(positions[source])",
)
ADDED = "        of_both += torch.stack([of_scores.mT @ q, weights.mT @ gradient])\n"
RETURNED = "return of_q, of_both[0], of_both[1]"

WRONG["09.4", "values"] = {
    "rank 0 returned Tensor, not 3 things: the gradient of q": {RETURNED: "return of_q"},
    "the gradient of q on rank 0 is the gradient of k; return in this order": {
        RETURNED: "return of_both[0], of_both[1], of_q",
    },
    "the gradient of k on rank 0: shape (4, 2, 3), expected (2, 4, 3)": {
        RETURNED: "return of_q, of_both[0].transpose(0, 1), of_both[1]"
    },
    "what a rank returns are the gradients of the next rank's keys": {HOME: HOME.replace("p > 1", "step < p - 1")},
    "They are one hop from home: after the last term": {HOME: "", ADDED: HOME + ADDED},
    "the gradients of k and v have this rank's own term alone": {
        ADDED: ADDED.replace("of_both +=", "of_both = of_both + (step == 0) *"),
        HOME: "",
    },
    "the terms of all blocks were added up on the rank that made them": {HOME: ""},
    "the rank's own keys and values were used in each step": {"keys, values = both": "keys, values = k, v"},
    "keys have travelled, and values have stayed": {"keys, values = both": "keys, values = both[0], v"},
    "each block's weights add up to 1 by themselves": {
        "(scores - lse.unsqueeze(-1)).exp()": "scores.softmax(-1).nan_to_num()"
    },
    "holds nan, not a number: exp(score - lse) of a masked score is 0": {
        "(scores - lse.unsqueeze(-1)).exp()": "scores.softmax(-1)"
    },
    "was taken over each block": {
        "gradient @ values.mT - mean": (
            "gradient @ values.mT - (weights * (gradient @ values.mT)).sum(-1, keepdim=True)"
        )
    },
    "the mean over all keys is missing": {" - mean)": ")"},
    "the gradient of q is the term of the block that came last": {"of_q += of": "of_q = of"},
    "row against column": {HIDDEN: "torch.arange(len(mine)).unsqueeze(-1) < torch.arange(both.shape[2])"},
    "no key is masked": {HIDDEN: "torch.zeros(1, dtype=torch.bool)"},
    "only the rank's own block is masked": {HIDDEN: f"({HIDDEN}) & torch.tensor(source == rank)"},
    "the mask is that of another rank's positions": {HIDDEN: "mine < torch.tensor(positions[(rank + step) % p])"},
    "scores were divided by the root of D, and their gradient was not": {" - mean) / root": " - mean)"},
    "the gradient of q is exactly 1/4 of the reference: divided by the number of ranks?": {
        RETURNED: "return of_q / p, of_both[0] / p, of_both[1] / p"
    },
    "the gradient of k is exactly 1/4 of the reference: divided by the number of ranks?": {
        RETURNED: "return of_q, of_both[0] / p, of_both[1] / p"
    },
    "the gradient of k on rank 0 is no multiple": {"[of_scores.mT @ q,": "[scores.exp().mT @ q,"},
    "the gradient of v on rank 0 is no multiple": {"weights.mT @ gradient]": "of_scores.mT @ gradient]"},
    "right values, but by comm.all_reduce: this exercise asks you to build it": {
        RETURNED: "comm.all_reduce(torch.zeros(4))\n    " + RETURNED
    },
    "right values, but nothing is in the ledger": {
        "receiving = comm.irecv(into, (rank - 1) % p)": "receiving = dist.irecv(into, (rank - 1) % p)",
        "comm.isend(x, (rank + 1) % p).wait()": "dist.isend(x, (rank + 1) % p).wait()",
    },
    "right, but `out` on rank 0 is overwritten": {"(gradient * out)": "out.mul_(gradient)"},
}
WRONG["09.4", "uneven"] = {
    "4 ranks, 13 positions, zigzag: an error": {"len(positions[coming])": "len(mine)"},
}
WRONG["09.4", "ring"] = {
    "rank 0 sends 2496 bytes, target 2208: that is one hop of keys and values more than needed": {
        "if step < p - 1:": "if p > 1:"
    },
    "in this ring it sends to rank 1 alone": {
        "    return of_q": (
            "    if p > 1:\n        got = comm.irecv(torch.empty(1), (rank + 1) % p)\n"
            "        comm.isend(torch.zeros(1), (rank - 1) % p).wait()\n        got.wait()\n    return of_q"
        ),
    },
}
HANGS["09.4", "values"] = {
    "rank 0 waits in isend to 1": {
        "        receiving = comm.irecv(into, (rank - 1) % p)\n": "",
        "        receiving.wait()\n": "        comm.recv(into, (rank - 1) % p)\n",
    },
}


# 09.5 ------------------------------------------------------------------------------------------------------------

LATE, BACK = "*pieces[2 * p - 1 - rank].tolist()", "gathered.argsort().tolist()"
PIECES, HELD = "torch.arange(length).tensor_split(2 * p)", "[start + position for position in mine]"

WRONG["09.5", "one"] = {
    "returned list_iterator, not four things: held, angles, back, pairs": {
        f"return held, angles, {BACK}, pairs": "return iter(held)"
    },
    "returned 3 things, not four things": {f"return held, angles, {BACK}, pairs": "return held, angles, pairs"},
    "a whole number is wanted, and 0.5 is none": {HELD: "[start + position + 0.5 for position in mine]"},
    "each rank has one run of tokens": {PIECES: "torch.arange(length).tensor_split(p)", LATE: ""},
    "tokens are dealt out one by one": {"[*pieces[rank].tolist(), " + LATE + "]": "list(range(rank, length, p))"},
    "rank r has piece 2p - 1 - r": {LATE: "*pieces[p + rank].tolist()"},
    "the second piece runs backwards": {LATE: "*pieces[2 * p - 1 - rank].flip(0).tolist()"},
    "angles counts a rank's tokens from 0": {
        "angles[rank] += mine": "angles[rank] += range(len(mine))",
        "in angles]": "in held]",
    },
    "back says where each gathered token belongs": {BACK: "gathered.tolist()"},
    "back is the row's own order": {BACK: "gathered.sort().values.tolist()"},
    "pairs leaves a query's own key out": {"sum(position + 1": "sum(position"},
    "pairs has a rank's own keys alone": {"sum(position + 1 for position in mine)": "len(mine) * (len(mine) + 1) // 2"},
    "pairs has those that the mask hides": {"sum(position + 1 for position in mine)": "len(mine) * start"},
    "held of rank 0 is [": {HELD: "[start + position + 1 for position in mine]"},
    "pairs is [": {"sum(position + 1": "2 * sum(position + 1"},
}
WRONG["09.5", "documents"] = {
    "held has positions within documents": {
        f"return held, angles, {BACK}": f"return angles, angles, {BACK}",
    },
    "the row was cut as one document": {
        "for length in lengths:": "for length in [sum(lengths)]:",
        "    gathered =": (
            "    at = [i for n in lengths for i in range(n)]\n"
            "    angles = [[at[token] for token in mine] for mine in held]\n    gathered ="
        ),
    },
    "held has the front pieces of all documents first": {
        "    gathered =": (
            "    lists = [sorted(zip(h, a), key=lambda one: (one[1] >= half(one, lengths), one[0])) for h, a in "
            "zip(held, angles)]\n"
            "    held, angles = ([[one[i] for one in mine] for mine in lists] for i in (0, 1))\n    gathered ="
        ),
        "    held, angles, start =": (
            "    def half(one, lengths):\n        return lengths[[one[0] - one[1] == sum(lengths[:n]) for n in "
            "range(len(lengths))].index(True)] / 2\n\n    held, angles, start ="
        ),
    },
    "angles has places in the row": {
        "angles[rank] += mine": f"angles[rank] += {HELD}",
        "sum(position + 1 for position in mine) for mine in angles": (
            "sum(token + 1 - max(n for n in starts if n <= token) for token in mine) for mine in held"
        ),
        "    pairs =": "    starts = [sum(lengths[:n]) for n in range(len(lengths))]\n    pairs =",
    },
    "pairs lets a query see the documents before its own": {"in angles]": "in held]"},
}
WRONG["09.5", "uneven"] = {
    "the pieces are those of `chunk`": {
        PIECES: "[torch.arange(length)[i * -(-length // (2 * p)):][:-(-length // (2 * p))] for i in range(2 * p)]"
    },
    "each document was cut for p ranks first": {
        PIECES: (
            "torch.arange(length).split([-(-n // 2) for n in sizes(length)] + [n // 2 for n in sizes(length)[::-1]])"
        ),
        "    held, angles, start =": (
            "    def sizes(length):\n        return [len(x) for x in torch.arange(length).tensor_split(p)]\n\n"
            "    held, angles, start ="
        ),
    },
    "some tokens are on no rank": {PIECES: "torch.arange(length // (2 * p) * 2 * p).tensor_split(2 * p)"},
}
WRONG["09.5", "edges"] = {
    "documents shorter than 2p: ": {"    for length in lengths:": "    for length in (n for n in lengths if n >= p):"},
}

# 09.6 ------------------------------------------------------------------------------------------------------------

GIVEN, TERMS = "return output, *of_three", "[to_positions(x, spans, like) for x"
READS, ADDS = "reads = heads[rank] // group - kv_heads[rank][0]", "whole[span] += part"
OF_OUTPUT = "to_heads(gradient, heads)"

WRONG["09.6", "values"] = {
    "rank 0 returned Tensor, not 4 things: the output": {GIVEN: "return output"},
    "returned 3 things, not 4": {GIVEN: "return of_three"},
    "all query heads of a rank read the first kv head": {READS: "reads = torch.zeros_like(heads[rank])"},
    "no key is masked": {"is_causal=True": "is_causal=False"},
    "what comes from the ranks lies rank by rank": {"[:, order]": ""},
    "the output's gradient was not sorted by position": {OF_OUTPUT: "to_heads(gradient, heads)[:, order.argsort()]"},
    "results went home as if each rank had a run of neighbours": {
        "[x[:, mine] for mine in positions]": "list(x.split([len(mine) for mine in positions], 1))"
    },
    "scores were not divided by the root": {"is_causal=True": "is_causal=True, scale=1.0"},
    "the gradient of q is exactly 2.0 x": {OF_OUTPUT: "2 * to_heads(gradient, heads)"},
    "the gradient of k on rank 0 is no multiple": {
        "    of_three =": "    gradients = gradients[0], gradients[1].flip(0), gradients[2]\n    of_three ="
    },
    "right values, but nothing is in the ledger": {
        "comm.all_to_all_uneven(": "native(",
        "    def to_heads": (
            "    def native(outgoing, shapes):\n        into = [torch.empty(shape) for shape in shapes]\n"
            "        dist.all_to_all(into, [x.contiguous() for x in outgoing])\n        return into\n\n"
            "    def to_heads"
        ),
    },
}
WRONG["09.6", "shared"] = {
    "one gradient was kept": {ADDS: "whole[span] = part"},
    "were averaged": {
        "    of_three =": "    many = torch.bincount(torch.cat(kv_heads)).view(-1, 1, 1)\n    of_three =",
        TERMS: "[to_positions(x, spans, like) / (many if like is not q else 1) for x",
    },
    "counts more than once": {
        "    of_three =": "    many = torch.bincount(torch.cat(kv_heads)).view(-1, 1, 1)\n    of_three =",
        TERMS: "[to_positions(x, spans, like) * (many if like is not q else 1) for x",
    },
    "here it reads h % K": {
        "own // group": "own % len(k)",
        READS: "reads = torch.searchsorted(kv_heads[rank], heads[rank] % len(k))",
    },
    "on 4 ranks, 12 positions, zigzag: an error": {
        "kv_heads = [(own // group).unique() for own in heads]": "kv_heads = torch.arange(len(k)).tensor_split(p)"
    },
}
WRONG["09.6", "uneven"] = {
    "zigzag: an error": {"torch.arange(len(q)).tensor_split(p)": "torch.arange(len(q)).split(len(q) // p)"},
    "13 positions, zigzag: ": {"len(mine), D) for mine": "len(q[0]), D) for mine"},
}
WRONG["09.6", "bytes"] = {
    "keys and values travel once for each query head that reads them": {
        "    pairs = (q, heads), (k, kv_heads), (v, kv_heads)\n": (
            "    copied = [x.repeat_interleave(group, 0) for x in (k, v)]\n"
            "    pairs = (q, heads), (copied[0], heads), (copied[1], heads)\n"
        ),
        READS: "reads = torch.arange(len(heads[rank]))",
        "    of_three =": "    gradients, (of_q, *both) =",
        GIVEN: "return output, of_q, *(x.unflatten(0, (-1, group)).sum(1) for x in both)",
        "    gradients, (of_q, *both) =": "    of_q, *both =",
    },
    "and nothing twice": {"    output =": "    to_heads(gradient, heads)\n    output ="},
}

# 09.7 ------------------------------------------------------------------------------------------------------------

PLACES = "<= ceil(factor * S * k / E)"

WRONG["09.7", "weights"] = {
    "returned Tensor, not three things": {"return weights * kept, dropped, E * (f * P).sum(-1)": "return weights"},
    "the weights have shape (2, 12, 2), expected (2, 12, 4)": {"return weights * kept": "return values"},
    "the weights are the softmax's own": {"values = values / values.sum(-1, keepdim=True)": "pass"},
    "the balance loss: returned float, not a tensor": {"(f * P).sum(-1)": "(f * P).sum().item()"},
    "the weights of token 0 in sequence 0 are": {"scatter(-1, places, values)": "scatter(-1, places, values.flip(-1))"},
}
WRONG["09.7", "places"] = {
    "places are given away over the whole batch": {
        f"(chosen.cumsum(1) {PLACES})": (
            "(chosen.flatten(0, 1).cumsum(0) <= ceil(len(chosen) * factor * S * k / E)).view_as(chosen)"
        )
    },
    "the places are rounded down": {PLACES: "<= int(factor * S * k / E)"},
    "the places forget the k": {PLACES: "<= ceil(factor * S / E)"},
    "an expert has one place less than it should": {PLACES: "< ceil(factor * S * k / E)"},
    "an expert has one place more than it should": {"(chosen.cumsum(1) <": "(chosen.cumsum(1) - chosen <"},
    "the dropped ones are counted by token": {"(chosen - kept).sum((1, 2))": "(chosen - kept).amax(-1).sum(1)"},
    "only tokens without any place are counted": {"(chosen - kept).sum((1, 2))": "(kept.amax(-1) == 0).sum(1)"},
    "has the weights of the others made larger": {
        "return weights * kept": (
            "weights = weights * kept\n"
            "    weights = weights / weights.sum(-1, keepdim=True).clamp(1e-9)\n    return weights"
        )
    },
    "the dropped choices of sequence 0: 0 there": {"(chosen - kept).sum": "0 * (chosen - kept).sum"},
}
WRONG["09.7", "balance"] = {
    "f counts what is left after dropping": {"f, P = chosen.mean": "f, P = kept.mean"},
    "f adds up to k and not to 1": {"chosen.mean(1) / k": "chosen.mean(1)"},
    "P is the mean of the weights": {"probabilities.mean(1)\n": "weights.mean(1)\n"},
    "f and P are those of the whole batch": {
        "chosen.mean(1) / k, probabilities.mean(1)": (
            "chosen.mean((0, 1)) / k, probabilities.mean((0, 1)).expand(len(logits), E)"
        )
    },
    "the factor E is missing": {"dropped, E * (f": "dropped, (f"},
    "no gradient goes back from the balance loss": {"probabilities.mean(1)\n": "probabilities.mean(1).detach()\n"},
    "no gradient goes back from the weights": {"return weights * kept": "return weights.detach() * kept"},
    "not the gradient that reaches the logits of sequence 0": {
        "return weights * kept, dropped, E * (f * P).sum(-1)": (
            "return (weights * kept).detach(), dropped, E * (f * P).sum(-1).detach()"
        )
    },
}
WRONG["09.7", "edges"] = {
    "the weights of token": {
        "return weights * kept": "return (weights * kept if S > 1 else weights * 0)",
    },
}

# 09.8 ------------------------------------------------------------------------------------------------------------

RESULT = "return output, go(row_gradients[back], from_rank, to_rank), weight_gradients"

WRONG["09.8", "values"] = {
    "returned Tensor, not 3 things: the output": {RESULT: "return output"},
    "rows arrive by rank, and they were taken for sorted": {
        ".argsort(stable=True)\n": ".argsort() * 0 + torch.arange(coming.sum())\n"
    },
    "results went home in the order of experts": {"back = order.argsort()": "back = torch.arange(len(order))"},
    "results went home sorted once more": {"back = order.argsort()": "back = order"},
    "the gradients arrived by rank and were not sorted": {
        "go(gradient, to_rank, from_rank)[order]": "go(gradient, to_rank, from_rank)"
    },
    "the experts' gradient is exactly 1/2 of": {RESULT: RESULT + " / ranks"},
    "the experts' gradient is on every rank the sum of all ranks' parts": {
        RESULT: RESULT.replace("weight_gradients", "comm.all_reduce(weight_gradients)")
    },
    "all_to_all_uneven": {"[(mine,)] * ranks": "[(mine + 1,)] * ranks"},
    "right values, but nothing is in the ledger": {
        "comm.all_to_all_uneven(": "native(",
        "    ranks = dist.get_world_size()\n": (
            "    def native(outgoing, shapes):\n"
            "        sizes = [torch.Size(shape).numel() for shape in shapes]\n"
            "        into = torch.empty(sum(sizes), dtype=outgoing[0].dtype)\n"
            "        flat = torch.cat([x.flatten() for x in outgoing])\n"
            "        dist.all_to_all_single(into, flat, sizes, [x.numel() for x in outgoing])\n"
            "        return [x.view(shape) for x, shape in zip(into.split(sizes), shapes)]\n\n"
            "    ranks = dist.get_world_size()\n"
        ),
    },
}
WRONG["09.8", "uneven"] = {
    "3 ranks": {"counts.tensor_split(ranks)": "counts.split(len(counts) // ranks)"},
    "7 experts on 3 ranks: ": {"counts.tensor_split(ranks)": "counts.chunk(ranks)"},
}
WRONG["09.8", "idle"] = {
    "without rows": {"    parts = list": "    assert min(counts) > 0 or ranks == 1\n    parts = list"},
}
WRONG["09.8", "bytes"] = {
    "values right, but rank 0 sends": {"    output = go": "    comm.all_reduce(weights.sum())\n    output = go"},
}

# 09.9 ------------------------------------------------------------------------------------------------------------

FOUND, DIVIDED = 'return 3, "gradients", 2', "/ self.everyone.size()"

WRONG["09.9", "diagnosis"] = {
    "give three things, a complaint's number, the rung's name": {FOUND: 'return "gradients", 2'},
    "complaint 1 is true of what `log` prints": {FOUND: 'return 1, "gradients", 2'},
    "complaint 2: then the router's gradient would be wrong": {FOUND: 'return 2, "gradients", 2'},
    "complaint 4: then every gradient would be too large": {FOUND: 'return 4, "gradients", 2'},
    "5 is no complaint's number": {FOUND: 'return 5, "gradients", 2'},
    "rung 'loss curve': an earlier one fails": {FOUND: 'return 3, "loss curve", 2'},
    "how many times too large these gradients are is not 4": {FOUND: 'return 3, "gradients", 4'},
}
WRONG["09.9", "steps"] = {
    "experts are divided by some of the ranks alone": {DIVIDED: "/ group.size()"},
    "your gradient is exactly 3.0 x the reference": {DIVIDED: "/ self.everyone.size() * 3"},
}

# 09.10 -----------------------------------------------------------------------------------------------------------

WRONG["09.10", "published"] = {
    "returned str, not two things: a list of counts, and a name": {"return counts, wrong": "return wrong"},
    "the list is to hold pairs of numbers": {"counts.append((total, active))": "counts.append(total)"},
    "not a list with a pair for each of 4 lines": {"return counts, wrong": "return counts[:1], wrong"},
    "everything is multiplied by the number of experts": {
        "fixed += sparse * (c.E * c.H + 3 * c.H * c.shared_F)": "routers = sparse * c.E * c.H",
        "(fixed + sparse * n * 3 * c.H * c.F for": (
            "(n * (fixed + sparse * 3 * c.H * (c.F + c.shared_F)) + routers for"
        ),
    },
    "the active ones are the share k / E of all": {
        "counts.append(": "active = total * c.k // c.E\n        counts.append("
    },
    "of the router only k rows are active": {
        "counts.append(": "active -= sparse * c.H * (c.E - c.k)\n        counts.append("
    },
    "the active ones have no shared expert": {
        "counts.append(": "active -= sparse * 3 * c.H * c.shared_F\n        counts.append("
    },
    "the routers are not counted": {"(c.E * c.H + 3": "(3"},
    "the first layers have experts there": {"sparse = c.L - c.dense": "sparse = c.L", "c.dense * 3": "0 * 3"},
    "the dense layers have a router there": {"sparse * (c.E * c.H +": "c.L * c.E * c.H + sparse * ("},
    "an expert has three matrices": {"n * 3 * c.H * c.F": "n * 2 * c.H * c.F"},
    "the last norm is missing": {"tables + c.H +": "tables +"},
    "the counts are right, and Qwen3-30B-A3B's line follows from them: 30.5 and 3.4 billion": {
        "return counts, wrong": 'return counts, "Qwen3-30B-A3B"'
    },
    "the counts are right, but 'Mixtral' is no model of the table": {
        "return counts, wrong": 'return counts, "Mixtral"'
    },
    "all parameters: 4,096 too many, exactly H, the last norm": {"tables + c.H +": "tables + 2 * c.H +"},
}
WRONG["09.10", "drawn"] = {
    "'Mixtral 8x7B' is no model of the table: it has Model A": {
        "return counts, wrong": 'return counts, "Mixtral 8x7B"'
    },
    "the head is counted where": {
        "c.V * c.H * (1 if c.tied else 2)": 'c.V * c.H * (1 if c.tied and c.name[:5] != "Model" else 2)'
    },
}

# 09.11 -----------------------------------------------------------------------------------------------------------

GATHERED = "(all_gather_single_autograd(x.contiguous(), 2, dist.group.WORLD) for x in (k, v))"
ROTATED, SHOWN_TO = "q, k = rotated(q, mine), rotated(k, mine)", "attn_mask=mine[:, None] >= theirs"
SUMMED = "            dist.all_reduce(weight.grad)\n"
DIVISOR, LOSS_SUM = "(targets != -100).sum()  # of all ranks", "        dist.all_reduce(whole)\n"
CUT_FIRST = {
    "targets = tokens[:, :-1], labels[:, 1:]": (
        "targets = tokens[:, :-1], F.pad(labels[:, mine][:, 1:], (0, 1), value=-100)"
    ),
    "targets[:, mine].flatten()": "targets.flatten()",
}

WRONG["09.11", "sgd"] = {
    "the text of the script": {'    main(sys.argv[1])\n"""\n': '    main(sys.argv[1])\n"""\nshared_sequences = 7\n'},
    "answer-0.pt is to hold a dict with 'weights', 'losses' and 'shares'": {', "shares": shares': ""},
    "there is no answer-1.pt in the folder": {"    torch.save(answer": "    if rank == 0:\n        torch.save(answer"},
    "each rank divides by its own labels and the means are averaged": {
        DIVISOR: "(targets[:, mine] != -100).sum() / len(positions)"
    },
    "each rank divides by its own labels and the gradients are added up": {DIVISOR: "(targets[:, mine] != -100).sum()"},
    "everything is divided by the ranks once more": {SUMMED: SUMMED + "            weight.grad /= len(positions)\n"},
    "every gradient is too large by the number of processes": {
        SUMMED: SUMMED + "            weight.grad *= len(positions)\n"
    },
    "the loss is divided by all positions": {DIVISOR: "targets.numel()"},
    "losses are added up and not divided": {DIVISOR: "1"},
    "what rank 0 learns if nobody adds up gradients": {SUMMED: "            pass\n"},
    "a weight has no gradient on this rank. Does the gather give nothing back": {
        GATHERED: GATHERED.replace("x.contiguous()", "x.detach().contiguous()")
    },
    "gathered without their gradient": {
        GATHERED: GATHERED.replace("x.contiguous()", "x.detach().contiguous()"),
        "for weight in model.parameters():": "for weight in (w for w in model.parameters() if w.grad is not None):",
    },
    "from its own queries alone": {
        GATHERED: GATHERED.replace("x.contiguous()", "x.detach().contiguous()"),
        "    return F.scaled": (
            "    n = len(mine)\n"
            "    spans = [slice(n * one, n * (one + 1)) for one in range(len(positions))]\n"
            "    k, v = (\n"
            "        torch.cat([own if r == dist.get_rank() else x[:, :, span] for r, span in enumerate(spans)], 2)\n"
            "        for x, own in ((k, own_k), (v, own_v))\n"
            "    )\n"
            "    return F.scaled"
        ),
        "    k, v = (all_gather": "    own_k, own_v = k, v\n    k, v = (all_gather",
    },
    "each rank counts its positions from 0": {ROTATED: "q, k = (rotated(x, torch.arange(len(mine))) for x in (q, k))"},
    "keys are not rotated": {ROTATED: "q = rotated(q, mine)"},
    "row against column, as is_causal does": {SHOWN_TO: "is_causal=True"},
    "the gathered keys to lie in the sequence's order": {SHOWN_TO: "attn_mask=mine[:, None] >= torch.arange(16)"},
    "no key is masked": {SHOWN_TO: "attn_mask=None"},
    "to guess the token that it reads": {"labels[:, 1:]  #": "labels[:, :-1]  #"},
    "labels are cut first and shifted then": CUT_FIRST,
    "2 processes: rank 0: the weights are what comes out if labels are cut first": {
        **CUT_FIRST,
        DIVISOR: "(labels[:, 1:] != -100).sum()",
    },
    "a gradient is left from the step before": {"        optimizer.zero_grad()\n": ""},
    "the weights are those of the start": {"        optimizer.step()\n": ""},
    "by the losses, the first forward is right, and its gradient is not": {
        SUMMED: SUMMED + "        model.norm.weight.grad *= 0.5\n"
    },
    "is it summed twice?": {SUMMED: SUMMED + SUMMED},
    "rank 1: head.weight has moved exactly 2.0 x as far as on one device; rank 0's weights are right": {
        "    answer = ": (
            '    model.head.weight.data += rank * (model.head.weight.data - task["weights"]["head.weight"])\n'
            "    answer = "
        )
    },
    "'losses' has 1.9024, exactly 1/2 of": {LOSS_SUM: LOSS_SUM + "        whole /= len(positions)\n"},
    "and that is this rank's share": {LOSS_SUM: ""},
    "and that is the loss of all ranks": {
        "        shares.append(loss.item())\n": "",
        LOSS_SUM: LOSS_SUM + "        shares.append(whole.item())\n",
    },
    "the task says which positions it reads": {
        "    positions = task": "    positions = torch.arange(16).view(dist.get_world_size(), -1).tolist()\n    task"
    },
    "'losses' is to be a list of 3 numbers": {"losses.append(whole.item())": "losses = whole.item()"},
    "3.0 x its keys and values of 3 steps: are they copied for their query heads first?": {
        "x.contiguous()": "x.repeat_interleave(3, 1)"
    },
    "2.5 x its keys and values of 3 steps: gather them once in each layer, and nothing else": {
        GATHERED: GATHERED + "\n    all_gather_single_autograd(q.detach().contiguous(), 2, dist.group.WORLD)"
    },
    "does another call bring them, or does each rank compute positions of others?": {
        "model(inputs[:, mine], positions)": "model(inputs, positions)[:, mine]",
        "    mine, theirs = ": "    mine, theirs = torch.arange(16), torch.arange(16)  # ",
        GATHERED: "(k, v)",
    },
    "B to all-reduces, 2.0 x the gradients": {SUMMED: SUMMED + "            dist.all_reduce(weight.grad.clone())\n"},
    "values right, but rank 0 makes reduce of": {
        LOSS_SUM: LOSS_SUM + "        dist.reduce(loss.detach().clone(), 0)\n"
    },
    "it imports course_lib": {"import sys\n": "import sys\nfrom course_lib import comm\n"},
}
WRONG["09.11", "adamw"] = {
    "'losses' has nan: the mean over no label is nan": {
        'reduction="sum")': 'reduction="mean") * (targets[:, mine] != -100).sum()'
    },
    "an error on rank 3": {
        "        loss.backward()": "        if (targets[:, mine] != -100).any():\n            loss.backward()"
    },
}

# 09.12 -----------------------------------------------------------------------------------------------------------

SUM = "    dist.all_reduce(router.grad)\n"

WRONG["09.12", "equal"] = {
    "rank 0: the output is weighed by the softmax's own numbers": {
        "    shares = shares / shares.sum(-1, keepdim=True)\n": ""
    },
    "rank 0: the output is not weighed": {"home * shares": "home + 0 * shares"},
    "the output has the right numbers in other places": {
        "torch.zeros_like(x).index_add(0, token, weighed)": "torch.zeros_like(x).index_add(0, token, weighed).flip(0)"
    },
    "the output is no multiple of the right one": {"arrived[by_expert].split": "arrived.split"},
    "rank 0: the gradient of x is only what flows through the weights": {"home * shares": "home.detach() * shares"},
    "the gradient of router is only this rank's share": {SUM: ""},
    "the gradient of router is divided by 2": {SUM: SUM + "    router.grad /= ranks\n"},
    "the gradient of experts is divided by 2": {SUM: SUM + "    experts.grad /= ranks\n"},
    "the gradient of experts is 2 times too large": {SUM: SUM + "    experts.grad *= ranks\n"},
    "the gradient of experts has shape": {'"experts": experts.grad}': '"experts": experts.grad[0]}'},
    "rank 0 makes all_gather": {
        SUM: SUM + "    dist.all_gather([torch.empty(2).double() for _ in range(ranks)], x.detach()[0, :2].clone())\n"
    },
    "rank 0 all-reduces 1536 B, and 384 B are right": {SUM: SUM + "    dist.all_reduce(experts.grad.clone())\n"},
    "the gradient of experts is the sum of all ranks' parts": {SUM: SUM + "    dist.all_reduce(experts.grad)\n"},
    "rank 0 tells others 128 B besides rows": {
        "    coming = coming.view": "    dist.all_reduce(counts.clone())\n    coming = coming.view"
    },
    "B of rows to all-to-alls, and": {
        SUM: SUM
        + "    all_to_all_single_autograd(x[:ranks].detach(), [1] * ranks, [1] * ranks, dist.group.WORLD).sum()\n"
    },
}
WRONG["09.12", "uneven"] = {
    "an error on rank": {"counts.split(here)": "counts.chunk(ranks)"},
    "6 experts: ": {
        "    ### BEGIN SOLUTION\n": "    ### BEGIN SOLUTION\n    if n_experts == 6:\n        router.data[-1] *= 0\n"
    },
}
