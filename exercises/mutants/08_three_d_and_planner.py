"""Plausible wrong answers to the exercises of module 08, each with the level that must reject it and why.

A dict is an edit: the exercise's solution, with pieces of its text changed. Not for learners: it comes close to the
solutions. Slips stand in the exercises themselves.
"""

from __future__ import annotations

WRONG = {}  # (exercise, level): wrong answers, by the reason that is told
HANGS = {}  # those that end by their time limit

# 08.1 ------------------------------------------------------------------------------------------------------------

FOUND, NODES = "return *found, ", "[len({other // per_node for other in group}) for group in found]"

WRONG["08.1", "groups"] = {
    "rank 0 of 2 x 3 x 4, 8 in a node: returned tuple, not 4 things: the ranks along the first axis": {
        f"{FOUND}{NODES}": "return found[0], found[1], found[2]"
    },
    "the ranks along the first axis: int, not 2 whole numbers": {FOUND: "return 7, found[1], found[2], "},
    "the first axis counts fastest here. The last one does: its neighbours are neighbouring ranks": {
        "reversed(sizes)": "sizes",
        "found.insert(0, ": "found.append(",
    },
    "the groups stand in the opposite order": {"found.insert(0, ": "found.append("},
    "the ranks along the first axis are [12, 0], expected [0, 12]: the order counts": {
        FOUND: "found = [sorted(g, reverse=True) for g in found]\n    return *found, "
    },
}
WRONG["08.1", "nodes"] = {
    "those are the ranks that sit in other nodes": {
        NODES: "[sum(other // per_node != rank // per_node for other in group) for group in found]"
    },
    "the numbers of nodes: list, not 3 whole numbers": {
        "[len({other // per_node for other in group})": ("[[*{other // per_node for other in group}]")
    },
    "the numbers of nodes are": {"{other // per_node for": "{other // 4 for"},
}

# 08.5 ------------------------------------------------------------------------------------------------------------

ROOM, KEPT, DONE = "gigabytes(tp, pp, micro) > room", "possible.append((tp, pp, micro))", "return possible, rejected"
INNER = " " * 20

WRONG["08.5", "possible"] = {
    "12 layers: returned list, not two things: the possible layouts, and a dict of counts": {DONE: "return possible"},
    "returned int in second place, not a dict of counts": {DONE: "return possible, 0"},
    "returned int in first place, not a list of layouts": {DONE: "return len(possible), rejected"},
    "(1, 4, 4, 1) is no layout: give tp, pp and the micro-batch": {KEPT: "possible.append((tp, pp, dp, micro))"},
    "the count of 'gpus' is '40', not a number": {
        DONE: "return possible, {rule: str(count) for rule, count in rejected.items()}"
    },
    "tp 1, pp 8, micro-batch 1 is among the possible layouts, but 12 layers do not divide by 8": {
        "elif layers % pp:": "elif False:"
    },
    "micro-batch 1 is missing, and breaks no rule": {"(1, 2, 4, 8)": "(2, 4, 8)"},
    "tp 1, pp 4, micro-batch 1 stands there 2 times": {KEPT: f"{KEPT}\n                    {KEPT}"},
    "GB, and a GPU has 80": {ROOM: f"{ROOM} + 10"},
    "micro-batch 16 is none of the layouts": {"(1, 2, 4, 8)": "(1, 2, 4, 8, 16)"},
}
WRONG["08.5", "reasons"] = {
    "'stage' is no rule: they are gpus, node, heads, layers, batch, memory": {
        DONE: "return possible, rejected | {'stage': 0}"
    },
    "the possible layouts are right, but rule 'memory' has 0 layouts, expected 11": {'rejected["memory"] += 1': "pass"},
    "the possible layouts are right, but rule 'layers' has 23 layouts, expected 44": {
        "elif layers % pp:": f"elif batch % (dp * micro):\n{INNER}rejected['batch'] += 1\n{INNER[4:]}elif layers % pp:"
    },
}
WRONG["08.5", "reasons"] |= {
    "the counts are right, but 'heads' is not among them: a rule that throws out nothing counts 0": {
        DONE: "return possible, {rule: count for rule, count in rejected.items() if count}"
    },
}
WRONG["08.5", "edges"] = {
    "one GPU: 1 GPU, 8 in a node, 8 heads, 12 layers: tp 1, pp 1, micro-batch 2 is missing, and breaks no rule": {
        ROOM: "gigabytes(tp, pp, micro) >= room"
    },
    "right, but gigabytes(...) was called 400 times, target 76: ask it last, of what breaks no other rule": {
        "dp = gpus // (tp * pp)\n": "dp = gpus // (tp * pp)\n                much = gigabytes(tp, pp, micro)\n",
        ROOM: "much > room",
    },
}

