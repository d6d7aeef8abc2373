"""Plausible wrong answers to the exercises of module 07, each with the level that must reject it and why.

A dict is an edit: the exercise's solution, with pieces of its text changed. Not for learners: it comes close to the
solutions. Slips stand in the exercises themselves.
"""

from __future__ import annotations

WRONG = {}  # (exercise, level): wrong answers, by the reason that is told
HANGS = {}  # those that end by their time limit

# 07.1 ------------------------------------------------------------------------------------------------------------

WRONG["07.1", "groups"] = {
    "rank 0 of dp 3 x tp 2, 8 in a node: returned tuple, not 3 things: the ranks of its tp group": {
        "along_tp, along_dp, away\n": "along_tp, along_dp\n"
    },
    "the ranks of its tp group: int, not 2 whole numbers": {"return along_tp,": "return 7,"},
    "rank 0 of dp 3 x tp 2, 8 in a node: the ranks of its tp group are [0, 1, 2], expected [0, 1]": {
        "divmod(rank, tp)": "divmod(rank, dp)",
        "i * tp + other for other in range(tp)": "i * dp + other for other in range(dp)",
        "other * tp + j for other in range(dp)": "other * dp + j for other in range(tp)",
    },
    "rank 1 of dp 3 x tp 2, 8 in a node: the ranks of its tp group are [1, 0], expected [0, 1]: the order counts": {
        "return along_tp,": "return sorted(along_tp, key=lambda other: other != rank),"
    },
}
WRONG["07.1", "nodes"] = {
    "those in the same node were counted": {"!= rank // per_node": "== rank // per_node"},
    "the numbers of those in other nodes are": {"rank // per_node for": "rank // tp for"},
}

# 07.3 ------------------------------------------------------------------------------------------------------------

PART, OWN = "w if cuts[name] is None else w.tensor_split(tp, cuts[name])[j]", "row.tensor_split(dp)[i]"

WRONG["07.3", "pieces"] = {
    "the rank at dp 0, tp 0: the numbers of its piece: list, not ": {f"return {OWN}": "return [row]"},
    "FSDP has cut first, and tensor parallelism what was left": {
        PART: "w",
        f"return {OWN}": "return row.tensor_split(dp)[i].tensor_split(tp)[j]",
    },
    "the rank at dp 0, tp 1: the numbers of its piece": {"[name])[j]": "[name])[0]"},
    "the rank at dp 1, tp 0: the numbers of its piece are": {OWN: "row.tensor_split(dp)[0]"},
}
WRONG["07.3", "uneven"] = {
    "(3,) on dp 2 x tp 3: torch.chunk has cut a weight, which leaves the last rank less": {
        "w.tensor_split(tp, cuts[name])": "w.chunk(tp, cuts[name])"
    },
}
WRONG["07.3", "edges"] = {
    "on dp 8 x tp 2: an error: it failed at cell line": {
        OWN: "(row.tensor_split(dp) if len(row) > dp else row.chunk(dp))[i]",
    },
}

# 07.4 ------------------------------------------------------------------------------------------------------------

SHARED, OFF = "(theirs.unsqueeze(-1) == ours.unsqueeze(-2)).any(-1)", "(found.double() - reference.double()).abs()"

WRONG["07.4", "agreement"] = {
    "two sequences: returned float, not two numbers: the agreement and the error": {
        "return shared.double().mean().item(), ": "return "
    },
    "tokens had to be at the same place among the k": {SHARED: "theirs == ours"},
}
WRONG["07.4", "error"] = {
    "that is over all logits": {".gather(-1, theirs)": ""},
    "those are the logits of the *other* model's k likeliest tokens": {"(-1, theirs).mean": "(-1, ours).mean"},
}
WRONG["07.4", "edges"] = {
    "the logits were subtracted in bfloat16": {
        OFF: "(found - reference).abs()",
        "difference.g": "difference.double().g",
    },
}

# 07.6 ------------------------------------------------------------------------------------------------------------

FOUND, AXES = '"gradient norm", 20', '("dp", "tp")'
COUNTS = 'name not in self.whole_along_tp or self.local.rank("tp") == 0'

