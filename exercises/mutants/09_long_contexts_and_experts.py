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
