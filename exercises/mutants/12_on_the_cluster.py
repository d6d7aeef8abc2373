"""Plausible wrong answers to the exercises of module 12, each with the level that must reject it and why.

A dict is an edit: the exercise's solution, with pieces of its text changed. Not for learners: it comes close to the
solutions. Slips stand in the exercises themselves.
"""

from __future__ import annotations

WRONG = {}  # (exercise, level): wrong answers, by the reason that is told
HANGS = {}  # those that end by their time limit

# 12.1 ------------------------------------------------------------------------------------------------------------

PORT = 'str(20000 + int(variables["SLURM_JOB_ID"]) % 10000)'

WRONG["12.1", "even"] = {
    "returned dict, not two things: a dict of variables, and a list of hosts": {"    }, hosts": "    }"},
    "returned str in second place, not a list of hosts": {"    }, hosts": "    }, ','.join(hosts)"},
    "MASTER_PORT is of type int: os.environ takes text alone": {PORT: PORT.removeprefix("str")},
    "that is the job's id, and a port is below 65,536": {PORT: 'variables["SLURM_JOB_ID"]'},
    "LOCAL_RANK is not among the variables": {'"LOCAL_RANK"': '"LOCALRANK"'},
    ": that is SLURM_LOCALID": {'"RANK": variables["SLURM_PROCID"]': '"RANK": variables["SLURM_LOCALID"]'},
    "the zeros in front of a node's number are lost: it is node03, not node3": {"{number:0{len(first)}}": "{number}"},
}

# 12.3 ------------------------------------------------------------------------------------------------------------

WAITS_NOWHERE = "if rank not in made and not waiting[rank] and max(calls[rank]) < number:"
BY_GROUP, BY_SEQ = "for name, members in groups.items():", 'entry["collective_seq_id"]: entry\n'
OPEN = (
    '[e["collective_seq_id"] for d in dumps for e in d["entries"] if not e["retired"] and e["process_group"][0] == n]'
)

WRONG["12.3", "missing"] = {
    "returned str, not None or four things: how, the rank, the operation, and the place": {
        'return "missing", rank, missed, place(dumps[rank]["entries"][-1])': 'return "missing"'
    },
    "the right rank, but it is said to stray by 'absent', which is none of missing, operation, size": {
        'return "missing"': 'return "absent"'
    },
    "returned None, but a rank strays, in a way that is called 'missing'": {
        "return None": "return None",
        BY_GROUP: "for name, members in {}.items():",
    },
    "waits in a call itself": {WAITS_NOWHERE: "if waiting[rank]:"},
    "but no rank strays: each call that has not come back was made by all of its group": {
        "    return None": '    return "size", 0, "gloo:all_reduce", ""'
    },
}
WRONG["12.3", "odd"] = {
    "the right rank, but it is said to stray by 'operation'; it is not that": {
        '("size", "input_sizes")': '("operation", "input_sizes")'
    },
    "what most ranks of its group have called": {"usual = max(values": "usual = min(values"},
    "calls are told by their places in the dump": {
        BY_SEQ: "place: entry\n",
        'for entry in dumps[rank]["entries"]\n                if': (
            'for place, entry in enumerate(dumps[rank]["entries"])\n                if'
        ),
    },
    "that rank has made the call, gone on and forgotten it": {" and max(calls[rank]) < number": ""},
}
WRONG["12.3", "groups"] = {
    "that rank is missed, but it waits itself, in another group: it is a victim": {" and not waiting[rank]": ""},
    "rank 2 waits in a call itself": {  # by numbers
        " and not waiting[rank]": "",
        BY_GROUP: "for name, members in sorted(groups.items(), key=lambda one: lowest(one[0])):",
        "    waiting =": f"    lowest = lambda n: min({OPEN}, default=0)\n    waiting =",
    },
}

# 12.4 ------------------------------------------------------------------------------------------------------------

