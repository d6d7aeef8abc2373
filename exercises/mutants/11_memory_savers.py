"""Plausible wrong answers to the exercises of module 11, each with the level that must reject it and why.

A dict is an edit: the exercise's solution, with pieces of its text changed. Not for learners: it comes close to the
solutions. Slips stand in the exercises themselves.
"""

from __future__ import annotations

WRONG = {}  # (exercise, level): wrong answers, by the reason that is told
HANGS = {}  # those that end by their time limit

# 11.4 ------------------------------------------------------------------------------------------------------------

ATTENDED, SEEN = "return out / total.unsqueeze(-1), top + total.log()", "scores.masked_fill(rows < columns, -torch.inf)"

WRONG["11.4", "values"] = {
    "returned Tensor, not two things: the output, the lse": {ATTENDED: "return out / total.unsqueeze(-1)"},
    "the output is the lse; return in this order: the output, the lse": {
        ATTENDED: "return top + total.log(), out / total.unsqueeze(-1)"
    },
    "a query does not see the key at its own position": {
        SEEN: "scores.masked_fill((rows <= columns) & (rows > 0), -torch.inf).masked_fill(rows < columns, -torch.inf)"
    },
    "a query sees keys that come after it": {SEEN: "scores"},
    "out and sum of the tiles before are relative to an older max": {
        "total * old": "total",
        "out * old.unsqueeze(-1)": "out",
    },
    "the last tile is missing where it is shorter": {"range(0, S, tile)": "range(0, S - S % tile, tile)"},
    "lse is the log of the sum alone": {"top + total.log()": "total.log()"},
    "the output is exactly 2.0 x it": {"return out /": "return 2 * out /"},
    "the output is no multiple of the reference; the first query that is wrong is 4": {
        "out * old.unsqueeze(-1)": "out * old.unsqueeze(-1) ** 2"
    },
    "right, but by aten._scaled_dot_product": {
        ATTENDED: "return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0], top + total.log()"
    },
    "right, but `q` is overwritten": {
        "q @ k[:, columns].mT / D**0.5": "(q.div_(D**0.5) if start == 0 else q) @ k[:, columns].mT"
    },
}
WRONG["11.4", "values"] |= {
    "it failed at cell line 12: IndexError": {"min(start + tile, S)": "start + tile"},
}
WRONG["11.4", "edges"] = {
    "the output holds nan, not a number: does exp get a large number": {
        "torch.maximum(top, scores.amax(-1))": "torch.zeros_like(top)"
    },
    "12 positions in tiles of 5 keys, scores of about -2000: ": {
        "torch.full_like(q[..., 0], -torch.inf)": "torch.zeros_like(q[..., 0])"
    },
    "5 positions in tiles of 16 keys: ": {"range(0, S, tile)": "range(0, S if S >= tile else 0, tile)"},
}
WRONG["11.4", "memory"] = {
    "are the scores of several tiles there together": {
        "    for start": "    kept = []\n    for start",
        "        new = torch": "        kept.append(scores)\n        new = torch",
    },
    "right, but at its largest it takes": {
        "range(0, S, tile)": "range(1)",
        "min(start + tile, S)": "S",
    },
}

# 11.6 ------------------------------------------------------------------------------------------------------------

PAST, FROZEN = "return self.base(x) + self.scale * (x @ self.A.T) @ self.B.T", "base.requires_grad_(False)"

WRONG["11.6", "born"] = {
    "the frozen map is trained as well": {FROZEN: "base"},
    "trained are A, B, gain, and A and B alone are to be": {
        "        self.base, self.scale": "        self.gain = nn.Parameter(torch.ones(1))\n        self.base, self.scale"
    },
    "A is torch.float64 of (7, 2), and torch.float64 of (2, 7) is expected": {
        "torch.randn(r, base.in_features": "torch.randn(base.in_features, r"
    },
    "A is torch.float32 of (2, 7)": {
        "torch.randn(r, base.in_features, dtype=base.weight.dtype)": "torch.randn(r, base.in_features)"
    },
    "the layer has no parameter A": {
        "self.A = nn.Parameter(torch.randn(r, base.in_features, dtype=base.weight.dtype) / math.sqrt(base.in_features))": (
            "self.A = torch.randn(r, base.in_features, dtype=base.weight.dtype)"
        )
    },
    "B is not 0 at the beginning": {"torch.zeros(base.out": "1e-3 * torch.ones(base.out"},
}
WRONG["11.6", "moved"] = {
    "the scale is missing": {PAST: "return self.base(x) + (x @ self.A.T) @ self.B.T"},
    "A gets no gradient": {"x @ self.A.T": "x @ self.A.detach().T"},
    "x's gradient is no multiple": {"x @ self.A.T": "x.detach() @ self.A.T"},
    "do you build B A, which is as large as the frozen matrix?": {
        PAST: "return self.base(x) + self.scale * x @ (self.B @ self.A).T"
    },
    "A's gradient is exactly 2.0 x the reference": {
        "x @ self.A.T": "x @ (2 * self.A - self.A.detach()).T",
    },
}
WRONG["11.6", "merged"] = {
    "the scale is missing in the merged weight": {"W + self.scale * self.B @ self.A": "W + self.B @ self.A"},
    "the merged map has lost the bias": {"            linear.bias.copy_(bias)": "            linear.bias.zero_()"},
    "merged() returned Parameter, not an nn.Linear": {"return linear": "return linear.weight"},
    "merging has changed the frozen map itself": {
        "        return linear": "        W.copy_(linear.weight)\n        return linear"
    },
    "the merged weight is no multiple": {"self.scale * self.B @ self.A)": "self.scale * self.B.flip(0) @ self.A)"},
    "right, but the layer itself gives something else after merging": {
        "        return linear": "        self.B.zero_()\n        return linear"
    },
}
WRONG["11.6", "lost"] = {
    "those are squares": {
        "return ((whole.to(dtype).to(whole.dtype) - whole).norm() / update.norm()).item()": (
            "return ((whole.to(dtype).to(whole.dtype) - whole).norm() / update.norm()).item() ** 2"
        )
    },
    "lost() returned NoneType, not a number": {"return ((whole.to": "((whole.to"},
    "is right": {"/ update.norm()": "/ update.numel()"},
}