WRONG["07.6", "diagnosis"] = {
    "rung 'gradients': that one passes": {FOUND: '"gradients", 20'},
    "rung 'AdamW': an earlier one fails": {FOUND: '"AdamW", 20'},
    "the rung is right, but the number of gradients that rank 0's sum holds is not 10": {FOUND: '"gradient norm", 10'},
    "the rung is right, but the number of gradients that rank 0's sum holds is not 40": {FOUND: '"gradient norm", 40'},
}
WRONG["07.6", "steps"] = {
    "step 1: the norm on rank 0 is ": {COUNTS: "name in self.whole_along_tp"},
    "squares were added up along dp alone: the ranks along tp have other parts": {
        AXES: '("dp",)',
        COUNTS: "True",
    },
    "squares were added up along tp alone: the ranks along dp have other pieces": {AXES: '("tp",)', COUNTS: "True"},
    "those are the squares of this rank's own numbers": {AXES: "()", COUNTS: "True"},
    "what tp leaves whole counts once from every rank along tp": {COUNTS: "True"},
    "what tp leaves whole is missing": {COUNTS: "name not in self.whole_along_tp"},
    "step 1: squares() on rank 0 returned list, not one number": {"return total": "return [total]"},
    "is the root taken twice? squares() returns the sum": {"return total": "return total.sqrt()"},
    "the sum was divided by the number of ranks. They have different numbers": {
        "return total": "return total / torch.distributed.get_world_size()"
    },
}
WRONG["07.6", "steps"] |= {
    "the parameters' norms were added up. Squares add up, norms do not": {"gradient.square().sum()": "gradient.norm()"},
    "the parameters' norms were added up, and then squared. Squares add up, norms do not": {
        "gradient.square().sum()": "gradient.norm()",
        "return total": "return total.square()",
    },
    "the ranks' norms were added up. Squares add up, norms do not": {
        f"    for axis in {AXES}": f"    total = total.sqrt()\n        for axis in {AXES}"
    },
    "the ranks' norms were added up, and then squared. Squares add up, norms do not": {
        f"    for axis in {AXES}": f"    total = total.sqrt()\n        for axis in {AXES}",
        "return total": "return total.square()",
    },
}
WRONG["07.6", "edges"] = {
    "dp 1 x tp 3, 5 rows: step 1: the norm on rank 0 is ": {
        COUNTS: "True",
        "gradient.square().sum()": "gradient.square().sum() / (2 if name in self.whole_along_tp else 1) ** "
        '(self.local.size("tp") > 1)',
    },
}

# 07.7 ------------------------------------------------------------------------------------------------------------

SEEN, ROWS, AT = '"gradients", 12', 'list(range(self.local.rank("dp"), number, self.dp))', 'self.local.rank("dp")'

WRONG["07.7", "diagnosis"] = {
    "rung 'output': that one passes": {SEEN: '"output", 12'},
    "rung 'loss curve': an earlier one fails": {SEEN: '"loss curve", 12'},
    "the rung is right, but the number of different rows that ranks 0 and 1 read is not 6": {SEEN: '"gradients", 6'},
}
WRONG["07.7", "rows"] = {
    "ranks 0 and 1 have parts of the same matrices and read rows [0, 2, 4, 6] and [1, 3, 5, 7]: what they": {
        AT: "dist.get_rank() % self.dp"
    },
    "ranks 0 and 1 have parts of the same matrices and read rows [0, 4] and [1, 5]": {
        ROWS: "list(range(dist.get_rank(), number, dist.get_world_size()))"
    },
    "row 0 is read 2 times, by ranks 0, 2: the ranks along dp share the rows": {AT: "0"},
    "row 1 is read 2 times, by ranks 0, 2": {ROWS: f"list(range({AT}, number))[:number // 2]  + [4] * ({AT} > 0)"},
    "row 2 is read by nobody": {"number, self.dp": "number, self.dp * self.tp"},
    "rows() on rank 0 returned slice, not a list of whole numbers": {ROWS: f"slice({AT}, number, self.dp)"},
    "row 8 is read, and there are 8": {ROWS: f"list(range({AT}, number + 1, self.dp))"},
}
WRONG["07.7", "edges"] = {
    "7 rows: row 6 is read by nobody": {ROWS: f"list(range(number // self.dp * {AT}, number // self.dp * ({AT} + 1)))"},
}

# 07.8 ------------------------------------------------------------------------------------------------------------

READ, SPANS = "stored[tuple(slice(*one) for one in box)]", "((cut, tp, j), (0, dp, i))"
WHOLE = "stored[tuple(slice(0, n) for n in stored.get_shape())]"
OF_TP = "stored[tuple(slice(*one) for one in mine)][(slice(box[0][0] - mine[0][0], box[0][1] - mine[0][0]),)]"

