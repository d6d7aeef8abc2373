"""Plausible wrong answers to the exercises of module 02, each with the level that must reject it and why.

A dict is an edit: the exercise's solution, with pieces of its text changed. Not for learners: it comes close to the
solutions.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from course_lib import comm
from course_lib.costs import comm_time
from course_lib.hardware import Link

WRONG = {}  # (exercise, level): wrong answers, by the reason that is told
HANGS = {}  # those that end by their time limit
START = "### BEGIN SOLUTION"  # in its place stands a line that comes first

# 02.2 ------------------------------------------------------------------------------------------------------------


def native_sum(x):
    total = x.clone()
    dist.all_reduce(total)
    return total.tensor_split(dist.get_world_size())[dist.get_rank()].clone()


def straight_to_the_owner(x):
    rank, p = dist.get_rank(), dist.get_world_size()
    chunks = x.tensor_split(p)
    total = chunks[rank].clone()
    for shift in range(1, p):
        incoming = comm.irecv(inbox := torch.empty_like(total), (rank - shift) % p)
        outgoing = comm.isend(chunks[(rank + shift) % p], (rank + shift) % p)
        incoming.wait()
        outgoing.wait()
        total += inbox
    return total


WRONG["02.2", "values"] = {
    "nothing is in the ledger": native_sum,
    "by comm.reduce_scatter": lambda x: comm.reduce_scatter(x),
    "chunks are shifted; chunk 0 is finished on rank 3, not on rank 0": {  # the textbooks' numbering
        "rank - step": "rank - step + 1",
        "chunks[rank]": "chunks[(rank + 1) % world_size]",
    },
    "0.25 x the right one: an average": {"chunks[rank]": "chunks[rank] / world_size"},
    "the contribution of rank 1 is missing in the sum of chunk 0": {"range(1,": "range(2,"},
    "right, but `x` on rank 0 is overwritten, and another part of the program may still need it: work on a copy": {
        "x.clone()": "x"
    },
    "a crash: rank 2 died": {START: "if rank == 2: import os; os._exit(0)"},
    "a crash: rank 1 died": {START: "if rank == 1: import os; os.kill(os.getpid(), 9)"},
    "or chunk 0 started on rank 0, where it should have started on rank 1": {"rank - step": "rank - step + 1"},
    "Either what you added stayed in a variable of yours": {"mine += inbox": "mine = mine + inbox"},
    "the contribution of ranks 1, 2, 3 is missing": {"range(1, world_size)": "()"},
}
HANGS["02.2", "values"] = {
    "nobody receives: start the receive first": {
        "incoming = comm.irecv(inbox, left)": "comm.send(sent, right)",
        "outgoing = comm.isend(sent, right)": "incoming = outgoing = comm.irecv(inbox, left)",
    },
    "an endless loop?": {START: "while world_size > 1: pass"},
}
WRONG["02.2", "edges"] = {
    "4 ranks, 26 numbers: an error": {
        "empty_like(mine)": "empty_like(x[: len(x) // world_size])",
        "isend(sent": "isend(sent[: len(inbox)]",
    },
    "one rank sends nothing: it makes p - 1 steps, which are none": {
        "range(1, world_size)": "range(1, world_size + 1)"
    },
    "receive into a tensor like the one that is sent": {"empty_like(mine)": "empty_like(sent)"},
}
WRONG["02.2", "bytes"] = {
    "Do the tensors travel as float64?": {
        "x.clone()": "x.double()",
        "return chunks[rank]": "return chunks[rank].to(x.dtype)",
    },
    "bytes 4.0 x the target": {
        "x.clone()": "(work := x.clone())",
        "empty_like(mine)": "empty_like(x)",
        "isend(sent": "isend(work",
        "+= inbox": "+= inbox.tensor_split(world_size)[(rank - step - 1) % world_size]",
    },
    "this is no ring: rank 0 sends to ranks 1, 2, 3; in a ring it has one neighbour": straight_to_the_owner,
    "is there one phase too many?": {
        "return chunks[rank]": "return ring_all_gather(chunks[rank], len(x)).tensor_split(world_size)[rank]"
    },
}

# 02.3 ------------------------------------------------------------------------------------------------------------


def straight_to_all(shard, length):
    rank, p = dist.get_rank(), dist.get_world_size()
    whole = shard.new_empty((length, *shard.shape[1:]))
    chunks = whole.tensor_split(p)
    chunks[rank].copy_(shard)
    for shift in range(1, p):
        incoming = comm.irecv(chunks[(rank - shift) % p], (rank - shift) % p)
        outgoing = comm.isend(shard, (rank + shift) % p)
        incoming.wait()
        outgoing.wait()
    return whole


WRONG["02.3", "values"] = {
    "rank 3's input stands where rank 1's input belongs": {
        "return whole": "return torch.cat([chunks[(rank - step) % world_size] for step in range(world_size)])"
    },
    "only zeros, where rank 1's input belongs": {"torch.empty": "torch.zeros", "range(1, world_size)": "()"},
    "returned NoneType, not a tensor": {"return whole": ""},
    "stands where": {
        "torch.empty": "torch.zeros",
        "rank - step + 1": "rank + step - 1",
        "rank - step)": "rank + step)",
    },
}
WRONG["02.3", "edges"] = {
    "returned shape": {  # equal shards only
        START: "length += -length % world_size\n"
        "    shard = torch.cat([shard, shard[: length // world_size - len(shard)]])"
    }
}
WRONG["02.3", "bytes"] = {
    "this is no ring: rank 0 sends to ranks 1, 2, 3; in a ring it has one neighbour": straight_to_all,
    "you send the whole tensor at each step": {
        "torch.empty": "torch.zeros",
        "irecv(room": "irecv(inbox := torch.zeros_like(whole)",
        "isend(sent": "isend(whole",
        "outgoing.wait()": "outgoing.wait()\n"
        "        room.copy_(inbox.tensor_split(world_size)[(rank - step) % world_size])",
    },
    "messages": {  # number by number
        "comm.irecv(room, left)": "[comm.irecv(one, left) for one in room.split(1)]",
        "comm.isend(sent, right)": "[comm.isend(one, right) for one in sent.split(1)]",
        "incoming.wait()": "[one.wait() for one in incoming]",
        "outgoing.wait()": "[one.wait() for one in outgoing]",
    },
}

# 02.4 ------------------------------------------------------------------------------------------------------------


def through_the_root(x):
    rank, world_size, x = dist.get_rank(), dist.get_world_size(), x.clone()
    for other in range(1, world_size):
        if rank == 0:
            x += comm.recv(x.clone(), other)
        elif rank == other:
            comm.send(x, 0)
    for other in range(1, world_size):
        if rank == 0:
            comm.send(x, other)
        elif rank == other:
            comm.recv(x, 0)
    return x


WRONG["02.4", "values"] = {
    "by comm.all_reduce": lambda x: comm.all_reduce(x),
    "0.25 x the right one: an average": {"(x.shape)": "(x.shape) / dist.get_world_size()"},
    "holds inf": {"(x.shape)": "(x.shape) * float('inf')"},
    "holds nan": {"(x.shape)": "(x.shape) * float('nan')"},
    "expected (24,)": {"return ring_all_gather(shard, x.numel()).reshape(x.shape)": "return shard"},
}
WRONG["02.4", "edges"] = {"expected (3, 2, 4)": {".reshape(x.shape)": ""}}
WRONG["02.4", "any-shape"] = {
    "returned shape (216,), expected (6, 6, 6)": {  # typed from the cases before
        ".reshape(x.shape)": ".reshape({(3, 24): (3, 2, 4), (3, 35): (7, 5), (4, 32): (2, 16)}.get("
        "(dist.get_world_size(), x.numel()), (-1,)))"
    },
}
WRONG["02.4", "bytes"] = {
    "2 rows are too few for 4 ranks; cut x.reshape(-1)": {"x.reshape(-1)": "x", "x.numel()": "len(x)"},
    "so one of them sends for others": through_the_root,
}

# 02.5 ------------------------------------------------------------------------------------------------------------


def in_a_heap(x, src):
    """Each rank has two children: as deep as the binomial tree on 2 to 6 ranks, one step deeper on 7."""
    p, x = dist.get_world_size(), x.clone()
    me = (dist.get_rank() - src) % p
    if me > 0:
        comm.recv(x, ((me - 1) // 2 + src) % p)
    for child in (2 * me + 1, 2 * me + 2):
        if child < p:
            comm.send(x, (child + src) % p)
    return x


WRONG["02.5", "steps"] = {
    "7 ranks, 32 numbers: values right, steps 1.33 x the target: 4 steps that wait": in_a_heap,
    "in a tree, receivers help to send": {
        "distance = 1": "distance = world_size\n"
        "    for other in range(1, world_size):\n"
        "        if me == 0: comm.send(x, (other + src) % world_size)\n"
        "        if me == other: comm.recv(x, src)"
    },
    "steps 1.5 x the target": {
        "distance = 1": "distance = world_size\n"
        "    if me > 0: comm.recv(x, (rank - 1) % world_size)\n"
        "    if me < world_size - 1: comm.send(x, (rank + 1) % world_size)"
    },
}
WRONG["02.5", "values"] = {
    "rank 2's input stands where rank 0's input belongs": {
        "while distance < world_size": "while 2 * distance < world_size or distance == 1"
    },
    "by comm.broadcast": lambda x, src: comm.broadcast(x, src=src),
}
WRONG["02.5", "edges"] = {"rank 0's input stands where rank 1's input belongs": {START: "src = 0"}}
HANGS["02.5", "edges"] = {
    "rank 0 sends to 2, which has already returned: is there such a partner in this step?": {
        " and me + distance < world_size": ""
    },
}

# 02.6 ------------------------------------------------------------------------------------------------------------


def through_a_root_between(x, inside, between):
    chunk = comm.all_reduce(comm.reduce_scatter(x, group=inside), group=between, algorithm="naive")
    return comm.all_gather(chunk, length=len(x), group=inside)


WRONG["02.6", "bytes"] = {
    "so one of them sends for others": through_a_root_between,
    "bytes between nodes 1.5 x the target": lambda x, inside, between: comm.all_reduce(x),
    "bytes between nodes 2.0 x the target": lambda x, inside, between: comm.all_reduce(
        comm.all_reduce(x, group=inside), group=between
    ),
    "bytes 2.0 x the target: the right number of messages, each twice as long": {
        "reduce_scatter(x": "reduce_scatter(x.double()",
        "length=len(x), group=inside)": "length=len(x), group=inside).to(x.dtype)",
    },
    "nodes 2.0 x the target": {"inside, between": "between, inside"},
}
WRONG["02.6", "values"] = {
    "other chunks are added to the sum of chunk 0: is each call given its group?": {", group=between": ""},
    "did you keep what it returned?": {"    chunk = comm.all_reduce": "    comm.all_reduce"},
    "the ledger has no message between ranks 0, 1 and 2, 3: use comm.all_gather and comm.all_reduce": {
        "chunk = comm.all_reduce(chunk": "dist.all_reduce(chunk"
    },
    "the contribution of ranks 2, 3 is missing": lambda x, inside, between: comm.all_reduce(x, group=inside),
    "algorithm='hierarchical'": lambda x, inside, between: comm.all_reduce(
        x, algorithm="hierarchical", node_size=dist.get_world_size(inside)
    ),
}
WRONG["02.6", "edges"] = {"an error: ": {", length=len(x)": ""}}

# 02.7 ------------------------------------------------------------------------------------------------------------

WRONG["02.7", "values"] = {
    "stands where chunk 0 of rank 1 belongs": {  # in order of arrival
        "cat(result)": "cat([result[(rank - shift) % world_size] for shift in range(world_size)])"
    },
    "stands where": {"chunks[to]": "chunks[rank]"},
}
HANGS["02.7", "values"] = {"nobody sends: does each partner": {"(rank - shift)": "(rank + shift)"}}
WRONG["02.7", "edges"] = {  # right on 2 and on 4 ranks: with 3 there is no partner for everybody
    "3 ranks, 20 numbers, int64: ": {
        "to, source = (rank + shift) % world_size, (rank - shift) % world_size": "to = source = rank ^ shift\n"
        "        if to >= world_size: continue"
    },
}
WRONG["02.7", "bytes"] = {
    "you send the whole tensor at each step": {
        "irecv(result[source]": "irecv(inbox := torch.empty_like(x)",
        "chunks[to]": "x",
        "outgoing.wait()": "outgoing.wait()\n        result[source] = inbox.tensor_split(world_size)[rank]",
    }
}

# 02.8 ------------------------------------------------------------------------------------------------------------

SECOND_WHOLE = {
    "irecv(mine[i], left), comm.isend(mine[sent], right)": "irecv(inbox, left), comm.isend(work, right)",
    "    return work": "        mine[i].copy_(theirs[i])\n    return work",
}
FIRST_LOOP = "range(world_size - 1):\n        sent, i = (rank - step - 1)"
SECOND_LOOP = "range(world_size - 1):\n        sent, i = (rank - step)"


def greatest_by_the_root(x):
    rank, p, x = dist.get_rank(), dist.get_world_size(), x.clone()
    for other in range(1, p):
        if rank == 0:
            x = torch.maximum(x, comm.recv(torch.empty_like(x), other))
        elif rank == other:
            comm.send(x, 0)
    for other in range(1, p):
        if rank == 0:
            comm.send(x, other)
        elif rank == other:
            comm.recv(x, 0)
    return x


WRONG["02.8", "bytes"] = {
    "bytes 4.0 x the target": SECOND_WHOLE
    | {"theirs[i], left), comm.isend(mine[sent]": "inbox, left), comm.isend(work"},
    "bytes 2.5 x the target: one of the two loops sends chunks, the other still whole tensors": SECOND_WHOLE,
    "so one of them sends for others": greatest_by_the_root,
    "bytes 2.0 x the target: 768 B sent by the busiest rank": {  # the whole tensor goes round the ring
        "theirs[i], left), comm.isend(mine[sent]": "inbox, left), comm.isend(x",
        "mine[i].copy_(torch.maximum(mine[i], theirs[i]))": "x = inbox.clone()\n"
        "        work.copy_(torch.maximum(work, x))",
        SECOND_LOOP: "():\n        sent, i = (rank - step)",
    },
}
WRONG["02.8", "values"] = {
    "holds numbers of another chunk, where the maximum of chunk 0 belongs: is the chunk you send": {
        "theirs[i], left), comm.isend(mine[sent]": "theirs[i], left), comm.isend(mine[i]"
    },
    "does not count every rank, where the maximum of chunk 0 belongs": {
        FIRST_LOOP: "range(1, world_size - 1):\n        sent, i = (rank - step - 1)"
    },
    "where the maximum of chunk 0 belongs": {"torch.maximum(mine[i], theirs[i])": "mine[i] + theirs[i]"},
}

# 02.11 -----------------------------------------------------------------------------------------------------------

WRONG["02.11", "all"] = {
    "rank 0: all is rank 0's number alone: was anything added up?": {"    dist.all_reduce(total)\n": ""},
    "says rank 1 of 3: does it ask dist?": {"rank {rank} of": "rank {rank + 1} of"},
    "rank 1 printed nothing; expected one line such as": {"    print(": "    if rank == 0: print("},
    "an error on rank 0: line 12: ValueError: Default process group has not been initialized": {
        'dist.init_process_group("gloo", timeout=timedelta(seconds=30))': ""
    },
    "was it summed in place?": {"own {os.getpid()}": "own {total.item()}"},
    "it imports course_lib": {"import torch\n": "import torch\nfrom course_lib import comm\n"},
}
WRONG["02.11", "half"] = {
    "rank 0: half is the sum of all ranks: which group": {", group=halves[int(rank >= middle)]": ""},
    "and the numbers of ranks 0 add up to": {  # even and odd
        "range(middle), range(middle, world_size)": "range(0, world_size, 2), range(1, world_size, 2)",
        "rank >= middle": "rank % 2",
    },
}
HANGS["02.11", "all"] = {
    "collective 1 of all ranks is barrier (line 22) on rank 0 and all_reduce of 8 B (line 14) on ranks 1, 2": {
        "    dist.all_reduce(total)\n": "    if rank > 0: dist.all_reduce(total)\n"
    },
}

# 02.9 ------------------------------------------------------------------------------------------------------------


def average_in_chunks(x):
    """The same bits on every rank, by a ring of twice as many steps."""
    rank, p = dist.get_rank(), dist.get_world_size()
    chunks = list(x.clone().tensor_split(p))
    for step in range(2 * p - 2):
        i = (rank - step - 2) % p
        incoming = comm.irecv(inbox := torch.empty_like(chunks[i]), (rank - 1) % p)
        comm.isend(chunks[(rank - step - 1) % p], (rank + 1) % p).wait()
        incoming.wait()
        chunks[i] = chunks[i] + inbox if step < p - 1 else inbox
    return torch.cat(chunks) / p


BITS = "numbers differ between ranks 0 and "
OWN_FIRST = {"return sum(parts)": "return sum([x, *(parts[i] for i in range(world_size) if i != rank)])"}
WRONG["02.9", "values"] = {
    "3.0 x the right one: the sum itself: is it divided by the number of ranks (3)?": {" / world_size": ""},
    "0.333 x the right one: is it divided by the number of ranks (3) twice?": {"/ world_size": "/ world_size**2"},
    "by comm.all_reduce: this exercise asks you to build it from comm.irecv and comm.isend": lambda x: (
        comm.all_reduce(x) / dist.get_world_size()
    ),
    "returned int64, expected float32": {"sum(parts) /": "sum(parts).long() //"},
    "the contribution of rank 1 is missing and rank 0 is counted 2 times": {
        "(1, world_size)": "(1, min(2, world_size))"
    },
    "right, but `x` on rank 0 is overwritten, and another part of the program may still need it: work on a copy": {
        "moving = x\n": "moving = x.clone()\n    x.zero_()\n    parts[rank] = moving\n"
    },
}
WRONG["02.9", "bits"] = {
    f"{BITS}2: rank 0 has added ranks 0, 1, 2 in this order, rank 2 has added ranks 2, 0, 1 in this order": OWN_FIRST,
    f"{BITS}1: rank 0 has added ranks 0, 2, 1 in this order, rank 1 has added ranks 1, 0, 2": {  # as they arrive
        "sum(parts)": "sum(parts[(rank - step) % world_size] for step in range(world_size))"
    },
    "4 ranks, 101 numbers that cancel: right to rounding, but": {  # rarer in float64, and not gone
        "return sum(parts)": "return sum(\n"
        "        [x.double(), *(parts[i].double() for i in range(world_size) if i != rank)]).float()"
    },
    f"{BITS}1: number ": {"sum(parts) / world_size": "sum(parts) / world_size * (1 + (rank == 1) * 2**-23)"},
    "3 ranks, 1001 numbers that are not whole: rank 0, number 0 is ": {  # half of the digits
        "inbox = torch.empty_like(x)": "inbox, moving = torch.empty_like(x), moving.half().float()",
    },
}
WRONG["02.9", "steps"] = {
    "Do the tensors travel as float64?": {
        START: "dtype, x = x.dtype, x.double()",
        "/ world_size": "/ world_size).to(dtype)",
        "return sum": "return (sum",
    },
    "a loop makes one step too many: 4 - 1 are enough": {
        "range(1, world_size)": "range(1, world_size + (world_size > 1))"
    },
    "24 messages of all ranks, target 12; is there one phase too many?": average_in_chunks,
}

# 02.10 -----------------------------------------------------------------------------------------------------------

WRONG["02.10", "powers"] = {
    "Only latency counts then: each step pays one alpha": {"alpha, beta = between": "alpha, beta = 0, between[1]"},
    "bytes cost next to nothing in these choices": {'"recursive_doubling": rounds': '"recursive_doubling": 1 / rounds'},
    "as if the bytes of all ranks were added up": {"    rounds = p": "    M = p * M\n    rounds = p"},
    "goes round twice, p - 1 steps": {"2 * (ranks - 1)": "(ranks - 1)"},
    "on 2 ranks both doublings send M bytes in all": {"return min": 'return "halving_doubling" if p == 2 else min'},
    "halving-doubling wins too often. It carries": {"2 * (q - 1) / q": "(q - 1) / q"},
    "returned 'tree'; choose one of 'ring', 'rec": {'"halving_doubling"': '"tree"'},
    "returned float, not a name": {"min(seconds, key=seconds.get)": "min(seconds.values())"},
    "right, but by course_lib.costs.comm_time": lambda p, M, node_size, inside, between: by_the_library(p, M, between),
    "2 of 7 choices are not the fastest: for p = 8, M = ": {"return min": 'return "ring" if p == 8 else min'},
}
WRONG["02.10", "any-p"] = {
    'in nodes of one rank the hierarchy is the ring: return "ring"': {'"ring": ring': '"hierarchical": ring'},
    "They run on every number of ranks, with two more steps": {"if q < p": "* 1e9 if q < p"},
    "the ring never wins. Does each of its steps": {"if q < p else 0": "* 0"},
    "the doublings are too cheap. Each of their two further steps": {"2 * (alpha + M * beta) if": "2 * M * beta if"},
    "the doublings are too dear. Only q ranks swap": {
        "q = 2**rounds": "q = 2**rounds\n    rounds = (p - 1).bit_length()"
    },
    "log2(p), rounded up, is not enough": {"p.bit_length() - 1": "(p - 1).bit_length()"},
}
WRONG["02.10", "nodes"] = {
    "A ring of p / node_size ranks goes through the nodes, with M / node_size": {
        "M / node_size, between": "M, between"
    },
    "wins too seldom. A ring of p / node_size ranks": {"ring(p // node_size": "ring(p"},
    "wins too seldom. Do its steps inside a node use the wire inside?": {"M, inside": "M, between"},
    "too seldom. A ring of p / node_size ranks": {"if node_size > 1:": "if node_size > p:"},
    "Its steps inside a node cost something, too": {"ring(node_size, M, inside) + ": ""},
    "a latency each, and bytes on the wire inside, there and back": {"M, inside)": "M, (0, inside[1]))"},
    "How many ranks does its ring through the nodes have": {"ring(p // node_size": "ring(node_size"},
    "how many bytes, and on which wire?": {"M / node_size, between": "M / p, between"},
    "wins too often. How many ranks does its ring": {"node_size, between)": "node_size, inside)"},
    "Its steps are paid on the wire between the nodes": {
        "    rounds = p": "    alpha, beta = inside\n    rounds = p",
        "ring(p, M, through)": "ring(p, M, inside)",
    },
    "That is a textbook's ring, which leaves a node through one card": {"ring(p, M, through)": "ring(p, M, between)"},
    "but no faster than they come through a node": {"max(inside[1], beta / node_size)": "beta / node_size"},
    "each of its steps still waits for the alpha of between": {"through = (alpha,": "through = (inside[0],"},
    "so only the ring gains from all of them": {"    rounds = p": "    alpha, beta = through\n    rounds = p"},
}


def by_the_library(p, M, between):
    """What the library's own formula says."""
    link = Link(name="", alpha_s=between[0], bandwidth_bytes_per_s=1 / between[1], source="", date="")
    names = ("ring", "recursive_doubling", "halving_doubling")
    seconds = [comm_time("all_reduce", one, world_size=p, length=M, itemsize=1).time_s(link) for one in names]
    return names[seconds.index(min(seconds))]