# 11.7 ------------------------------------------------------------------------------------------------------------

GIVEN_BACK, LARGEST = "return steps, scales, scales / 2", "rows.abs().amax(1)"

WRONG["11.7", "steps"] = {
    "returned 2 things, not three things: the steps, the scales, the bounds": {GIVEN_BACK: "return steps, scales"},
    "returned Tensor, not three things": {GIVEN_BACK: "return steps"},
    "the steps are float64, expected int8": {".to(torch.int8)": ""},
    "all blocks have one scale": {LARGEST: "rows.abs().max().expand(len(rows))"},
    "first at number 0: 67 there, and 16 right": {LARGEST: "rows.amax(1).abs()"},
    "steps are cut off towards zero": {"shares.round()": "shares.trunc()"},
    "the largest number becomes 128": {"/ 127": "/ 128", "shares.round()": "shares.round().clamp(-128, 127)"},
    "the bounds are exactly 4.0 x": {"scales / 2": "scales * 2"},
    "the scales have shape (3, 1), and (3,) is right": {GIVEN_BACK: "return steps, scales.unsqueeze(-1), scales / 2"},
    "the steps are wrong at": {"shares.round()": "-shares.round()"},
    "right, but `w` is overwritten": {GIVEN_BACK: "w.zero_()\n    return steps, scales, scales / 2"},
}
WRONG["11.7", "outlier"] = {
    "one of them large: the steps are wrong": {
        LARGEST: f"{LARGEST}.clamp(max=20)",
        "shares.round()": "shares.round().clamp(-127, 127)",
    },
}
WRONG["11.7", "edges"] = {
    "5 x 7 weights in blocks of 8: an error": {"F.pad(w.flatten(), (0, -w.numel() % block))": "w.flatten()"},
    "one block all zeros: the bounds": {GIVEN_BACK: "return steps, scales, (scales / 2).clamp(min=1e-3)"},
    "5 x 7 weights in blocks of 8: the scales are no multiple": {
        "rows = F": "w = torch.cat([w.flatten()[: w.numel() // block * block], w.flatten()[w.numel() // block * block :] * 2])"
        ".view(w.shape)\n    rows = F"
    },
}

# 11.8 ------------------------------------------------------------------------------------------------------------

PACKED, NEAREST = "codes[::2] << 4 | codes[1::2]", "(shares.unsqueeze(-1) - self.levels).abs().argmin(-1)"

WRONG["11.8", "codes"] = {
    "encode() returned Tensor, not two things: the bytes and the scales": {
        f"return {PACKED}, scales": f"return {PACKED}"
    },
    "there is a byte for each code": {PACKED: "codes"},
    "the bytes have dtype torch.int64, and torch.uint8 is right": {".to(torch.uint8)": ""},
    "the first of two neighbours belongs into the high half": {PACKED: "codes[1::2] << 4 | codes[::2]"},
    "the codes are those of even steps": {NEAREST: "((shares + 1) * 7.5).round()"},
    "a number gets the level below it": {NEAREST: "(torch.bucketize(shares, self.levels, right=True) - 1)"},
    "decode() gives levels, and forgets the scales": {
        "self.levels[codes.long()] * scales.repeat_interleave(self.block)[:n]": "self.levels[codes.long()]"
    },
    "repeat_interleave, not repeat": {"scales.repeat_interleave(self.block)": "scales.repeat(self.block)"},
    "decode(), of the right bytes and scales, has dtype torch.float32": {
        "scales.repeat_interleave(self.block)[:n]": "(scales.repeat_interleave(self.block)[:n])",
        "        return self.levels[codes": "        return (lambda x: x.float())(self.levels[codes",
        "(self.block)[:n])": "(self.block)[:n]))",
    },
    "the bytes: number 0 holds the codes": {NEAREST: "(15 - (shares.unsqueeze(-1) - self.levels).abs().argmin(-1))"},
}
WRONG["11.8", "edges"] = {
    "21 numbers in blocks of 6, NF4's levels: ": {"F.pad(codes, (0, len(w) % 2))": "codes"},
    "one block all zeros: the bytes": {"torch.where(scales > 0, scales, 1.0)": "scales"},
    "24 numbers in blocks of 8, other levels: the bytes": {
        "self.levels).abs()": "torch.tensor([-1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, "
        "-0.0910500, 0.0, 0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0])).abs()"
    },
}
WRONG["11.8", "bytes"] = {
    "each scale has 4 bytes there": {"blocks + 4 * math.ceil(blocks / self.outer)": "4 * blocks"},
    "the scales of the scales are missing": {" + 4 * math.ceil(blocks / self.outer)": ""},
    "what is left over needs a scale too: round up": {"math.ceil(": "math.floor("},
    "nbytes() is 515,873.5": {"return math.ceil(n / 2) + blocks": "return n / 2 + n / self.block"},
    "nbytes() returned NoneType, not a number": {"return math.ceil(n": "math.ceil(n"},
}
