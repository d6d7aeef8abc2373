"""Plausible wrong answers to the exercises of module 10, each with the level that must reject it and why.

A dict is an edit: the exercise's solution, with pieces of its text changed. Not for learners: it comes close to the
solutions. Slips stand in the exercises themselves.
"""

from __future__ import annotations

WRONG = {}  # (exercise, level): wrong answers, by the reason that is told
HANGS = {}  # those that end by their time limit


# 10.2 ------------------------------------------------------------------------------------------------------------

WEIGHT, GAP = "1 / (1 + max(degrees[i], degrees[j]))", "return W, 1 - others.abs().max().item()"
OWN = "    W += (1 - W.sum(1)).diag()\n"

WRONG["10.2", "matrix"] = {
    "returned Tensor, not two things: the matrix and the gap": {GAP: "return W"},
    "each rank takes the plain mean of itself and its neighbours": {WEIGHT: "1 / (1 + degrees[i])"},
    "the smaller degree of two is taken": {"max(degrees[i]": "min(degrees[i]"},
    "the diagonal is missing": {OWN: ""},
    "all links have the weight of the largest degree in the graph": {"max(degrees[i], degrees[j])": "max(degrees)"},
    "the matrix is float32, expected float64": {"return W,": "return W.float(),"},
    "row 0 sums to 2, not 1": {OWN: OWN + "    W = W + torch.eye(len(W)).double()\n"},
    "rows and columns sum to 1, but [0, 0] is": {WEIGHT: "0.5 / (1 + max(degrees[i], degrees[j]))"},
    "is not 0, and these two are no neighbours": {OWN: OWN + "    W = W @ W\n"},
    "column 1 sums to 1.6, not 1: what a rank has is to be heard once in all": {
        OWN: OWN + "    W = W[torch.arange(len(W)).clamp(min=1)]\n"
    },
}
WRONG["10.2", "gap"] = {
    "each linked to all on the other side, the gap: the matrix is right. For the gap an eigenvalue near -1": {
        "others.abs().max()": "others.max()"
    },
    "the matrix is right. That is the eigenvalue itself": {"1 - others": "others"},
    "the matrix is right. The eigenvalue 1 of the mean itself is left out": {"[:-1]": ""},
    "is it computed in float64?": {"1 - others.abs().max().item()": "float(1 - others.float().abs().max())"},
    "the matrix is right, and its gap is": {"others.abs().max()": "others.abs().mean()"},
}

# 10.3 ------------------------------------------------------------------------------------------------------------

MIXED, BEGUN = (
    "        mine = matrix[rank, rank] * mine\n",
    "        waiting = [dist.isend(mine, taker) for taker in takers]\n",
)
ADDED = "            mine = mine + matrix[rank, giver] * came[giver]\n"

WRONG["10.3", "ring"] = {
    "there is no answer-1.pt": {"    torch.save(": "    rank or torch.save("},
    "answer-0.pt is to hold a tensor": {"torch.save(mine,": "torch.save([mine],"},
    "its own row": {"torch.save(mine,": "torch.save(mine.float(),"},
    "all ranks have what they began with": {"torch.save(mine,": 'torch.save(task["values"][rank].clone(),'},
    "one step is done": {'for matrix in task["mixing"]:': 'for matrix in task["mixing"][:1]:'},
    "neighbours count alike": {
        MIXED: "        mine = mine / (1 + len(givers))\n",
        ADDED: "            mine = mine + came[giver] / (1 + len(givers))\n",
    },
    "what a rank has itself is missing": {MIXED: "        mine = 0 * mine\n"},
    "what a rank has itself counts in full": {MIXED: ""},
    "4 processes: each neighbour is mixed into what the one before it has left": {
        MIXED: "",
        ADDED: "            mine = mine + matrix[rank, giver] * (came[giver] - mine)\n",
    },
    "rank 0's numbers": {ADDED: ADDED.replace("matrix[rank, giver]", "2 * matrix[rank, giver]")},
    "neighbours alone talk to each other here": {
        "    torch.save(mine,": "    dist.all_reduce(mine.clone())\n    torch.save(mine,"
    },
    "values right, but rank 0 sends 384 B, and 192 B are right": {
        "            one.wait()\n": (
            "            one.wait()\n        again = [dist.isend(mine, taker) for taker in takers]\n"
            "        again += [dist.irecv(came[giver], giver) for giver in givers]\n"
            "        for one in again:\n            one.wait()\n"
        )
    },
}
WRONG["10.3", "others"] = {
    "each step is done by the first matrix": {
        'for matrix in task["mixing"]:': 'for matrix in task["mixing"][:1] * len(task["mixing"]):'
    },
    "what comes is weighed by the column": {ADDED: ADDED.replace("matrix[rank, giver]", "matrix[giver, rank]")},
    "the matrix is read by columns": {'for matrix in task["mixing"]:': 'for matrix in [m.T for m in task["mixing"]]:'},
}
HANGS["10.3", "ring"] = {
    "ranks 0, 1; each waits in a send until somebody takes its message, and nobody receives before": {
        BEGUN: "        for taker in takers:\n            dist.send(mine, taker)\n        waiting = []\n"
    },
    "does every rank make every call that all must make?": {
        BEGUN: "        waiting = [dist.isend(mine, taker) for taker in takers if rank]\n"
    },
}