# 08.6 ------------------------------------------------------------------------------------------------------------

BETTER, SORTED = "seconds[place] < fastest", "key=lambda place: (gigabytes[place], seconds[place])"

WRONG["08.6", "front"] = {
    "returned int, not a list of places": {"return kept": "return len(kept)"},
    "returned a list with 40.0, not a list of places": {"return kept": "return [gigabytes[place] for place in kept]"},
    "there is no place 5: places count from 0": {"return kept": "return [*kept, len(seconds)]"},
    "place 1 (4 s, 70 GB) is missing, and no other layout beats it": {"return kept": "return kept[:-1]"},
    "place 4 (9 s, 55 GB) is in it, but place 3 (7 s, 40 GB) beats it": {BETTER: "True"},
    "the right places, but in another order: the smallest memory comes first": {"return kept": "return sorted(kept)"},
    "a place stands there twice": {"return kept": "return [*kept, kept[0]]"},
}
WRONG["08.6", "front"] |= {
    "right, but `gigabytes` is overwritten, and another part of the program may still need it: work on a copy": {
        "return kept": "gigabytes.sort()\n    return kept"
    },
    "is missing, and no other layout beats it. Besides, `gigabytes` is overwritten": {
        "kept, fastest": "gigabytes.sort()\n    kept, fastest"
    },
}
WRONG["08.6", "ties"] = {
    "of layouts that need the same memory a slower one came first, and was kept: sort by": {
        SORTED: "key=gigabytes.__getitem__"
    },
    "a layout that needs more memory and is just as fast was kept": {BETTER: "seconds[place] <= fastest"},
    "place 4 (5 s, 50 GB) is as place 1 in both, and of equals the first one stays": {
        SORTED: "key=lambda place: (gigabytes[place], seconds[place], -place)"
    },
}

# 08.7 ------------------------------------------------------------------------------------------------------------

WRONG["08.7", "alike"] = {
    "returned dict, not the number of layers of each stage": {"return best[0, 0][1]": "return best"},
    "returned a list with 1.0, not the number of layers of each stage": {
        "return best[0, 0][1]": "return [1.0 for _ in speeds]"
    },
    "are 2 stages, and there are 3": {"return best[0, 0][1]": "return best[0, 0][1][1:]"},
    "layers, and there are 9": {"return best[0, 0][1]": "return [1 for _ in speeds]"},
    "stage 0 of [0, ": {"return best[0, 0][1]": "a, b, *c = best[0, 0][1]\n    return [0, a + b, *c]"},
    "s are possible for the slowest one, as with [5, 3, 1]": {"max(here, rest)": "max(here, rest) if stage else here"},
    "the last stage has all that the others left over": {"max(here, rest)": "here + rest"},
}
WRONG["08.7", "alike"] |= {
    "right, but `seconds` is overwritten": {"return best[0, 0][1]": "seconds.pop(0)\n    return best[0, 0][1]"},
}
WRONG["08.7", "unlike"] = {
    "the speeds were left out": {"seconds[end - 1] / speeds[stage]": "seconds[end - 1]"},
    "a stage's seconds were multiplied by its speed": {"/ speeds[stage]": "* speeds[stage]"},
}
HANGS["08.7", "edges"] = {
    "a large model: a hang: ": {
        "n, p = len(seconds), len(speeds)\n": (
            "n, p = len(seconds), len(speeds)\n"
            "    from itertools import combinations, pairwise\n"
            "    every = ([e - f for f, e in pairwise((0, *cut, n))] for cut in combinations(range(1, n), p - 1))\n"
            "    pace = lambda s: max(sum(seconds[sum(s[:i]):sum(s[:i + 1])]) / speeds[i] for i in range(p))\n"
            "    return min(every, key=pace)\n"
        ),
    },
}

# 08.9 ------------------------------------------------------------------------------------------------------------

TAKES = "there <= here or random.random() < exp((here - there) / temperature)"
HEAT = "first * 0.3 * (0.001 / 0.3) ** (step / steps)"