WRONG["07.8", "values"] = {
    "tp has not cut: the part has all that the ranks along tp share": {SPANS: "((0, dp, i),)"},
    "the rank at dp 0, tp 0: the part: list, not a tensor": {f"return {READ}": f"return {READ}.tolist()"},
}
WRONG["07.8", "values"] |= {
    "where `cut` is 0, tp has not cut: `if cut` is false for 0 as well as for None": {
        "    for dim, parts, number": "    cut = cut if cut else None\n    for dim, parts, number"
    },
    "Rows are dim 0, for which `if dim` is false": {"if dim is not None": "if dim"},
}
WRONG["07.8", "reading"] = {
    "right values, but 48 numbers were read from the file, target 12: stored[...] with all its rows and columns": {
        READ: f"{WHOLE}[tuple(slice(*one) for one in box)]"
    },
    "right values, but 24 numbers were read from the file, target 12: cut both times before you read": {
        "    for dim, parts": "    mine = list(box)\n    for dim, parts",
        f"return {READ}": f"return {OF_TP}",
        "(min(first + number * each, end), min(first + (number + 1) * each, end))\n": (
            "(min(first + number * each, end), min(first + (number + 1) * each, end))\n"
            "            if dim == cut and parts == tp:\n"
            "                mine = list(box)\n"
        ),
    },
}
WRONG["07.8", "edges"] = {
    "(7, 5) on dp 2 x tp 3, tp cuts dim 0: the rank at dp 0, tp ": {
        "-(-(end - first) // parts)": "max(1, (end - first) // parts)",
    },
}

# 07.9 ------------------------------------------------------------------------------------------------------------

THREE, COUNTED = '"gradients", 3', "comm.all_reduce(torch.tensor([mine])).item()"
RETURNED = "return comm.all_reduce(summed).item() / targets"

WRONG["07.9", "diagnosis"] = {
    "rung 'loss curve': an earlier one fails": {THREE: '"loss curve", 3'},
    "the rung is right, but how many times as much a target of rank 1 counts is not 2": {THREE: '"gradients", 2'},
    "the rung is right, but how many times as much a target of rank 1 counts is not 0.333": {
        THREE: '"gradients", 1 / 3'
    },
}
WRONG["07.9", "steps"] = {
    "step 1: right gradients, but the loss on rank 0 is ": {RETURNED: "return summed.item() / targets"},
    "step 1: right gradients, but rank 0 returned NoneType, not the loss as a number": {RETURNED: "return None"},
    "each rank still divides by its own targets": {
        COUNTED: "mine * dist.get_world_size()",
    },
}
WRONG["07.9", "steps"] |= {
    "step 1: your gradient is exactly 1/2 of the reference: DDP's average divides by the number of ranks": {
        "loss * dist.get_world_size() / targets": "loss / targets"
    },
    "rank 1 makes an all_reduce of 3 numbers, which rank 0 does not make. A collective is for all ranks": {
        "        for part in parts:\n            loss": (
            "        if mine < 3:\n            comm.all_reduce(torch.zeros(3))\n"
            "        for part in parts:\n            loss"
        )
    },
    "rank 0 makes an all_reduce of 38 numbers, which rank 1 does not make. A collective is for all ranks": {
        "            loss = summed": (
            "            if not count_targets(part):\n                continue\n            loss = summed"
        )
    },
}
WRONG["07.9", "edges"] = {
    "2 ranks with 0, 3 targets, 8 rows in all, the 6-4-2 MLP with GELU: ": {
        "mine, summed = sum(": "mine, summed = max(1, sum(",
        "for part in parts), torch": "for part in parts)), torch",
    },
}

# 07.10 -----------------------------------------------------------------------------------------------------------

SUM = "squares = [p.grad.norm().full_tensor() ** 2 for p in model.parameters()]"
ADDED = "squares = [sum(p.grad.to_local().square().sum() for p in model.parameters())]"
SCALED = 'p.grad.mul_(min(1.0, task["max_norm"] / (norm + 1e-6)))'