# 10.4 ------------------------------------------------------------------------------------------------------------

CHANGE, STEPPED = "w - comm.all_reduce(mine) / dist.get_world_size()", "change + momentum * velocity)"
VELOCITY, OUTER = "velocity = momentum * velocity + change", "    return w, velocity\n"

WRONG["10.4", "average"] = {
    "returned Tensor, not 2 things: the weights, the velocity": {OUTER: "    return w\n"},
    "the weights on rank 0 is the velocity": {OUTER: "    return velocity, w\n"},
    "the sign of the change is wrong": {CHANGE: "comm.all_reduce(mine) / dist.get_world_size() - w"},
    "each rank goes on from its own weights": {
        "    velocity = torch.zeros_like(w)\n": "    velocity = torch.zeros_like(w)\n    mine = w.clone()\n",
        "        mine = w.clone()\n        for _": "        for _",
    },
    "the ranks' weights are added up, and their mean is asked": {" / dist.get_world_size()": ""},
    "each rank has taken its own change": {CHANGE: "w - mine"},
    "the weights that were divided are a rank's own. comm.all_reduce(x) returns the sum": {
        CHANGE: "w - mine / dist.get_world_size()",
        "        change =": "        comm.all_reduce(mine)\n        change =",
    },
    "each rank makes one step too few": {"range(every)": "range(every - 1)"},
    "in each step the gradients are averaged": {
        "rate * gradient(mine)": "rate * comm.all_reduce(gradient(mine)) / dist.get_world_size()"
    },
}
WRONG["10.4", "outer"] = {
    "the outer optimizer goes by its velocity alone": {STEPPED: "velocity)"},
    "the velocity begins with 0 in each round": {VELOCITY: "velocity = change"},
    "the outer step is missing": {"outer_rate * (change + momentum * velocity)": "change"},
    "the weights": {STEPPED: "change + momentum**2 * velocity)"},
}
WRONG["10.4", "calls"] = {
    "once in a round is what this is about": {
        "rate * gradient(mine)\n": "rate * gradient(mine)\n            comm.all_reduce(mine)\n"
    },
    "the weights travel once in a round, and nothing else has to": {
        VELOCITY: f"{VELOCITY}\n        velocity = comm.all_reduce(velocity) / dist.get_world_size()"
    },
}

# 10.5 ------------------------------------------------------------------------------------------------------------

THROWN, BACK_AGAIN = (
    "return (steps * v.sign()).to(torch.int8), norms",
    "norms.repeat_interleave(self.bucket)[: len(steps)]",
)
GUARD = "torch.where(norms > 0, norms, 1.0)"