WRONG["08.9", "steps"] = {
    ", which is no possible layout: return one that neighbour(...) gave, or start": {"return best": "return least"},
    "s: keep the best one": {"if here < least:": "if here < least and step < steps // 2:"},
    "s whose price it had never asked": {"    here = least = first = price(start)\n": "    return start\n"},
    "that is where the search ended, not the best layout that it has seen": {"return best": "return now"},
    "price(...) was called 101 times, target 51: keep the price of where you are": {
        "        there = price(other)\n": "        here, there = price(now), price(other)\n"
    },
}
OWN_DICE = "from random import Random\n    mine = Random(5)\n    now = best = start"
WRONG["08.9", "steps"] |= {
    "worse layouts were taken, and `random` was never asked whether to: draw every number from `random`": {
        "now = best = start": OWN_DICE,
        "random.random()": "mine.random()",
    },
    "neighbour(...) was given other dice than `random`": {
        "now = best = start": OWN_DICE,
        "neighbour(now, random)": "neighbour(now, mine)",
    },
    "with the same dice it went another way the second time: draw every number from `random`": {
        "now = best = start": "from random import random as by_chance\n    now = best = start",
        "random.random()": "(random.random() + by_chance()) % 1",
    },
}
WRONG["08.9", "search"] = {
    "a worse layout is never taken, so the first hollow is the last": {TAKES: "there <= here"},
    "it hardly ever went to a worse layout, so the first hollow that it came to was its last": {
        HEAT: "0.000001",
    },
    "the temperature stays as high as at the beginning": {HEAT: "first * 0.3"},
    "It has to cool down, and to take fewer and fewer of them": {HEAT: "first * 0.5"},
    ": it asked for 1000 neighbours on average, and has 4000 steps": {"range(steps)": "range(steps // 4)"},
    "every neighbour was asked of the same layout": {"neighbour(now, random)": "neighbour(start, random)"},
}

# 08.10 -----------------------------------------------------------------------------------------------------------

SEEN, LAST = '"gradients", 1', "self.seen[name] == self.micro_batches"

WRONG["08.10", "diagnosis"] = {
    "rung 'output': that one passes": {SEEN: '"output", 1'},
    "rung 'loss curve': an earlier one fails": {SEEN: '"loss curve", 1'},
    "the rung is right, but the number of micro-batches whose gradients are averaged is not 4": {
        SEEN: '"gradients", 4'
    },
}
WRONG["08.10", "steps"] = {
    "pp 2 x dp 2, 4 micro-batches, 8 rows: step 1: ": {LAST: "self.seen[name] == 2"},
    "step 1: your gradient is exactly 2.0 x the reference: the sum over the replicas": {
        "self.average(parameter)": 'parameter.grad.copy_(comm.all_reduce(parameter.grad, group=self.local.group("dp")))'
    },
    "divided by the number of replicas twice?": {
        "self.average(parameter)": 'self.average(parameter)\n            parameter.grad.div_(self.local.size("dp"))'
    },
    "and every step before is right: is something of the last step still counted?": {
        "class Repaired(Suspect):\n": (
            "class Repaired(Suspect):\n"
            "    def compute_gradients(self, batch):\n"
            "        return Trainer.compute_gradients(self, batch)\n\n"
        ),
    },
    "pp 1 x dp 2, 3 micro-batches, 9 rows: step 1: ": {LAST: "self.seen[name] == 4"},
}
WRONG["08.10", "steps"] |= {
    "; between the replicas nothing was all-reduced: is `average` ever called?": {LAST: "False"},
}
WRONG["08.10", "calls"] = {
    "right gradients, but rank 0 averages nothing before its last backward is over: average in `arrived`": {
        LAST: "False",
        "    def arrived": (
            "    def compute_gradients(self, batch):\n"
            "        loss = super().compute_gradients(batch)\n"
            "        for parameter in self.local.parameters.values():\n"
            "            self.average(parameter)\n"
            "        return loss\n\n"
            "    def arrived"
        ),
    },
    "right gradients, but nothing is in the ledger: average by comm": {
        "    def arrived": (
            "    def average(self, parameter):\n"
            "        torch.distributed.all_reduce(parameter.grad, group=self.local.group('dp'))\n"
            "        parameter.grad /= self.local.size('dp')\n\n"
            "    def arrived"
        ),
    },
    "right gradients, but rank 0 makes 8 all-reduces in a step, target 2: average each tensor once": {LAST: "True"},
}

# 08.11 -----------------------------------------------------------------------------------------------------------

