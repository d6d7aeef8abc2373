"""Plausible wrong answers to the exercises of module 11, each with the level that must reject it and why.

A dict is an edit: the exercise's solution, with pieces of its text changed. Not for learners: it comes close to the
solutions. Slips stand in the exercises themselves.
"""

from __future__ import annotations

WRONG = {}  # (exercise, level): wrong answers, by the reason that is told
HANGS = {}  # those that end by their time limit

# 11.2 ------------------------------------------------------------------------------------------------------------

TOLD = "        dist.all_reduce(bad, op=dist.ReduceOp.MAX)\n"

WRONG["11.2", "together"] = {
    "a rank skips and halves its scale where its own part overflows": {TOLD: "        dist.all_reduce(bad.clone())\n"},
    "good steps are counted on after a skipped one": {"scale, good = scale / 2, 0": "scale = scale / 2"},
    "the scale grows a step too late": {"if good == patience": "if good == patience + 1"},
    "the scale is divided by 4, and by 2 is asked": {"scale / 2, 0": "scale / 4, 0"},
    "skipped and scales are right, but not the weight: the gradients are not divided by the scale": {
        "half.double() / scale": "half.double()"
    },
    "skipped and scales are right, but not the weight: a skipped step has changed the momentum": {
        "            skipped.append(step)\n": (
            "            skipped.append(step)\n            for state in optimizer.state.values():\n"
            "                state['momentum_buffer'] *= task['momentum']\n"
        )
    },
    "the count of good steps does not begin again": {
        "scale, good = scale * 2, 0": "scale = scale * 2",
        "good == p": "good >= p",
    },
    "answer-0.pt is to hold a dict": {"torch.save(answer,": "torch.save(weight.detach(),"},
    "rank 0: the weight has shape (12,)": {'"weight": weight.detach()': '"weight": task["weight"]'},
    "one number says whether anybody has overflowed": {
        TOLD: TOLD + "        dist.all_reduce(torch.zeros(12 // ranks).double())\n"
    },
    "makes 28 calls, and one in each of 14 is right": {TOLD: TOLD + "        dist.all_reduce(bad.clone())\n"},
    "there is no answer-1.pt": {"    torch.save(": "    rank or torch.save("},
}
WRONG["11.2", "edges"] = {
    "4 processes: rank 0: skipped is [1]": {"if bad.item():": "if bad.item() and step:"},
    "2 processes: rank 0: skipped is right, but not the scales: 0 after step 9": {
        "scales.append(scale)": "scales.append(scale if skipped or step < 9 else 0.0)"
    },
}

# 11.3 ------------------------------------------------------------------------------------------------------------

DICE, BACK = "        torch.set_rng_state(ctx.state)\n", "        torch.set_rng_state(now)\n"