KIND, GAP = '"ncclDevKernel_([A-Za-z]+)"', "total += time - before"
SHOWN, ALONE = "print(path.name, name, round(found[name], 1))", ' and running["computing"] == 0'
KERNELS, LARGEST, EDGES = 'event["cat"] != "kernel"', "key=found.get", "sorted(mine + computing)"

WRONG["12.4", "plain"] = {
    "it prints nothing of ddp_rank0.json, but of fsdp_rank0.json: does it open every file?": {
        'glob("*.json")': 'glob("f*.json")'
    },
    "JSONDecodeError": {'glob("*.json")': 'glob("*")'},
    "it prints 5 lines, and none begins with fsdp_rank0.json": {SHOWN: SHOWN.replace("path.name, ", "")},
    "ReduceScatter: a name ends before the first character that is no letter": {KIND: '"ncclDevKernel_([^(]+)"'},
    "Broadcast, ReduceScatter: one that is never exposed has a line, too": {
        SHOWN: f"if found[name]:\n                {SHOWN}"
    },
    "us are right: that is a million times too much": {GAP: "total += (time - before) * 1e6"},
    "prints two lines for AllReduce": {SHOWN: f"{SHOWN}\n            {SHOWN}"},
    "us are right: those are milliseconds": {GAP: "total += (time - before) / 1000", "[name], 1)": "[name], 4)"},
    "and of AllReduce more are exposed": {", reverse=True": ""},
    "but in fsdp_rank0.json the names stand as AllReduce, ": {
        LARGEST: 'key=lambda name: (name == "AllReduce", -found[name])'
    },
    "more are exposed: that is the collective that takes longest. Most of it is hidden": {
        "    return exposed\n": (
            "    return {name: exposed[name] for name in sorted(edges, key=lambda name: sum(time * change for "
            "time, _, change in edges[name]))}\n"
        ),
        f"sorted(found, {LARGEST}, reverse=True)": "found",
    },
    "that is all time of this collective": {ALONE: ""},
    "what the CPU did, or an annotation, is taken for computing": {f" or {KERNELS}": ""},
    "copies are taken for computing": {KERNELS: 'event["cat"] not in ("kernel", "gpu_memcpy")'},
}
WRONG["12.4", "streams"] = {
    "the names in pipeline.json are AllGather, expected AllGather, SendRecv": {KIND: '"ncclDevKernel_([A-Za-z]+)_"'},
    "and where two overlap, the time is cut out twice": {
        ALONE: "",
        GAP: 'total += (time - before) * (1 - running["computing"])',
    },
    "that run at the same time are counted twice": {
        GAP: f'{GAP.replace("time -", "(time -")}) * running["collective"]'
    },
    "another collective is taken for computing": {
        EDGES: 'sorted(mine + computing + [(t, "computing", c) for n in edges if n != name for t, _, c in edges[n]])'
    },
}

# 12.5 ------------------------------------------------------------------------------------------------------------

WRONG["12.5", "rate"] = {
    "returned tuple, not three numbers: tokens a second, MFU and goodput": {
        "return tokens_per_s, mfu, goodput": "return tokens_per_s, mfu"
    },
    "a run that was killed once: an error": {"        except json.JSONDecodeError:": "        except KeyError:"},
    "the steps that warm up are in it": {"> warm_up": "> 0"},
    "a run that was never killed: your tokens a second is": {
        "max(before[1], line": "(before[1] + line",
        '["step_s"])': '["step_s"])',
    },
}

# 12.6 ------------------------------------------------------------------------------------------------------------

HANDLED = "    for number in (signal.SIGUSR1, signal.SIGTERM):\n"
AGREED, RENAMED = (
    "        dist.all_reduce(stop, op=dist.ReduceOp.MAX)\n",
    "os.replace(unfinished, names.format(step))\n",
)
OLD = '                for old in whole()[: -task["keep"]]:\n                    os.remove(names.format(old))\n'