HOOKED = "[p.register_post_accumulate_grad_hook(ready) for p in model.parameters()]"
WAIT_FOR_ALL = "        for bucket, flat, handle in under_way:"
FORWARD = "        model(rows).square().mean().backward()"

WRONG["08.11", "exposed"] = {
    "that is what is hidden": {"running[1] == 0": "running[1] > 0"},
    "those are milliseconds": {"return total": "return total / 1000"},
    "every cpu_op counts as compute": {'one["name"].startswith("aten::")': 'one.get("cat") == "cpu_op"'},
    "that is all time of the collectives": {"and running[1] == 0": ""},
    "those are the launches": {'startswith("gloo:")': 'startswith("c10d::")'},
    "at the same time, it counts twice": {"total += time - before": "total += running[0] * (time - before)"},
    "by the name gloo:all_reduce alone": {'["name"].startswith("gloo:")': '["name"] == "gloo:all_reduce"'},
    "only ops of the thread that launches": {
        'one["name"].startswith("aten::")': 'one["name"].startswith("aten::") and one["tid"] == main',
        "edges = []": 'edges, main = [], next(one["tid"] for one in events if one["name"].startswith("c10d::"))',
    },
    "of made.json it says": {"in sorted(edges)": "in edges"},
    "is to hold a dict with 'made', 'after'": {'{"made": exposed(f"{folder}/made.json")}': "{}"},
    "exactly 2.0 x the ranks' average": {" / ranks)": ")"},
    "was it put back after the all-reduce?": {"p.grad.copy_(part.view_as(p) / ranks)": "pass"},
    "is one step in it, and all of it?": {"            step()\n": "            step(), model.zero_grad(), step()\n"},
    "no backward is in it": {
        "        with profile(": f"{FORWARD}\n        with profile(",
        f"    def after():\n{FORWARD}": "    def after():",
    },
    "there is no after0.json": {"/{name}{rank}.json": "/{name}_{rank}.json"},
}
WRONG["08.11", "hidden"] = {
    "of the all-reduces none is launched before": {
        HOOKED: "[]",
        WAIT_FOR_ALL: f"        [ready(p) for p in model.parameters()]\n{WAIT_FOR_ALL}",
    },
    "each all-reduce is over before its hook is": {
        "wait=False))": "wait=False))\n                under_way[-1][-1].wait()",
    },
    "during backward, the gradient of 0.0.weight is that of": {"            put_back(bucket, flat)\n": ""},
}

# 08.12 -----------------------------------------------------------------------------------------------------------

SUMMED, ALONG_DP = "dist.all_reduce(square)", "dist.all_reduce(p.grad, group=dp_group)"
OF_HEAD = '(square + w["head"].grad.square().sum())'

WRONG["08.12", "two"] = {
    "at the end; ranks that should hold the same do": {ALONG_DP: "dist.all_reduce(p.grad)"},
    "no gradient was clipped": {"min(1.0, max_norm / norm.item())": "1.0"},
    "small gradients are scaled up to the limit": {"min(1.0, max_norm / norm.item())": "max_norm / norm.item()"},
    "head should be the same on ranks 0 and 1, and is not": {SUMMED: "pass"},
    "as often as there are ranks along tp": {'w if name != "head") / dp': "w) / dp", OF_HEAD: "square"},
    "and the head is not in it": {OF_HEAD: "square"},
    "up0 has shape (16, 8), expected (8, 8)": {".detach() for": ".detach().repeat(tp, 1) for"},
    "there is no rank0.pt": {"/rank{rank}.pt": "/{rank}.pt"},
}
WRONG["08.12", "four"] = {
    "head should be the same on ranks 0 and 2, and is not": {
        "range(j, dp * tp, tp)": "range(j * dp, j * dp + dp)",
        "dp_groups[rank % tp]": "dp_groups[rank // dp]",
    },
    "on ranks 0 and 2, and is not": {ALONG_DP: "pass"},
    "once for each of the dp ranks that hold them": {" / dp\n    dist": "\n    dist"},
    "to its group along dp (ranks 0, 2), 2.0 x the target": {
        "p.grad /= dp": f"{ALONG_DP}\n            p.grad /= dp * dp"
    },
}
HANGS["08.12", "two"] = {
    "a hang: ranks 0, 1 had not ended": {SUMMED: "if dp * square > max_norm**2:\n        dist.all_reduce(square)"},
}
