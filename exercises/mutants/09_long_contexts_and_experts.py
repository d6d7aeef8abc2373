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
    "scores of about 2000: the max is no multiple of the reference": {"    return top": "    return top.clamp(max=1000.0)"},
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
    "rows that see nothing in the second block: the max": {
        TOP: f"torch.where(second[0].isinf(), second[0], {TOP})"
    },
}