WRONG["12.6", "signal"] = {
    "an error on rank 1: it ended with status -10": {HANDLED: "    for number in (signal.SIGTERM,):\n"},
    "SIGTERM before the group is there: an error on rank 1: it ended with status -15": {
        HANDLED: "    for number in (signal.SIGUSR1,):\n"
    },
    "the first start makes 12 steps on rank 0, and 3 are due: a signal was sent": {"signals.append(number)": "None"},
    "the first start makes 4 steps on rank 0, and 3 are due: the step in which the signal came is the last one": {
        "        train(model, optimizer, folder, task, step)\n": "",
        "        if stop:\n            break\n": "        if stop:\n            break\n",
        "        stop = torch.tensor(len(signals))\n": (
            "        stop = torch.tensor(len(signals))\n        train(model, optimizer, folder, task, step)\n"
        ),
    },
    "the newest whole checkpoint is that of step 3, which is missing": {"if stop or step % ": "if step % "},
    "it has found no whole checkpoint and begins anew": {"max(whole(), default=0)": "0"},
    "and an AdamW that remembers no step": {'        optimizer.load_state_dict(state["optimizer"])\n': ""},
    "in the end checkpoints holds step_10.pt, step_12.pt, step_2.pt": {OLD: ""},
    "in the end checkpoints holds step_6.pt, step_8.pt": {
        "return sorted(int(name[1])": "return sorted(name[1]",
        "max(whole(), default=0)": "max(map(int, whole()), default=0)",
    },
    "step_12.pt is to hold a dict with 'step', 'weights' and 'optimizer'": {
        '"weights": model.state_dict()': '"model": model.state_dict()',
        'state["weights"]': 'state["model"]',
    },
}
WRONG["12.6", "signal"] |= {
    "after step 2 it writes into step_2.pt itself": {
        "write(folder, task, state, unfinished)": "write(folder, task, state, names.format(step))",
        RENAMED: "pass\n",
    },
    "step_12.pt is a copy of what was written": {
        RENAMED: (
            "open(names.format(step), 'wb').write(open(unfinished, 'rb').read())\n"
            "                os.remove(unfinished)\n"
        )
    },
}
WRONG["12.6", "killed"] = {
    "the start on 2: an error on rank": {
        'checkpoints/unfinished"\n': 'checkpoints/step_{{}}_unfinished.pt"\n',
        "write(folder, task, state, unfinished)": "write(folder, task, state, unfinished.format(step))",
        "os.replace(unfinished,": "os.replace(unfinished.format(step),",
        'r"step_([0-9]+)[.]pt"': 'r"step_([0-9]+).*"',
        "torch.load(names.format(done))": (
            "torch.load(max(os.scandir(f'{folder}/checkpoints'), key=lambda one: one.stat().st_mtime).path)"
        ),
    },
    "it has found no whole checkpoint and begins anew": {
        OLD: "",
        "            write(folder, task": (
            "            if rank == 0:\n"
            '                for old in whole()[: 1 - task["keep"] or None]:\n'
            "                    os.remove(names.format(old))\n"
            "            write(folder, task"
        ),
    },
    "in the end checkpoints holds step_12.pt, unfinished_10_4": {
        'checkpoints/unfinished"\n': 'checkpoints/unfinished_{{}}_{dist.get_world_size()}"\n',
        "write(folder, task, state, unfinished)": "write(folder, task, state, unfinished.format(step))",
        "os.replace(unfinished,": "os.replace(unfinished.format(step),",
    },
}
HANGS["12.6", "signal"] = {
    "SIGUSR1 in step 3: a hang: ranks 0, 1 had not ended": {AGREED: ""},
}

# 12.7 ------------------------------------------------------------------------------------------------------------

PLACES = "range(step * batch + rank, (step + 1) * batch, ranks)"
LOADED, LATER, SAVED = 'state["step"] if state else 0', "(self.done > 0)", 'torch.save({"step": step}, path)'
DUE, TRAINED = 'if rank == 0 and step % task["every"] == 0:', "        train(folder, step, rows)\n"
SAVES = f"        {DUE}\n            {SAVED}\n"