WRONG["10.5", "thrown"] = {
    "encode() returned Tensor, not two tensors: steps and norms": {THROWN: THROWN.removesuffix(", norms")},
    "the steps are torch.float64, and torch.int8 is asked": {".to(torch.int8)": ""},
    "the signs are lost": {"steps * v.sign()": "steps"},
    "steps are rounded to the nearest": {"low + (dice < shares - low)": "shares.round()"},
    "the dice are upside down": {"dice < shares": "dice > shares"},
    "encode() has written into what it was given": {THROWN: "v.zero_()\n        " + THROWN},
    "a step is the norm divided by `levels`": {" / self.levels\n": "\n"},
    "repeat_interleave, not repeat": {"repeat_interleave": "repeat"},
    "the norms: shape (3, 1), expected (3,)": {THROWN: "return (steps * v.sign()).to(torch.int8), norms.unsqueeze(-1)"},
    "the norms are exactly 2.0 x the reference": {"rows.norm(dim=1)": "2 * rows.norm(dim=1)"},
    "the steps are wrong at": {THROWN: "return (-steps * v.sign()).to(torch.int8), norms"},
}
WRONG["10.5", "unbiased"] = {
    "the steps are wrong at": {"dice < shares - low": "dice * 0.999 < shares - low"},
}
WRONG["10.5", "edges"] = {
    "21 numbers in buckets of 8, 4 levels: ": {"F.pad(v, (0, -len(v) % self.bucket))": "v"},
    "3 numbers in buckets of 64, 4 levels: ": {"-len(v) % self.bucket": "-len(v) % min(self.bucket, 21)"},
    "encode() makes a whole number of NaN. A bucket of zeros is divided by its norm": {GUARD: "norms"},
    "a number that stands exactly on a step goes up with a die of 0": {"dice < shares - low": "dice <= shares - low"},
}
WRONG["10.5", "variance"] = {
    "variance() returned NoneType, not a number": {"return squares.sum()": "squares.sum()"},
    "that is in steps": {"(norms / self.levels).square().unsqueeze(-1) * ": ""},
    "that is relative to the square of v's norm": {"squares.sum()": "(squares.sum() / v.square().sum())"},
    "exactly 2.0 x it": {"squares.sum()": "(2 * squares.sum())"},
    "variance() is nan: what is a bucket of zeros divided by?": {
        "fractions = shares - shares.floor()": "fractions = (shares - shares.floor()) * norms[:, None] / norms[:, None]"
    },
    "when it is asked again. It is computed and not thrown": {
        "return squares.sum().item()": (
            "throws = [self.decode(*self.encode(v, torch.rand(len(v)))) for _ in range(50)]\n"
            "        return sum((back - v).square().sum() for back in throws).item() / len(throws)"
        )
    },
    "% too large. Is it a mean over throws?": {"squares.sum()": "(1.05 * squares.sum())"},
}

# 10.6 ------------------------------------------------------------------------------------------------------------

SORTED, LEFT = ".abs().sort(descending=True, stable=True).indices[:k]", "left[places] = 0"
PLACES_SENT = "return values, places.to(torch.int32)"

WRONG["10.6", "one"] = {
    "so many numbers are sent as divide evenly": {"math.ceil(due.numel() / self.one_in)": "due.numel() // self.one_in"},
    "the largest ones with their signs": {SORTED: SORTED.replace(".abs()", "")},
    "the places are torch.int64, and torch.int32 is asked": {PLACES_SENT: "return values, places"},
    "send() returned Tensor, not two tensors: values and places": {PLACES_SENT: "return values"},
    "kept['a'] is NoneType after send()": {"self.kept[name] = left": "self.kept[name + 'x'] = left"},
    "what is kept: shape (18,), expected (19,)": {
        "left = due.flatten().clone()": "left = due.flatten().clone()[:-1]",
        LEFT: "left[places.clamp(max=len(left) - 1)] = 0",
        "left.view(due.shape)": "left",
    },
    "the gradient that was given is overwritten": {
        "due = gradient + self.kept.get(name, 0)": "due = gradient.add_(self.kept.get(name, 0))",
        "left = due.flatten().clone()": "left = due.flatten()",
    },
    "there are 1 value and 5 places": {"values = due.flatten()[places]": "values = due.flatten()[places][:1]"},
    "1 number sent, and 5 is right": {"[:k]": "[:1]"},
    "the memory is empty after each step": {LEFT: "left[:] = 0"},
    "agrees up to rounding, and not to the bit": {
        "left.view(due.shape)": "(left.double() * 3).float().view(due.shape) / 3",
    },
    "values is not right: number 0": {"values = due.flatten()[places]": "values = 2 * due.flatten()[places]"},
}
WRONG["10.6", "memory"] = {
    "the memory does not help to choose": {f"due.flatten(){SORTED}": f"gradient.flatten(){SORTED}"},
    "parameters of one shape share a memory": {
        "self.kept.get(name, 0)": "self.kept.get(gradient.shape, 0)",
        "self.kept[name] = left": "self.kept[name] = self.kept[gradient.shape] = left",
    },
}
WRONG["10.6", "mean"] = {
    "a place that several ranks have sent has the last one's number alone": {
        "total.index_add_(0, places, values)": "total[places.long()] = values"
    },
    "that is the sum over the ranks": {"(total / len(messages))": "total"},
    "mean() returned NoneType, not a tensor": {"return (total / len(messages)).view(shape)": "total /= len(messages)"},
    "the mean: shape (15,), expected (3, 5)": {".view(shape)": ""},
}