WRONG["07.10", "axes"] = {
    "that is the norm of the pieces of rank 0 alone": {"p.grad.norm().full_tensor()": "p.grad.to_local().norm()"},
    "is counted there as often as it stands": {SUM: f"{ADDED}\n        dist.all_reduce(squares[0])"},
    "must have the same mesh": {SUM: 'squares = [nn.utils.clip_grad_norm_(model.parameters(), task["max_norm"])]'},
    "the gradients were not clipped": {SCALED: "pass"},
    "gradients below max_norm are made larger": {"min(1.0, task": "(1.0 * task"},
    "that is the norm after clipping": {"norms.append(norm)": 'norms.append(min(norm, task["max_norm"]))'},
    "the gradients of the step before are still there": {"optimizer.zero_grad()": "pass"},
    "its ranks are to read the same 8": {"(part.chunk(shape[0])[place]": "(part.chunk(shape[0] * 2)[dist.get_rank()]"},
    "the target: each block is a unit": {
        'fully_shard(block, mesh=mesh["dp"])': 'fully_shard(block, mesh=mesh["dp"], reshard_after_forward=False)'
    },
    "0.norm.weight has shape (4,), expected (8,)": {
        '"cpu", shape,': '"cpu", shape[::-1],',
        "part.chunk(shape[0])": "part.chunk(shape[1])",
    },
    "0.up.weight has shape (16, 8), expected (8, 8)": {'{"up": ColwiseParallel(), "down": RowwiseParallel()}': "{}"},
    "a mesh of 2 x 1, SGD: rank 0: the norm of step 1": {"[place]": "[0]"},
    "so yours is exactly 1/2 of it": {".backward()": ".div(shape[0]).backward()"},
    "what it saved there: 0.pt, 1.pt": {"/rank{dist": "/{dist"},
}
OF_NEIGHBOURS = 'init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))'
FAR_APART = 'dist.DeviceMesh("cpu", torch.arange(4).view(2, 2).T, mesh_dim_names=("dp", "tp"))'
FAR_APART = f"{OF_NEIGHBOURS} if 1 in shape else {FAR_APART}"
WRONG["07.10", "mesh"] = {
    "these are the pieces of rank 2": {OF_NEIGHBOURS: FAR_APART},
    "with ranks 0, 1; along dp its group is 0, 2": {
        OF_NEIGHBOURS: FAR_APART,
        "/rank{dist.get_rank()}": "/rank{shape[1] * place + mesh['tp'].get_local_rank()}",
    },
}

# 07.11 -----------------------------------------------------------------------------------------------------------

LOADED = 'optim_state_dict=loaded["optimizer"]'
SAVED, LOAD = "dcp.save(state(end), checkpoint_id=place)", "dcp.load(loaded := state(0), checkpoint_id=place)"
FULL = "StateDictOptions(full_state_dict=True)"

WRONG["07.11", "goes-on"] = {
    "and an AdamW that remembers no step": {
        "        set_state_dict(": "        optimizer.state.clear()\n        model.load_state_dict(loaded['model'])\n"
        "        dict(",
        LOADED: "optim_state_dict=0",
        "            model,\n            optimizer,\n": "",
    },
    "and begins with batch 1 again": {
        'done, end = loaded["done"], len': "done, end = 0, len",
        "if done == 0": "if end == 3",
    },
    "nothing of the checkpoint is in use": {
        LOAD: "loaded = {'model': 0, 'optimizer': 0, 'done': 3}",
        "        set_state_dict(": "        (lambda *ignored, **named: 0)(",
    },
    "begins with the rate of step 1": {"0.8**step": "0.8 ** (step - done)"},
    "one batch is left out: the checkpoint is that before its last step": {
        f"        {SAVED}": "        pass",
        "        x, y = ": f"        if step == 2 and done == 0:\n            {SAVED}\n        x, y = ",
    },
    "one batch is trained on twice": {"dcp.save(state(end)": "dcp.save(state(end - 1)"},
    "there is no checkpoint/.metadata": {
        SAVED: "os.makedirs(place, exist_ok=True), torch.save(state(end), f'{place}/{rank}.pt')"
    },
    "the first start makes 5 steps where 3 are due": {
        "for step in range(done, end)": "for step in range(done, 5)",
        "        x, y = ": f"        if step == end:\n            {SAVED}\n        x, y = ",
        f"        {SAVED}\n    else": "        pass\n    else",
    },
    "the layers of rank 0 of 4 are given 24 rows in 3 steps, 4.0 x its part": {".chunk(ranks)[rank] for": " for"},
    "the layers of rank 0 of 2 are given 16 rows in 2 steps": {
        "        x, y = (part.chunk(ranks)[rank]": (
            "        share = slice(None) if done else slice(rank * 8 // ranks, (rank + 1) * 8 // ranks)\n"
            "        x, y = (part[share]"
        )
    },
    "there is no rank0.pt": {"/rank{rank}.pt": "/{rank}.pt"},
    "0.weight has shape (64, 16), expected (32, 16)": {"p.to_local()": "p.full_tensor()"},
}
WRONG["07.11", "pieces"] = {
    "what its forwards need: so a rank holds a whole state": {
        "import get_state_dict": "import StateDictOptions, get_state_dict",
        "get_state_dict(model, optimizer)": f"get_state_dict(model, optimizer, options={FULL})",
        LOADED: f"{LOADED}, options={FULL}",
    },
}