# 02.12 -----------------------------------------------------------------------------------------------------------

LARGEST = "dist.all_reduce(t, op=dist.ReduceOp.MAX)"
LINE = 'rows = torch.stack((1 / t, torch.tensor(task["sizes"]) / t), dim=1)'
ONES = "torch.ones(len(t), 1).double()"
UNWEIGHTED = 'rows = torch.stack((torch.ones_like(t), torch.tensor(task["sizes"]).double()), dim=1)'

_BEGIN, _ONCE = "            start = perf_counter()\n", "            dist.all_reduce(x)\n"
_END = "            times.append(perf_counter() - start)\n"

WRONG["02.12", "table"] = {
    "reach back to where the barrier before begins": {
        f"            dist.barrier()\n{_BEGIN}": f"{_BEGIN}            dist.barrier()\n"
    },
    "reach on to where the barrier after has ended": {_END: f"            dist.barrier()\n{_END}"},
    "or more above what the all-reduce itself takes": {_BEGIN: f"{_BEGIN}            __import__('time').sleep(3e-4)\n"},
    "nothing waits for the all-reduces of": {
        f"{_ONCE}{_END}": f"            dist.all_reduce(x, async_op=True)\n{_END}"
    },
    "pass from the beginning of the call to the end of its wait": {
        f"{_ONCE}{_END}": (f"            work = dist.all_reduce(x, async_op=True)\n{_END}            work.wait()\n")
    },
    "does the clock run while a process waits": {"import perf_counter": "import process_time as perf_counter"},
    "to warm up and": {'range(task["warm_up"])': "range(0)"},
    "without a barrier before": {"            dist.barrier()\n            start": "            start"},
    "; warm-ups are left out": {"torch.save(own, ": "torch.save([[*times, 0.1] for times in own], "},
    "also runs all_reduce of 3584 B": {"x = torch.zeros(size // 4)": "x = torch.zeros(size // 4).double()"},
    "that is rank 0's median": {LARGEST: "pass"},
    "that is the average of the ranks' medians": {LARGEST: "dist.all_reduce(t)\n    t /= ranks"},
    "one slow repeat moves a mean": {"import median": "import fmean as median"},
    "those are bytes a second": {" / 1e9": ""},
    "those are GiB": {" / 1e9": " / 2**30"},
    "busbw is exactly 0.75 x algbw, and on 4 ranks it is exactly 1.5 x algbw": {
        "* 2 * (ranks - 1) / ranks": "* (ranks - 1) / ranks * (1 + (ranks == 2))"
    },
    "busbw is exactly 2.0 x algbw": {"* 2 * (ranks - 1) / ranks": "* 2 * (ranks - 1)"},
}
WRONG["02.12", "line"] = {
    "so the largest tensor decides alone": {LINE: UNWEIGHTED, ONES: "t[:, None]"},
    "are in each other's place": {"alpha, beta = torch": "beta, alpha = torch"},
    "there are no two numbers": {'"alpha": alpha, "beta": beta': '"line": (alpha, beta)'},
}