# 10.7 ------------------------------------------------------------------------------------------------------------

GUESS, MEANS = "self.guess = self.guess.index_add(0, places, change[places])", "return self.mean\n"
CHANGES = "return change[places], places.to(torch.int32)"

WRONG["10.7", "steps"] = {
    "send() returned Tensor, not two tensors": {CHANGES: "return change[places]"},
    "the places are torch.int64": {CHANGES: "return change[places], places"},
    "What others have guessed already need not travel": {"change = gradient - self.guess": "change = gradient"},
    "the change has the wrong sign": {"gradient - self.guess": "self.guess - gradient"},
    "the guess becomes the gradient itself": {GUESS: "self.guess = gradient"},
    "the guess stays what it was": {GUESS: "pass"},
    "receive() returns the mean of the changes": {
        "        for values, places in messages:\n": (
            "        self.mean = torch.zeros_like(self.mean)\n        for values, places in messages:\n"
        )
    },
    "receive() returns this rank's own guess": {MEANS: "return self.guess\n"},
    "one guess stands for both": {GUESS: "pass", "self.mean": "self.guess"},
    "self.guess grows twice": {"self.mean = self.mean": "self.guess = self.guess", MEANS: "return self.guess\n"},
    "this rank's own guess and the mean of all changes on top": {
        "        for values, places": "        self.mean = self.guess\n        for values, places"
    },
    "the change is taken from self.mean": {"gradient - self.guess": "gradient - self.mean"},
    "the changes are added up, and their mean is asked": {"values / len(messages)": "values"},
    "receive() returned NoneType, not a tensor": {MEANS: "self.mean\n"},
    "1 number sent, and 4 is right": {"indices[:k]": "indices[:1]"},
}
WRONG["10.7", "still"] = {
    "1 rank, 2 steps, one number in 1: step 1: 13 numbers sent, and 14 is right": {
        "math.ceil(len(change) / self.one_in)": "min(math.ceil(len(change) / self.one_in), len(change) - 1)"
    },
}

# 10.8 ------------------------------------------------------------------------------------------------------------

THIN_P, THIN_Q = "torch.linalg.qr(comm.all_reduce(M @ self.Q) / ranks).Q", "comm.all_reduce(M.T @ P) / ranks"
KEPT = "self.kept = M - found"

WRONG["10.8", "one"] = {
    "each rank has made its own P orthonormal before they were averaged": {
        THIN_P: "comm.all_reduce(torch.linalg.qr(M @ self.Q).Q.contiguous()) / ranks"
    },
    "the columns of P are not orthonormal": {THIN_P: "comm.all_reduce(M @ self.Q) / ranks"},
    "if these are columns of torch.linalg.qr, the order is another one": {
        THIN_P: "comm.all_reduce(torch.linalg.qr(M @ self.Q).Q) / ranks"
    },
    "each rank has gone on with its own P": {THIN_P: "torch.linalg.qr(M @ self.Q).Q"},
    "each rank has taken its own Q": {THIN_Q: "M.T @ P"},
    "factors are added up, and their mean is asked": {" / ranks": ""},
    "nothing is kept, so what the factors do not hold is lost": {KEPT: "self.kept = torch.zeros_like(M)"},
    "what is kept is measured at this rank's own Q": {KEPT: "self.kept = M - P @ (M.T @ P).T"},
    "all ranks keep the same, a mean": {KEPT: "self.kept = comm.all_reduce(M - found) / ranks"},
    "what is kept on rank 0: shape (1,), expected": {KEPT: "self.kept = 0"},
    "the mean on rank 0: NoneType, not a tensor": {"        return found\n": "        return None\n"},
    "the mean is exactly 2.0 x": {"return found": "return 2 * found"},
}
WRONG["10.8", "steps"] = {
    "each step begins with the first directions": {"self.Q = comm": "Q = comm", "P @ self.Q.T": "P @ Q.T"},
    "what is kept is of the last gradient alone": {KEPT: "self.kept = gradient - found"},
}
WRONG["10.8", "calls"] = {
    "two all-reduces in a step are enough": {KEPT: "comm.all_reduce(found)\n        " + KEPT},
    "three products in a step are enough": {KEPT: "self.kept = M - P @ self.Q.T"},
}