WRONG["12.7", "elsewhere"] = {
    "there was no state.pt, though steps 5 and 10 were over. A kill asks nobody": {
        SAVES: f"    if rank == 0:\n        {SAVED}\n"
    },
    "it begins with step 1. When all were killed in step 14, there was no state.pt": {  # whatever is told of the end
        "    for step, rows": (
            "    import atexit, signal\n"
            "    keep = lambda *why: torch.save({'step': step}, path)\n"
            "    atexit.register(keep)\n"
            "    signal.signal(signal.SIGTERM, keep)\n"
            "    try:\n      for step, rows"
        ),
        SAVES: "    finally:\n        keep()\n",
    },
    "it begins with step 1 again: is state.pt loaded?": {LOADED: "0"},
    "the last checkpoint is that of step 10. Its weights have not seen the rows of steps 11 to 13, so these are lost": {
        DUE: "if rank == 0:"
    },
    "Its weights have seen the rows of steps 6 to 10, so these are trained on twice": {
        DUE: 'if rank == 0 and step == task["every"]:'
    },
    "the first start, on 2: rank 0 calls train in 15 steps (0, 1, 2,": {"start=done + 1": "start=done"},
    "the first start, on 2: train gets numbers of rows, and no rows": {
        "make_loader(task, sampler), start": "sampler, start"
    },
    "it makes no step, and the last checkpoint is that of step 10: state.pt has 40, the rows of one rank": {
        SAVED: 'torch.save({"rows": step * task["batch"] // ranks}, path)',
        LOADED: 'state["rows"] * ranks // task["batch"] if state else 0',
        "    rank, task, path =": "    ranks = dist.get_world_size()\n    rank, task, path =",
    },
    "it makes no step, and the last checkpoint is that of step 10": {LOADED: "20 if state else 0"},
    "rank 0 had ended before step 14, in which all processes were to be killed": {TRAINED: ""},
    "each epoch has the same order: the seed of epoch e is seed + e": {
        'self.task["seed"] + epoch': 'self.task["seed"]'
    },
    "it begins with the first row again: does the sampler know where it goes on?": {
        "range(self.done, self": "range(0, self",
        "enumerate(make_loader(task, sampler), start=done + 1)": (
            "zip(range(done + 1, task['steps'] + 1), make_loader(task, sampler))"
        ),
    },
    "some by several ranks": {PLACES: "range(step * batch, step * batch + batch // ranks)"},
    "it begins at row 64, and 80 had been read: whose rows does the state count?": {
        PLACES: f"range(step * batch + rank - 16 * {LATER}, (step + 1) * batch - 16 * {LATER}, ranks)",
    },
    "it begins with its epoch again": {
        PLACES: f"range((step - self.done) * batch + 50 * {LATER} + rank, "
        f"(step - self.done + 1) * batch + 50 * {LATER}, ranks)"
    },
    "it begins a step too early, and reads the last one once more": {
        PLACES: f"range((step - {LATER}) * batch + rank, (step + 1 - {LATER}) * batch, ranks)"
    },
    "the rows that are left when an epoch ends are dropped": {
        'batch = self.task["rows"], self.task["batch"]': 'batch = self.task["rows"] // 8 * 8, self.task["batch"]'
    },
    "state.pt holds 50 numbers, and 10 are enough": {
        '{"step": step}': '{"step": step, "order": sampler.order(0)[:49]}'
    },
    "there is no state.pt in the folder": {"/state.pt": "/mine.pt"},
    "rows are lost and": {"place % rows]": "(place + step) % rows]"},
}
WRONG["12.7", "ahead"] = {
    "so these are lost: is that what workers had read ahead": {
        "            yield [": "            self.drawn = step + 1\n            yield [",
        '{"step": step}': '{"step": sampler.drawn}',
    },
    "the last checkpoint is that of step 10. Its weights have not seen the rows of steps 11 to 15": {
        f"{TRAINED}{SAVES}": f"{SAVES}{TRAINED}"
    },
}

# 12.8 ------------------------------------------------------------------------------------------------------------