WRONG["11.3", "gradients"] = {
    "the second run drops other numbers than the first": {DICE: "", BACK: ""},
    "the second run begins from a fixed seed": {DICE: "        torch.manual_seed(0)\n"},
    "the random state stays where the second run has left it": {BACK: ""},
    "the gradient of the input does not come back": {"None, None, x.grad": "None, None, None"},
    "backward begins with ones": {"backward(y, gradient)": "backward(y, torch.ones_like(gradient))"},
    "the weights inside get no gradient": {
        "        torch.autograd.backward(y, gradient)\n        return None, None, x.grad": (
            "        return None, None, torch.autograd.grad(y, x, gradient)[0]"
        )
    },
    "outputs are right, but not the gradient of the input": {"x.grad\n": "2 * x.grad\n"},
    "right, but by torch.utils.checkpoint, PyTorch's own": {
        "Recomputed.apply(run, torch.empty(0, requires_grad=True), x)": (
            "__import__('torch.utils.checkpoint').utils.checkpoint.checkpoint(run, x, use_reentrant=False)"
        )
    },
    "an error: ": {"None, None, x.grad": "None, x.grad"},
}
WRONG["11.3", "leaf"] = {
    "an input without gradient: an error": {
        "requires_grad_(ctx.needs_input_grad[2])": "requires_grad_()",
        "x.grad\n": "x.grad.requires_grad_(ctx.needs_input_grad[2]) + (0 if ctx.needs_input_grad[2] else None)\n",
    },
    "an input without gradient: what comes back has no history": {
        "Recomputed.apply(run, torch.empty(0, requires_grad=True), x)": "Recomputed.apply(run, torch.empty(0), x)"
    },
}
WRONG["11.3", "kept"] = {
    "bytes stay after forward, and": {
        "        return run(x)\n": (
            "        with torch.enable_grad():\n            ctx.y = run(x.detach().requires_grad_())\n"
            "        return ctx.y.detach()\n"
        )
    },
    "right, but the parts run [3, 3, 3, 3] times, and twice each is right": {
        "        return run(x)\n": "        run(x)\n        torch.set_rng_state(ctx.state)\n        return run(x)\n"
    },
}

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
        ATTENDED: (
            "return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0], top + total.log()"
        )
    },
    "right, but `q` is overwritten": {
        "q @ k[:, columns].mT / D**0.5": "(q.div_(D**0.5) if start == 0 else q) @ k[:, columns].mT"
    },
}
WRONG["11.4", "values"] |= {
    "it failed at cell line 16: IndexError": {"min(start + tile, S)": "start + tile"},
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

# 11.5 ------------------------------------------------------------------------------------------------------------

PIECE, ENDS = 'F.cross_entropy(some @ W.T, theirs, reduction="sum") / count', "return total, h.grad, W.grad"

WRONG["11.5", "values"] = {
    "returned Tensor, not three things: the loss": {ENDS: "return total"},
    "a mean of the pieces' means": {
        PIECE: "F.cross_entropy(some @ W.T, theirs, reduction='sum') / max((theirs != -100).sum(), 1) / pieces"
    },
    "divided by all tokens": {"(targets != -100).sum()": "len(targets)"},
    "nothing was divided": {' reduction="sum") / count': ' reduction="sum")'},
    "the gradient of hidden: NoneType": {"hidden.clone().requires_grad_()": "hidden.clone()"},
    "the gradient of head is exactly 2.0 x the reference": {ENDS: "return total, h.grad, 2 * W.grad"},
    "the loss is that of the last piece alone": {"total += loss": "total = loss"},
    "tokens that are left over after `pieces` equal pieces are missing": {
        "math.ceil(len(targets) / pieces)": "len(targets) // pieces",
        "h.split(size), targets.split(size)": "h.split(size)[:pieces], targets.split(size)[:pieces]",
    },
}
WRONG["11.5", "edges"] = {
    "5 tokens, 7 words, 8 pieces: ": {"math.ceil(len(targets) / pieces)": "len(targets) // pieces + (pieces < 5)"},
}
WRONG["11.5", "memory"] = {
    "does a piece's backward run before the next piece begins?": {
        "        loss.backward()\n        total += loss.detach()\n": "        total = total + loss\n",
        "    return total,": "    total.backward()\n    return total,",
    },
    "right, but at its largest it takes": {"math.ceil(len(targets) / pieces)": "len(targets)"},
}

# 11.6 ------------------------------------------------------------------------------------------------------------

PAST, FROZEN = "return self.base(x) + self.scale * (x @ self.A.T) @ self.B.T", "base.requires_grad_(False)"

WRONG["11.6", "born"] = {
    "the frozen map is trained as well": {FROZEN: "base"},
    "trained are A, B, gain, and A and B alone are to be": {
        "self.base, self.scale = base": "self.gain = nn.Parameter(torch.ones(1))\n        self.base, self.scale = base"
    },
    "A is torch.float64 of (7, 2), and torch.float64 of (2, 7) is expected": {
        "torch.randn(r, base.in_features": "torch.randn(base.in_features, r"
    },
    "A is torch.float32 of (2, 7)": {
        "torch.randn(r, base.in_features, dtype=base.weight.dtype)": "torch.randn(r, base.in_features)"
    },
    "the layer has no parameter A": {"self.A = nn.Parameter(\n": "self.A = (\n"},
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
    "the largest size is divided by 128": {"/ 127": "/ 128", "shares.round()": "shares.round().clamp(-128, 127)"},
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
        "w.flatten()": "(w.flatten() * (1 + (torch.arange(w.numel()) >= w.numel() // block * block)))"
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

# 11.9 ------------------------------------------------------------------------------------------------------------

FOUND, COVERED = 'return "gradients", 4', "[p for p in model.parameters() if p.requires_grad]"
ALIKE = "        broadcast_tensors([p.data for p in self.covered], self.group, src=0)\n"

WRONG["11.9", "diagnosis"] = {
    "give two things, the rung's name and how many different adapters": {FOUND: 'return "gradients"'},
    "rung 'output': that one passes": {FOUND: 'return "output", 4'},
    "rung 'loss curve': an earlier one fails": {FOUND: 'return "loss curve", 4'},
    "how many different adapters four ranks train is not 1": {FOUND: 'return "gradients", 1'},
}
WRONG["11.9", "steps"] = {
    "what is trained besides A and B is not averaged": {
        COVERED: '[p for name, p in model.named_parameters() if name.endswith((".A", ".B"))]'
    },
    "each rank still begins with an A of its own": {ALIKE: ""},
    "all begin with the same adapters, and then each rank follows its own rows": {
        ALIKE: ALIKE + "        self.covered = []\n"
    },
    "step 1: ": {COVERED: "[p for p in model.parameters() if p.requires_grad][1:]"},
    "'Repaired' object has no attribute 'covered'": {"self.covered": "covered"},
}
WRONG["11.9", "wire"] = {
    "numbers are broadcast to each rank, and": {COVERED: "list(model.parameters())"},
    "r = 2: right gradients, but 64 numbers": {ALIKE: ALIKE + ALIKE},
}

# 11.10 -----------------------------------------------------------------------------------------------------------

SAID, APPENDED = "return right, wrong", "right.append(tuple(bytes_of.values()))"

WRONG["11.10", "text"] = {
    "returned list, not two things: a list of triples": {SAID: "return right"},
    "the first list is to hold triples of numbers": {APPENDED: "right.append(sum(bytes_of.values()))"},
    "not a list with a triple for each of 4 lines": {APPENDED: "right += bytes_of.values()"},
    "weights are shared out from stage 2 on there": {"line.stage >= 3": "line.stage >= 2"},
    "gradients are shared out from stage 2 on": {"line.stage >= 2": "line.stage >= 3"},
    "the optimizer has 12 bytes": {"12 * line.P": "8 * line.P"},
    "in GB? Bytes are asked": {APPENDED: "right.append(tuple(one / 1e9 for one in bytes_of.values()))"},
    "the bytes are right, and they do not agree with what the table says of ZeRO-2's weights": {
        SAID: "return right, []"
    },
    "the bytes are right, and what the table says of DDP's gradients agrees with them": {
        SAID: "return right, [(line.name, column) for line in lines for column in bytes_of]"
    },
    "but 'ZeRO-2', 'weights_gb' is no entry": {
        "wrong.append((line.name, column))": 'wrong.append((line.name, column + "_gb"))',
        SAID: "return right, [*wrong, *[(a, b[:-3]) for a, b in wrong]]",
    },
    "the second thing is to be a list of pairs": {SAID: "return right, [name for name, _ in wrong]"},
    "an entry is named twice": {SAID: "return right, wrong + wrong"},
}
WRONG["11.10", "others"] = {
    "another table (1): ZeRO-1, optimizer": {
        "for line in lines:": "for line in sorted(lines, key=lambda line: line.stage):"
    },
    "another table (1): ": {"line.N if": "64 if"},
}

# 11.11 -----------------------------------------------------------------------------------------------------------

ADAPTER, WHOLE_ONE = 'one.requires_grad_(name.endswith((".A", ".B")))', "one.full_tensor().detach()"
SHARDS = """    for layer in model:
        if isinstance(layer, Adapted):
            fully_shard(layer)
    fully_shard(model)
"""
IF_TRAINED = "in model.named_parameters() if one.requires_grad"

WRONG["11.11", "sharded"] = {
    "adapters.pt holds 0.base.bias, and only A and B belong there": {
        ADAPTER: "pass",
    },
    "the frozen weights were trained as well": {
        ADAPTER: "pass",
        "in trained.items()": 'in trained.items() if name.endswith((".A", ".B"))',
    },
    "adapters.pt has no 0.A": {"in trained.items()": 'in trained.items() if "B" in name'},
    "0.A has shape (2, 6), and (4, 6) is right: is it one rank's part?": {WHOLE_ONE: "one.to_local().detach()"},
    "these come from rank 0's rows alone": {
        "x.tensor_split(ranks)[rank], y.tensor_split(ranks)[rank]": "x.tensor_split(ranks)[0], y.tensor_split(ranks)[0]"
    },
    "a gradient is left from the step before": {"        optimizer.zero_grad()\n": ""},
    "the adapters are as they were before the first step": {"        optimizer.step()\n": ""},
    "are they whole on every rank?": {
        SHARDS: "",
        "* ranks / len(x)": "/ len(x)",
        "optimizer.step()": "[dist.all_reduce(one.grad) for one in trained.values()]\n        optimizer.step()",
        WHOLE_ONE: "one.detach()",
    },
    "adapters lie in parts too, and reduce-scatter": {
        SHARDS: (
            "    adapters = {one for name, one in model.named_parameters() if one.requires_grad}\n"
            "    fully_shard(model, ignored_params=adapters)\n"
        ),
        "* ranks / len(x)": "/ len(x)",
        "optimizer.step()": "[dist.all_reduce(one.grad) for one in trained.values()]\n        optimizer.step()",
        WHOLE_ONE: "one.detach()",
    },
    "of its part of the adapters: what is frozen has no gradient": {
        ADAPTER: "pass",
        IF_TRAINED: 'in model.named_parameters() if name.endswith((".A", ".B"))',
    },
    "there is no adapters.pt in the folder": {"adapters.pt": "adapter.pt"},
    "A has not been trained": {"trained.values(), lr": '[one for name, one in trained.items() if ".B" in name], lr'},
}

WRONG["11.11", "uneven"] = {
    "these come from a mean of the ranks' means": {'targets, reduction="sum") * ranks / len(x)': "targets)"},
}
HANGS["11.11", "sharded"] = {
    "a hang: ": {
        "    adapters = {": "    if rank:\n        return dist.barrier()\n    adapters = {",
    },
}