# 10.9 ------------------------------------------------------------------------------------------------------------

BROKEN, DUE = 'return "bytes", 100', "due = gradient + self.kept.get(name, torch.zeros_like(gradient))"
CHOSEN, LEAVES = "sent = self.largest(due)", "self.kept[name] = due - sent"

WRONG["10.9", "diagnosis"] = {
    "give two things, the promise's name and how many numbers": {BROKEN: 'return "bytes"'},
    "promise 'memory' is kept": {BROKEN: 'return "memory", 100'},
    "'loss' is none of the promises": {BROKEN: 'return "loss", 100'},
    "but 1 number is what should be sent. Count what is": {BROKEN: 'return "bytes", 1'},
    "the second message has not 99 numbers": {BROKEN: 'return "bytes", 99'},
}
WRONG["10.9", "mended"] = {
    "the memory is still added after choosing, so all of it is sent": {
        DUE: "before = self.kept.get(name, torch.zeros_like(gradient))\n        due = gradient + before",
        CHOSEN: "sent = self.largest(gradient) + before",
    },
    "does not help to choose": {CHOSEN: "sent = torch.where(self.largest(gradient) != 0, due, 0.0)"},
    "so what is kept never leaves. It takes part in the choice": {CHOSEN: "sent = self.largest(gradient)"},
    "so twice as many as promised. What was kept takes part in the choice": {
        CHOSEN: "sent = self.largest(gradient) + self.largest(due - gradient)"
    },
    "it is chosen twice": {CHOSEN: "sent = self.largest(self.largest(gradient) + due - gradient)"},
    "few numbers are sent now, but nothing is kept any more": {LEAVES: "self.kept[name] = torch.zeros_like(due)"},
    "of what was kept before nothing is left": {
        LEAVES: "self.kept[name] = torch.where(sent != 0, 0.0, gradient)",
    },
    "they are kept as well, and will be sent again": {LEAVES: "self.kept[name] = due"},
    "14 numbers sent, and 4 is right": {CHOSEN: "sent = torch.where(due.abs() == due.abs().max(), due, 0.0)"},
}

# 10.10 -----------------------------------------------------------------------------------------------------------

TOLD_LINES, AGREES = "return right, wrong", 'float(f"{number:.3g}") != line.said'

WRONG["10.10", "text"] = {
    "returned list, not two things: a list of numbers": {TOLD_LINES: "return right"},
    "not a list with a number for each of 6 lines": {TOLD_LINES: "return right[:-1], wrong"},
    "the second thing is to be a list of names": {TOLD_LINES: 'return right, "ABDF"'},
    "that is the share of the numbers": {"(n - 1) * 6 * k / ring": "k / d"},
    "a place has four bytes": {"(n - 1) * 6 * k / ring": "(n - 1) * 2 * k / ring"},
    "ring: a reduce-scatter alone": {
        '"ring": ring / 1e9': '"ring": ring / 2e9',
    },
    "omega: that is what rand-k multiplies by": {"d / k - 1": "d / k"},
    "A, share: 7.56 there, and 0.96 is right": {"(n - 1) * 6 * k / ring": "(n - 1) ** 2 * 6 * k / ring / 8"},
    "the numbers are right, and what the table says in line A does not agree": {TOLD_LINES: "return right, []"},
    "the numbers are right, and what the table says in line C agrees": {
        TOLD_LINES: "return right, [line.name for line in lines]"
    },
    "the numbers are right, but 'share' is no line's name": {TOLD_LINES: "return right, [*wrong, 'share']"},
    "a line is named twice": {TOLD_LINES: "return right, wrong + wrong"},
}
WRONG["10.10", "others"] = {
    "another table, 6 lines: the numbers are right, and what the table says in line": {
        AGREES: "abs(number - line.said) > 0.02 * number"
    },
    "another table, 6 lines: ": {"n, d, k = line.n, line.d, line.k": "n, d, k = 64, line.d, line.k"},
}

