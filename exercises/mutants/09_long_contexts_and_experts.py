"""Plausible wrong answers to the exercises of module 09, each with the level that must reject it and why.

A dict is an edit: the exercise's solution, with pieces of its text changed. Not for learners: it comes close to the
solutions. Slips stand in the exercises themselves.
"""

from __future__ import annotations

WRONG = {}  # (exercise, level): wrong answers, by the reason that is told
HANGS = {}  # those that end by their time limit

# --- experts ---

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
