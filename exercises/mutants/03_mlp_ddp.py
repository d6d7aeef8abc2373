"""Plausible wrong answers to the exercises of module 03, each with the level that must reject it and why.

A dict is an edit: the exercise's solution, with pieces of its text changed. Not for learners: it comes close to the
solutions. Slips stand in the exercises themselves.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch.utils.data import DistributedSampler

from course_lib import comm

WRONG = {}  # (exercise, level): wrong answers, by the reason that is told
HANGS = {}  # those that end by their time limit
START = "### BEGIN SOLUTION"  # in its place stands a line that comes first
P = "dist.get_world_size()"

# 03.1 ------------------------------------------------------------------------------------------------------------

MEAN = f"comm.all_reduce(mine) / {P}"

WRONG["03.1", "values"] = {
    "exactly 4.0 x the reference: was the sum divided by world_size?": {f" / {P}": ""},
    "exactly 1/4 of the reference: was it divided by world_size": {P: f"{P} ** 2"},
    "2 ranks, the 6-4-2 MLP: your gradient is exactly 1/2 of the reference: is a 4": {P: "4"},
    "your gradient is exactly 2.0 x the reference": {P: "2"},
    "every rank still has the gradient of its own share: nothing was averaged": {MEAN: "mine"},
    "every rank still has the gradient of its own share": {
        f"p.grad = {MEAN}": f"p.data = comm.all_reduce(p.data) / {P}"
    },
    "layer1.bias on rank 0 is still the gradient of its own share": {"if p.requires_grad": "if p.dim() == 2"},
    "layer1.weight has no gradient on rank 0": {MEAN: "None"},
    "right values, but nothing is in the ledger": {
        f"p.grad = {MEAN}": f"dist.all_reduce(mine)\n            p.grad = mine / {P}"
    },
    "right gradients, but the weights have changed": {P: f"{P}\n            p.data -= 0.1 * p.grad"},
    "layer1.weight on rank 0 holds inf": {P: f"{P} * float('inf')"},
    "layer1.weight on rank 0 holds nan": {P: f"{P} * float('nan')"},
    "a crash: rank 1 died": {START: "if dist.get_rank() == 1: import os; os._exit(0)"},
}
WRONG["03.1", "edges"] = {
    "the MLP with a frozen layer1: layer1.weight is frozen, but has a gradient on rank 0": {"p.requires_grad": "True"},
    "layer2.bias is reached on rank 0 only: an error: ": {
        "p.requires_grad": "p.grad is not None",
        P: f"{P}\n    comm.barrier()",
    },
    "a model with a tied weight: first.weight on rank 0 is exactly 1/3 of the reference": {
        START: "seen = set()",
        "p in model.parameters()": "_, p in model.named_parameters(remove_duplicate=False)",
        MEAN: f"(mine if p in seen else comm.all_reduce(mine)) / {P}\n            seen.add(p)",
    },
}
HANGS["03.1", "values"] = {"a hang: ": {START: "if dist.get_rank() == 0: comm.recv(torch.zeros(1), 1)"}}

# 03.2 ------------------------------------------------------------------------------------------------------------


def new_parameters(model):
    for module in model.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(comm.broadcast(p.detach(), src=0), p.requires_grad))


WRONG["03.2", "parameters"] = {
    "the parameter layer1.weight on rank 1 is still its own, not": {"tensor.copy_": ""},
    "use comm.broadcast": {"tensor.copy_(comm.broadcast(tensor, src=0))": "dist.broadcast(tensor, src=0)"},
    "an error: ": {"with torch.no_grad()": "if True"},
    "layer1.weight on rank 0 is a new object: an optimizer": new_parameters,
    "another tensor stands in place of layer1.weight on rank 0": {"tensor.copy_": "tensor.data = "},
}
WRONG["03.2", "edges"] = {
    "the frozen parameter layer1.weight on rank 1 is still its own": {
        "*model.parameters()": "*(p for p in model.parameters() if p.requires_grad)"
    },
    "the buffer 1.running_mean on rank 1 is still its own": {", *model.buffers()": ""},
    "the buffer 1.num_batches_tracked on rank 1 is still its own": {
        "*model.buffers()": "*(buffer for buffer in model.buffers() if buffer.is_floating_point())"
    },
    "requires_grad of layer1.weight has changed": {"src=0))": "src=0))\n    model.requires_grad_(True)"},
    "another tensor stands in place of 1.running_mean on rank 0": {
        ", *model.buffers()": "",
        "src=0))": "src=0))\n"
        "    for module in model.modules():\n"
        "        for name, buffer in module.named_buffers(recurse=False):\n"
        "            setattr(module, name, comm.broadcast(buffer, src=0))",
    },
}
WRONG["03.2", "bytes"] = {
    "each tensor must reach each other rank once": {
        "comm.broadcast(tensor, src=0)": "comm.all_reduce(tensor * (dist.get_rank() == 0))"
    }
}

# 03.3 ------------------------------------------------------------------------------------------------------------


def share_by_share(model, inputs, targets):
    xs, ys, loss = comm.all_gather(inputs), comm.all_gather(targets), 0.0
    for x, y in zip(xs.split(len(inputs)), ys.split(len(inputs)), strict=True):
        part = F.cross_entropy(model(x), y, ignore_index=-100, reduction="sum") / (ys != -100).sum()
        part.backward()
        loss += part.item()
    return loss


def on_a_copy(model, inputs, targets):
    other = copy.deepcopy(model)
    loss = F.cross_entropy(other(comm.all_gather(inputs)), comm.all_gather(targets))
    loss.backward()
    for mine, found in zip(model.parameters(), other.parameters(), strict=True):
        mine.grad = found.grad
    return loss.item()


WRONG["03.3", "even"] = {
    "right values, but one forward on rank 0 takes 12 rows, where 6 are enough": on_a_copy,
    "right values, but rank 0 computes 12 rows, of which 6 are its own: each rank computes the loss": share_by_share,
    "exactly 1/2 of the reference: was it divided by": {f"summed * {P}": "summed"},
    "exactly 2.0 x the reference: was the sum": {P: f"{P} ** 2"},
    "but the loss on rank 0 is": {"return all_summed": "return summed.item()"},
    "exactly 2.0 x that of all rows; sum over": {"return all_summed": f"return {P} * all_summed"},
    "returned NoneType, not the loss as a number": {"return all_summed / all_counted": ""},
    "right values, but nothing is in the ledger": {
        "all_summed, all_counted = comm.all_reduce(": "dist.all_reduce(both := ",
        ".tolist()": "\n    all_summed, all_counted = both.tolist()",
        "average_gradients(model)": f"for p in model.parameters(): dist.all_reduce(p.grad.div_({P}))",
    },
    "every rank still has the gradient of its own share": (
        lambda model, inputs, targets: F.cross_entropy(model(inputs), targets).backward()
    ),
    "one forward on rank 0 takes 12 rows, where 6 are enough: each rank computes the loss of its own": {
        START: "inputs, targets = comm.all_gather(inputs), comm.all_gather(targets)"
    },
}
WRONG["03.3", "edges"] = {
    "the loss on rank 0 is nan: a share without a target has no mean": {
        "return all_summed": "return comm.all_reduce(summed.detach() / counted * counted)"
    },
    "layer1.weight on rank 0 holds nan, not a number: a share without a target has no mean": {
        "    average_": "    for p in model.parameters(): p.grad *= counted / counted\n    average_"
    },
}
HANGS["03.3", "edges"] = {
    "a hang: not finished after 2 s: ranks 0, 2 wait in all_reduce #1": {
        START: "if not (targets != -100).any(): return 0.0"
    }
}

# 03.5 ------------------------------------------------------------------------------------------------------------


def by_the_library(n, rank, world_size, seed, epoch):
    sampler = DistributedSampler(range(n), world_size, rank, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)


WRONG["03.5", "shares"] = {
    "PyTorch's own random numbers were seeded": {"torch.Generator().manual_seed": "torch.manual_seed"},
    "right, but by torch.utils.DistributedSampler: this exercise asks you to write it": by_the_library,
    "sample 12 does not exist: they are 0 to 11": {"padded[": "[1 + number for number in padded]["},
    "returned NoneType, not a list of whole numbers": {"return padded[rank::world_size]": ""},
}
WRONG["03.5", "epochs"] = {
    "epoch 1: each sample is served, but not in PyTorch's order: rank 0": {"seed + epoch": "seed * (epoch + 1)"}
}
WRONG["03.5", "uneven"] = {
    "waits for an all-reduce that rank 1 never calls": {"padded[": "order["},
    "is served by nobody: what does not divide is padded": {
        "padded[": "order[: n_samples // world_size * world_size]["
    },
    "9 samples on 4 ranks, epoch 0: each sample is served, but not in PyTorch's": {
        "order * world_size": "order + (order if n_samples == 13 else order[-1:] * world_size)"
    },
    "1 sample on 4 ranks, epoch 0: rank 0 has 1 sample, rank 2 has 0": {"order * world_size": "order * 2"},
}

# 03.6 ------------------------------------------------------------------------------------------------------------

WRONG["03.6", "values"] = {
    "exactly 4.0 x the reference: was the sum divided by world_size?": {"AVG": "SUM"},
    "layer1.weight on rank 0 is still the gradient of its own share": {"in buckets:": "in buckets[:-1]:"},
    "every rank still has the gradient of its own share": {"in buckets:": "in ():"},
    "has shape (24,), expected (4, 6)": {
        "p.grad = part.view_as(p)": "p.grad = None\n            p.data = p.data.flatten()\n            p.grad = part"
    },
    "on rank 0 is no multiple of the reference, and all ranks hold the same": {  # cut in another order
        "flat.split([p.numel() for p in bucket])": "flat.split([p.numel() for p in bucket[::-1]])[::-1]"
    },
}
HANGS["03.6", "values"] = {"an endless loop?": {"buckets, held = [[]], 0": "while True: buckets, held = [[]], 0"}}
WRONG["03.6", "values"] |= {
    "ranks 0, 2, 3 make an all_reduce of 10 numbers, which rank 1 does not make. A collective is for all ranks": {
        "in buckets:": "in buckets[dist.get_rank() == 1 :]:"
    },
}
WRONG["03.6", "edges"] = {
    "length is 42 on rank 0 and 35 on rank 1; all ranks must call with the same length; let every rank make": {
        "if p.requires_grad": "if p.grad is not None"
    }
}

# 03.7 ------------------------------------------------------------------------------------------------------------


def all_graphs_at_once(model, parts):
    rows = sum(len(targets) for _, targets in parts)
    sum(F.cross_entropy(model(x), y, reduction="sum") / rows for x, y in parts).backward()


LAST = "    backward(*parts[-1])"

WRONG["03.7", "values"] = {
    "exactly 3.0 x the reference: was each loss divided by the number": {" * len(targets) / rows": ""},
    "1/3 of the reference: does only one micro-batch count": {"* len(targets) / rows": "/ len(parts) ** 2"},
    "exactly 1/2 of the reference": {"/ rows": f"/ rows / {P}"},
    "one forward on rank 0 takes 12 rows, where 4 are enough: the batch does not fit, that is why": {
        START: "parts = [tuple(map(torch.cat, zip(*parts)))]"
    },
    "on rank 0 3 forwards wait for backward: the batch does not fit, that is why it comes in": all_graphs_at_once,
    "was no_sync left before the last micro-batch's forward?": {
        LAST: "    with model.no_sync(): loss = F.cross_entropy(model(parts[-1][0]), parts[-1][1]) / len(parts)\n"
        "    loss.backward()"
    },
    "no_sync was never left": {LAST: f"{LAST}\n    global quiet\n    quiet = model.no_sync()\n    quiet.__enter__()"},
}
WRONG["03.7", "calls"] = {
    "every one of the 4 micro-batches is averaged": {"with model.no_sync()": "if True"},
    "a backward averages if its *forward* ran outside no_sync": {
        "with model.no_sync()": "if True",
        "loss.backward()": "quiet = model.no_sync if inputs is not parts[-1][0] else nullcontext\n"
        "        with quiet(): loss.backward()",
    },
}
WRONG["03.7", "edges"] = {"an error: ": {"parts[-1]": "parts[1:][-1]"}}  # it needs two parts

# 03.8 ------------------------------------------------------------------------------------------------------------

FOUND = '"gradients", 4.0'

WRONG["03.8", "diagnosis"] = {
    "rung 'AdamW': an earlier one fails; climb again": {FOUND: '"AdamW", 4.0'},
    "rung 'output': that one passes": {FOUND: '"output", 4.0'},
    "the rung is right, but the ratio on 4 ranks is not 0.25": {FOUND: '"gradients", 0.25'},
    "'gradient' is no rung: they are output, gradients": {FOUND: '"gradient", 4.0'},
    "returned 'gradients': give two things": {FOUND: '"gradients"'},
}
WRONG["03.8", "gradients"] = {
    "step 1: your gradient is exactly 4.0 x the reference: was the sum divided by world_size?": {
        "/ total": "/ count_targets(part)"
    },
    "your gradient is exactly 2.0 x the reference": {"(p.grad)": "(p.grad.mul_(2))"},
    "exactly 1/4 of the reference: was it divided by world_size": {"(p.grad)": "(p.grad, op=dist.ReduceOp.AVG)"},
    "every rank still has the gradient of its own share: nothing was averaged": {
        "comm.all_reduce_(p.grad)": f"p.grad *= {P}\n"
        "                p.data = comm.all_reduce(p.data, op=dist.ReduceOp.AVG)"
    },
    "one forward on rank 0 takes 8 rows, where 2 are enough: each rank computes its own": {
        f"part, total = share(batch, dist.get_rank(), {P})": "part, total = batch",
        "(p.grad)": f"(p.grad.div_({P}))",
        "loss.detach()": f"loss.detach() / {P}",
    },
    "rank 0 computes 8 rows, of which 2 are its own: each rank computes its own share": {
        "loss = summed_loss(self.model, part) / total": f"parts = [share(batch, rank, {P}) for rank in range({P})]\n"
        f"        loss = sum(summed_loss(self.model, one) for one in parts) / total / {P}"
    },
    "but the loss on rank 0 is": {"comm.all_reduce(loss.detach())": "loss"},
}
WRONG["03.8", "uneven"] = {
    "no multiple of the reference, and all ranks hold the same": {  # weighed by rows, with or without a target
        "/ total": "/ max(count_targets(part), 1) * len(part[0]) / len(batch[0])"
    }
}

# 03.9 ------------------------------------------------------------------------------------------------------------

FOUND, NOW = '"parameters", 2', "number == len(parts)"
NOT_AVERAGED = "every rank still has the gradient of its own share: nothing was averaged"

WRONG["03.9", "diagnosis"] = {
    "rung 'gradients': that one passes": {FOUND: '"gradients", 2'},
    "rung 'loss curve': an earlier one fails": {FOUND: '"loss curve", 2'},
    "the step is not 3: climb with rungs=RUNGS[:4], steps=1, then": {FOUND: '"parameters", 3'},
}
WRONG["03.9", "steps"] = {
    f"3 micro-batches: step 2: {NOT_AVERAGED}": {"def compute_gradients": "def as_it_was"},
    f"step 1: {NOT_AVERAGED}": {NOW: "False"},
    "3 micro-batches: right, but by the engine of Trainer.compute_gradients: this exercise asks you to write it": {
        "parts = micro": "return super(Counting, self).compute_gradients(batch)\n        parts = micro"
    },
    f"step 2: {NOT_AVERAGED}": {NOW: "number == self.config.accumulation"},
    "step 1: layer1.weight on rank 0 is no multiple of the reference, and the ranks hold": {NOW: "number == 1"},
    "step 1: your gradient is exactly 1/3 of": {f"loss * {P}": f"loss * {P} / len(parts)"},
    "step 1: your gradient is exactly 1/2 of the reference: was it divided by": {f"loss * {P}": "loss"},
    "one forward on rank 0 takes 4 rows, where 2 are enough": {
        "micro_batches(mine, self.config.accumulation)": "[mine]",
    },
    "on rank 0 3 forwards wait for backward: each rank computes its own share, one micro-batch after": {
        f"(loss * {P} / total).backward()": "waiting = [*(waiting if number > 1 else []), loss]\n"
        f"                number == len(parts) and (sum(waiting) * {P} / total).backward()"
    },
}
WRONG["03.9", "calls"] = {"3 all-reduces of gradients in step 1, target 1: only the last micro-batch": {NOW: "True"}}
WRONG["03.9", "edges"] = {
    "3 ranks, the 6-4-2 MLP with GELU, batches of 8, 4, 7 rows, some without a target, 3 micro-batches: an error": {
        NOW: f"number == len(micro_batches(share(batch, 0, {P}), self.config.accumulation))"
    }
}

# 03.10 -----------------------------------------------------------------------------------------------------------

PUT_BACK = "p.grad = part.view_as(p)"

WRONG["03.10", "values"] = {
    "and never waited: each handle needs its wait()": {"handle.wait()": "pass"},
    "exactly 2.0 x the reference: was the sum divided by world_size?": {"AVG": "SUM"},
    "every rank still has the gradient of its own share: nothing was averaged": {PUT_BACK: "pass"},
    "a hook is left on the model": {"hook.remove()": "pass"},
    "an error: ": {"not missing[number]": "len(missing[number]) == 1"},
    "layer1.bias on rank 0 is still the gradient of its own share": {
        PUT_BACK: f"{PUT_BACK} if bucket is not buckets[-1] or p.dim() > 1 else p.grad"
    },
}
WRONG["03.10", "overlap"] = {
    "backward stood still during each all-reduce; launch in the hook": {
        "async_op=True))\n            )": "async_op=True))\n            )\n            under_way[-1][-1].wait()"
    },
    "one for each bucket, in their order": {START: "buckets = [[p] for bucket in buckets for p in bucket]"},
    "all-reduces of 148992 bytes, target 37248": {START: "buckets = [[p for bucket in buckets for p in bucket]]"},
    "is exactly 1.0001 x the reference": {PUT_BACK: f"{PUT_BACK} * (1 + 1e-4 * (part.numel() > 9000))"},
    "the first all-reduce started when backward was over; launch it in a hook": {
        "[p.register_post_accumulate_grad_hook(ready) for bucket in buckets for p in bucket]": "[]",
        "loss.backward()": "loss.backward()\n    [ready(p) for bucket in buckets for p in bucket]",
    },
}

# 03.11 -----------------------------------------------------------------------------------------------------------

WRONG["03.11", "sgd"] = {
    "too small by the number of processes": {"(ranks * loss)": "loss"},
    "each micro-batch has its own mean": {
        "/ len(x)": "/ max(len(rows), 1) / MICRO_BATCHES",
        "(ranks * loss)": "loss",
    },
    "each process divides by its own rows": {
        "/ len(x)": "/ max(len(x.tensor_split(ranks)[rank]), 1)",
        "(ranks * loss)": "loss",
    },
    "the losses are added up and not divided": {"(ranks * loss)": "(len(x) * loss)"},
    "this is what rank 0 learns from its own rows alone": {"number == MICRO_BATCHES": "False"},
    "the first step is wrong already": {"number == MICRO_BATCHES": "number == 1"},
    "and by the number of micro-batches as well": {"(ranks * loss)": "(ranks * loss / MICRO_BATCHES)"},
    "is a gradient left from the step before?": {"optimizer.zero_grad()": "pass"},
    "2.0 x the target; only the last micro-batch has to": {"number == MICRO_BATCHES": "True"},
    "but the loss of batch 1 is": {"dist.all_reduce(total)\n": "pass\n"},
    "rank 0 are given 4 rows at once, and its largest micro-batch has 2": {
        "[rank].tensor_split(MICRO_BATCHES)": "[rank].tensor_split(1)",
        "number == MICRO_BATCHES": "True",
    },
    "given 42 rows, and its parts of the batches have 13: which rows": {  # each rank the whole batch
        ".tensor_split(ranks)[rank]": "",
        "(ranks * loss)": "loss",
        "total += loss.detach()": "total += loss.detach() / ranks",
    },
    "rank 0 are given 42 rows, and": {  # the same in as small pieces as a part has
        ".tensor_split(ranks)[rank].tensor_split(MICRO_BATCHES)": ".tensor_split(8)",
        "number == MICRO_BATCHES": "number == 8",
        "(ranks * loss)": "loss",
        "total += loss.detach()": "total += loss.detach() / ranks",
    },
    "does each one go backward before the next goes forward?": {
        "                (ranks * loss).backward()": (
            "                graphs = loss if number == 1 else graphs + loss\n"
            "                (ranks * graphs).backward() if number == MICRO_BATCHES else None"
        )
    },
    "save wrapped.module.state_dict()": {"model.module.state": "model.state"},
    "collective 12 of all ranks is all_reduce of": {"tensor_split(MICRO_BATCHES)": "chunk(MICRO_BATCHES)"},
    "what it saved there: result.pt": {"/answer.pt": "/result.pt"},
    "it imports course_lib": {"import sys": "import sys\nfrom course_lib import comm"},
}
WRONG["03.11", "adamw"] = {
    "0.weight is": {'task["optimizer"]': '"SGD"'},
}

# 03.12 -----------------------------------------------------------------------------------------------------------

_KEEP = "        remainders[p] = v - unit * count\n"
_VALUES = "[g + remainders.get(p, 0) for p, g in zip(parameters, bucket.gradients())]"
WRONG["03.12", "sgd"] = {
    "is the hook registered before the first backward?": {"model.register_comm_hook({}, send_int8)": "pass"},
    "nothing of what rounding cuts off comes back": {_KEEP: "        pass\n"},
    "what is kept is the remainder of the last gradient alone": {
        f"    for p, v, count, unit in zip(parameters, values, counts, units):\n{_KEEP}": (
            "    for p, v, count, unit in zip(parameters, bucket.gradients(), counts, units):\n"
            "        remainders[p] = v.clone() - unit * count\n"
        )
    },
    "remainders reach another parameter": {
        _VALUES: "[r.view_as(g) + g for r, g in zip(remainders.get(bucket.index(), 0 * bucket.buffer())"
        ".split([p.numel() for p in parameters]), bucket.gradients())]",
        f"    for p, v, count, unit in zip(parameters, values, counts, units):\n{_KEEP}": (
            "    remainders[bucket.index()] = torch.cat("
            "[(v - unit * count).flatten() for v, count, unit in zip(values, counts, units)])\n"
        ),
    },
    "each rank keeps what it lacks to the average": {
        "        return torch.cat([unit": (
            "        for p, v, unit, total in zip(parameters, values, units, sums):\n"
            "            remainders[p] = v - (unit * total.double() / ranks).view_as(v)\n"
            "        return torch.cat([unit"
        )
    },
    "int8 has no halves, and .to(torch.int8) drops them": {".round()": ".trunc()"},
    "numbers are rounded down": {".round()": ".floor()"},
    "s is the sum of the ranks' largest numbers": {", op=dist.ReduceOp.MAX": ""},
    "all parameters of a bucket share one s": {"units = units / steps": "units = units.max().expand_as(units) / steps"},
    "too large by the number of processes: where a hook is, DDP does not divide": {
        "total.double() / ranks": "total.double()"
    },
    "too small by the number of processes: it is divided by twice": {
        "total.double() / ranks": "total.double() / ranks**2"
    },
    "a sum of int8 has passed 127 and come out negative": {"127 // ranks": "127"},
    "no s goes through an all-reduce: if each rank has its own": {
        "    dist.all_reduce(units, op=dist.ReduceOp.MAX)\n": ""
    },
    "holds nan or inf, not a number: is anything divided by s where all": {
        "torch.where(unit > 0, v / unit, 0).round()": "(v / unit).round()",
        "v - unit * count": "v - unit * count + 0 * count",
    },
    "B to all-reduces (float64), 6.97 x the target": {
        "count.flatten().to(torch.int8)": "count.flatten()",
    },
    "15 tensors to all-reduces in 5 steps; DDP calls the hook once a step": {
        "    dist.all_reduce(units, op=dist.ReduceOp.MAX)\n": (
            "    for unit in units.view(-1, 3):\n        dist.all_reduce(unit, op=dist.ReduceOp.MAX)\n"
        )
    },
}
WRONG["03.12", "sgd"] |= {
    "what is kept has the wrong sign": {"v - unit * count": "unit * count - v"},
    "s is the mean of the ranks' largest numbers": {", op=dist.ReduceOp.MAX)": ")\n    units /= ranks"},
    "s is cut into 128 // p steps": {"127 // ranks": "128 // ranks"},
    "s is cut into 127 / p steps, which is no whole number": {"127 // ranks": "127 / ranks"},
    "are given 60 rows in 5 steps, and its parts have 30": {
        "model(x.chunk(ranks)[rank])": "model(x)",
        "y.chunk(ranks)[rank]": "y",
    },
    "the average is right up to rounding, so look at": {"v - unit * count": "0.5 * (v - unit * count)"},
    "so look at what is cut off anywhere, and what is kept": {
        "total.double() / ranks": "(total // ranks).double()",
    },
    "no rounding does that, so look at the average itself": {"y.chunk(ranks)[rank])": "y.chunk(ranks)[0])"},
}
WRONG["03.12", "adamw"] = {
    "these are the weights of SGD: the task names the optimizer": {'task["optimizer"]': '"SGD"'},
}