# 10.11 -----------------------------------------------------------------------------------------------------------

BACK, KEEPS = '        kept.update(state["kept"])\n', "kept[names[one]] = due.view(gradient.shape)"
PAIRS = "        for one, gradient in zip(bucket"
IN_FLAT = {
    "kept.get(names[one], 0)": "flat[at : at + gradient.numel()].view(gradient.shape)",
    KEEPS: "flat[at : at + len(due)] = due\n            at += len(due)",
}
SAVES, GATHERED = 'state-{rank}.pt")\n', "mean.index_add_(0, there, some / ranks)"

WRONG["10.11", "resumed"] = {
    "these come from whole gradients: is the hook registered?": {"    ddp.register_comm_hook(None, hook)\n": ""},
    "the messages are summed": {GATHERED: "mean.index_add_(0, there, some)"},
    "nothing is kept: what was not sent is lost": {KEEPS: "kept[names[one]] = torch.zeros_like(gradient)"},
    "what has been sent is kept as well": {"            due[places] = 0\n": ""},
    "the memory does not help to choose": {"due.abs().topk": "gradient.flatten().abs().topk"},
    "a place that several ranks have sent has the last one's number alone": {
        GATHERED: "mean[there.long()] = some / ranks"
    },
    "the weights are as they were before the first step": {"        optimizer.step()\n": ""},
    "is a memory kept by bucket? After its first step DDP fills its buckets anew": {"names[one]": "bucket.index()"},
    "what the first step has kept is lost. Is a memory kept by bucket?": {
        "kept.get(names[one], 0)": "kept.get((bucket.index(), len(bucket.buffer()), names[one]), 0)",
        KEEPS: "kept[bucket.index(), len(bucket.buffer()), names[one]] = due.view(gradient.shape)",
    },
    "what the first step has kept is added to other parameters": {
        "    kept = {}\n": "    kept, flat = {}, torch.zeros(sum(one.numel() for one in names)).double()\n",
        PAIRS: "        at = len(flat) - len(bucket.buffer()) if bucket.index() else 0\n" + PAIRS,
        **IN_FLAT,
    },
    "what the first step has kept of bucket 0 is added to other parameters": {
        PAIRS: "        flat, at = kept.setdefault(bucket.index(), torch.zeros(452).double()), 0\n" + PAIRS,
        **IN_FLAT,
    },
    "there is no ended-3-0.pt": {BACK: BACK + "        begin = 0\n"},
    "the start that goes on: the memory is empty after the restart": {BACK: ""},
    "the start that goes on: all ranks go on with rank 0's memory": {
        BACK: '        kept.update(torch.load(f"{folder}/state-0.pt")["kept"])\n'
    },
    "the momentum of the optimizer is lost in the restart": {
        '        optimizer.load_state_dict(state["optimizer"])\n': ""
    },
    "to the bit": {BACK: '        kept.update({name: x * (1 + 1e-11) for name, x in state["kept"].items()})\n'},
    "does every parameter get back what this rank had kept of it?": {
        BACK: (
            '        flat = torch.cat([x.flatten() for x in reversed(state["kept"].values())])\n'
            "        parts = flat.split([one.numel() for one in names])\n"
            "        kept.update({names[one]: part.view(one.shape) for one, part in zip(names, parts)})\n"
        )
    },
    "that is DDP's own. Save the state dict of the model inside": {
        "    torch.save(model.state_dict(), f": "    torch.save(ddp.state_dict(), f"
    },
    "places go as int32, of 4 bytes": {"gathered(places.to(torch.int32))": "gathered(places)"},
    "so messages are gathered and not added on the way": {
        "            for some, there in zip(": "            dist.all_reduce(mean)\n            for some, there in zip("
    },
    "rank 0 gathers 5,760 B in 6 steps": {
        "            for some, there in zip(": "            gathered(values)\n            for some, there in zip("
    },
    "rank 0's 0.weight is off by": {"            gradient.copy_(": "            rank or gradient.copy_("},
}
WRONG["10.11", "sooner"] = {
    "there is no ended-1-0.pt": {'if step == task["stop"]:': "if step == 3:"},
}