MEDIANS, SMALLEST = "own.median(dim=1).values", "medians.min()"

WRONG["12.8", "four"] = {
    "by the seconds of whole steps, which are the same on all ranks": {
        MEDIANS: "own.amax(dim=0).median().expand(ranks)"
    },
    "that is by means, and one slow step moves the mean": {MEDIANS: "own.mean(dim=1)"},
    "that is by each rank's slowest step": {MEDIANS: "own.amax(dim=1)"},
    "that is by the last step of each window": {MEDIANS: "own[:, -1]"},
    "that compares with the mean of all ranks": {SMALLEST: "medians.mean()"},
    "where half of them are slow, it is between": {SMALLEST: "medians.quantile(0.5)"},
    "that compares with a rank's own first window": {
        "is_slow = medians >": "first = medians if not slow else first\n        is_slow = medians >",
        SMALLEST: "first",
        "own[~is_slow].amax": "(own if is_slow.all() else own[~is_slow]).amax",
    },
    "that compares with a rank's own window before": {
        "is_slow = medians >": (
            "before = medians if not slow else last\n        last = medians\n        is_slow = medians >"
        ),
        SMALLEST: "before",
        "own[~is_slow].amax": "(own if is_slow.all() else own[~is_slow]).amax",
    },
    "'slow' is to be a list with a list of ranks for each of 6 windows": {
        "is_slow.nonzero().flatten().tolist()": "is_slow.any().item()"
    },
    "the ranks are right; in window": {"own[~is_slow].amax": "own[~is_slow].mean"},
    "calls of collectives in 6 windows": {
        "        if len(mine) <": "        dist.all_reduce(torch.tensor(mine[-1]))\n        if len(mine) <"
    },
    "B to collectives, 4.0 x its own seconds": {
        "torch.empty(task": "torch.empty(4 * task",
        "torch.tensor(mine, dtype=torch.float64))": "torch.tensor(mine * 4, dtype=torch.float64))",
        "torch.stack(found)": "torch.stack(found)[:, :9]",
    },
}

# 12.9 ------------------------------------------------------------------------------------------------------------

EACH, SUMMED = 'if step % task["every"] == 0:', "    dist.all_reduce(loss)\n"
MEAN, RISEN = "return loss.item() / len(x)", "if metrics[-1] > min(metrics):"
SHARE, STEP = "y.tensor_split(ranks)[rank]", "        optimizer.step()\n        optimizer.zero_grad()\n"

WRONG["12.9", "two"] = {
    "that is the mean over rank 0's own rows": {
        SUMMED: "    loss = loss / len(x.tensor_split(ranks)[rank])\n    dist.broadcast(loss, src=0)\n",
        MEAN: "return loss.item()",
    },
    "that is the mean of the ranks' means": {', reduction="sum"': "", MEAN: "return loss.item() / ranks"},
    "that is the sum over the rows": {MEAN: "return loss.item()"},
    "too large by the number of ranks": {".tensor_split(ranks)[rank]": ""},
    "too small by the number of ranks": {MEAN: f"{MEAN} / ranks"},
    "it has not stopped when the loss had risen": {RISEN: "if False:"},
    "it has trained on after it should have stopped": {
        EACH: f"{EACH[:-1]} and not (metrics and metrics[-1] > min(metrics)):",
        RISEN: "if False:",
    },
    "there is no tensor '0.0.weight'": {
        "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))": "{}",
    },
    "B of gradients by reduce-scatters, and": {
        "    for layer in model[:-1]:\n        fully_shard(layer, mesh=mesh)\n    fully_shard(model, mesh=mesh)\n": "",
        STEP: "        for p in model.parameters():\n            dist.all_reduce(p.grad)\n            p.grad /= ranks\n"
        + STEP,
    },
}
HANGS["12.9", "two"] = {
    "a hang: ranks 0, 1 had not ended after 6 s": {
        EACH: 'if step % task["every"] == 0 and rank == 0:',
        SUMMED: "",
        ".tensor_split(ranks)[rank]": "",
    },
}
