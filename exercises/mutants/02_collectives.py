"""Plausible wrong answers to the exercises of module 02, each with the level that must reject it and why.

Not for learners: it comes close to the solutions.
"""

from __future__ import annotations

import os
import signal
from functools import partial

import torch
import torch.distributed as dist

from course_lib import comm

WRONG = {}  # (exercise, level): wrong answers, by the reason that is told
HANGS = {}  # those that end by their time limit


def ring():
    """rank, world_size, left, right"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return rank, world_size, (rank - 1) % world_size, (rank + 1) % world_size


def exchange(mine, to, into, source):
    """Send and receive at the same time."""
    incoming, outgoing = comm.irecv(into, source), comm.isend(mine, to)
    incoming.wait()
    outgoing.wait()


def send_first(mine, to, into, source):
    comm.send(mine, to)
    comm.recv(into, source)


def like_the_received(x, sent, received):
    return torch.empty_like(received)


def add(own, came):
    own.add_(came)


def reduce_scatter(x, *, work=torch.clone, first=1, skip=0, inbox=like_the_received, swap=exchange, join=add):
    """Right, unless a part is chosen otherwise: rank r begins with chunk r - first and leaves `skip` steps out."""
    rank, world_size, left, right = ring()
    chunks = work(x).tensor_split(world_size)
    for step in range(skip, world_size - 1):
        sent, received = (chunks[(rank - step - first - n) % world_size] for n in (0, 1))
        into = inbox(x, sent, received)
        swap(sent, right, into, left)
        join(received, into)
    return chunks


def own(chunks):
    """A rank's, which may be a view of its input."""
    return chunks[dist.get_rank()].clone()


def all_gather(shard, length, *, forward=1, make=torch.empty):
    """Right, unless a part is chosen otherwise: step by step the chunk that came is passed on."""
    rank, world_size, left, right = ring()
    whole = make((length, *shard.shape[1:]), dtype=shard.dtype)
    chunks = whole.tensor_split(world_size)
    chunks[rank].copy_(shard)
    for step in range(world_size - 1):
        sent, received = ((rank - forward * (step + n)) % world_size for n in (0, 1))
        exchange(chunks[sent], right, chunks[received], left)
    return whole


def all_reduce(x):
    """Right for rows that all ranks have alike."""
    return all_gather(own(reduce_scatter(x)), len(x))


# 02.2 ------------------------------------------------------------------------------------------------------------


def native_sum(x):
    total = x.clone()
    dist.all_reduce(total)
    return own(total.tensor_split(dist.get_world_size()))


def textbook_numbering(x):
    """Rank r starts with chunk r and ends with chunk r + 1."""
    return reduce_scatter(x, first=0)[(dist.get_rank() + 1) % dist.get_world_size()]


def endless_loop(x):
    step = 0
    while step < dist.get_world_size() - 1:
        pass


def exits(x):
    if dist.get_rank() == 2:
        os._exit(0)
    return own(reduce_scatter(x))


def is_killed(x):
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return own(reduce_scatter(x))


def cut_short(mine, to, into, source):
    exchange(mine[: len(into)], to, into, source)


def inbox_of_my_own_length(x):
    shortest = len(x) // dist.get_world_size()
    return own(reduce_scatter(x, inbox=lambda x, *_: torch.empty_like(x[:shortest]), swap=cut_short))


def whole_tensor_in_each_step(x):
    rank, world_size, left, right = ring()
    work, inbox = x.clone(), torch.empty_like(x)
    mine, theirs = work.tensor_split(world_size), inbox.tensor_split(world_size)
    for step in range(world_size - 1):
        exchange(work, right, inbox, left)
        received = (rank - step - 2) % world_size
        mine[received].add_(theirs[received])
    return mine[rank]


WRONG["02.2", "values"] = {
    "nothing is in the ledger": native_sum,
    "by comm.reduce_scatter": lambda x: comm.reduce_scatter(x),
    "chunks are shifted; chunk 0 is finished on rank 3, not on rank 0": textbook_numbering,
    "0.25 x the right one: an average": lambda x: own(reduce_scatter(x)) / dist.get_world_size(),
    "the contribution of rank 1 is missing in the sum of chunk 0": lambda x: own(reduce_scatter(x, skip=1)),
    "start from x.clone()": lambda x: own(reduce_scatter(x, work=lambda x: x)),
    "a crash: rank 2 died": exits,
    "a crash: rank 1 died": is_killed,
    "it is finished on rank 3, not on rank 0: start one chunk earlier": lambda x: own(reduce_scatter(x, first=0)),
    "the contribution of ranks 1, 2, 3 is missing": lambda x: own(x.tensor_split(dist.get_world_size())),
}
HANGS["02.2", "values"] = {
    "nobody receives: start the receive first": lambda x: own(reduce_scatter(x, swap=send_first)),
    "an endless loop?": endless_loop,
}
WRONG["02.2", "edges"] = {
    "4 ranks, 26 numbers: an error": inbox_of_my_own_length,
    "receive into a tensor like the one that is sent": lambda x: own(
        reduce_scatter(x, inbox=lambda x, sent, received: torch.empty_like(sent))
    ),
}
WRONG["02.2", "bytes"] = {
    "bytes 4.0 x the target": whole_tensor_in_each_step,
    "is there one phase too many?": lambda x: own(all_reduce(x).tensor_split(dist.get_world_size())),
}

# 02.3 ------------------------------------------------------------------------------------------------------------


def own_shard_first(shard, length):
    rank, world_size, left, right = ring()
    parts = [shard]
    for _ in range(world_size - 1):
        inbox = torch.empty_like(shard)
        exchange(parts[-1], right, inbox, left)
        parts.append(inbox)
    return torch.cat(parts)


def nothing_received(shard, length):
    whole = torch.zeros((length, *shard.shape[1:]), dtype=shard.dtype)
    whole.tensor_split(dist.get_world_size())[dist.get_rank()].copy_(shard)
    return whole


def forgot_to_return(shard, length):
    all_gather(shard, length)


def equal_shards_only(shard, length):
    longest = -(-length // dist.get_world_size())
    padded = torch.zeros((longest, *shard.shape[1:]), dtype=shard.dtype)
    padded[: len(shard)] = shard
    return all_gather(padded, longest * dist.get_world_size())


def whole_buffer_in_each_step(shard, length):
    rank, world_size, left, right = ring()
    whole = nothing_received(shard, length)
    for step in range(world_size - 1):
        inbox = torch.empty_like(whole)
        exchange(whole, right, inbox, left)
        received = (rank - step - 1) % world_size
        whole.tensor_split(world_size)[received].copy_(inbox.tensor_split(world_size)[received])
    return whole


def number_by_number(shard, length):
    rank, world_size, left, right = ring()
    whole = nothing_received(shard, length)
    chunks = whole.tensor_split(world_size)
    for step in range(world_size - 1):
        sent, received = chunks[(rank - step) % world_size], chunks[(rank - step - 1) % world_size]
        for i in range(max(len(sent), len(received))):
            exchange(sent[i : i + 1], right, received[i : i + 1], left)
    return whole


WRONG["02.3", "values"] = {
    "rank 3's input stands where rank 1's input belongs": own_shard_first,
    "only zeros, where rank 1's input belongs": nothing_received,
    "returned NoneType, not a tensor": forgot_to_return,
    "stands where": partial(all_gather, forward=-1, make=torch.zeros),
}
WRONG["02.3", "edges"] = {"returned shape": equal_shards_only}
WRONG["02.3", "bytes"] = {
    "you send the whole tensor at each step": whole_buffer_in_each_step,
    "messages": number_by_number,
}

# 02.4 ------------------------------------------------------------------------------------------------------------


def divided(x):
    return (all_reduce(x.reshape(-1)) / dist.get_world_size()).to(x.dtype).reshape(x.shape)


def through_the_root(x):
    rank, world_size, left, right = ring()
    total, inbox = x.clone(), torch.empty_like(x)
    for other in range(1, world_size):
        if rank == 0:
            comm.recv(inbox, other)
            total += inbox
        elif rank == other:
            comm.send(total, 0)
    for other in range(1, world_size):
        if rank == 0:
            comm.send(total, other)
        elif rank == other:
            comm.recv(total, 0)
    return total


WRONG["02.4", "values"] = {
    "by comm.all_reduce": lambda x: comm.all_reduce(x),
    "0.25 x the right one: an average": divided,
    "expected (24,)": lambda x: own(reduce_scatter(x.reshape(-1))),
}
WRONG["02.4", "edges"] = {"expected (3, 2, 4)": lambda x: all_reduce(x.reshape(-1))}
WRONG["02.4", "bytes"] = {
    "bytes 1.33 x the target": all_reduce,  # it cuts rows
    "whole tensors travel in 4 - 1 steps": through_the_root,
}

# 02.5 ------------------------------------------------------------------------------------------------------------


def star(x, src):
    rank, world_size, left, right = ring()
    x = x.clone()
    for other in range(world_size):
        if rank == src and other != src:
            comm.send(x, other)
        elif rank == other != src:
            comm.recv(x, src)
    return x


def chain(x, src):
    rank, world_size, left, right = ring()
    x = x.clone()
    if rank != src:
        comm.recv(x, left)
    if right != src and world_size > 1:
        comm.send(x, right)
    return x


def tree(x, src, *, any_number=True, levels=lambda distance, p: distance < p):
    """Right, unless a part is chosen otherwise."""
    rank, world_size, left, right = ring()
    x, distance, me = x.clone(), 1, (rank - src) % world_size
    while levels(distance, world_size):
        if me < distance and (me + distance < world_size or not any_number):
            comm.send(x, (me + distance + src) % world_size)
        elif distance <= me < 2 * distance:
            comm.recv(x, (me - distance + src) % world_size)
        distance *= 2
    return x


WRONG["02.5", "steps"] = {"in a tree, receivers help to send": star, "steps 1.5 x the target": chain}
WRONG["02.5", "values"] = {
    "rank 2's input stands where rank 0's input belongs": partial(
        tree, levels=lambda distance, p: 2 * distance < p or distance == 1
    ),
    "by comm.broadcast": lambda x, src: comm.broadcast(x, src=src),
}
WRONG["02.5", "edges"] = {"rank 0's input stands where rank 1's input belongs": lambda x, src: tree(x, 0)}
HANGS["02.5", "edges"] = {
    "rank 0 sends to 2, which has already returned: is there such a partner in this step?": partial(
        tree, any_number=False
    ),
}

# 02.6 ------------------------------------------------------------------------------------------------------------


def groups_swapped(x, inside, between):
    chunk = comm.all_reduce(comm.reduce_scatter(x, group=between), group=inside)
    return comm.all_gather(chunk, length=len(x), group=between)


def length_forgotten(x, inside, between):
    chunk = comm.all_reduce(comm.reduce_scatter(x, group=inside), group=between)
    return comm.all_gather(chunk, group=inside)


def library_hierarchical(x, inside, between):
    return comm.all_reduce(x, algorithm="hierarchical", node_size=dist.get_world_size(inside))


WRONG["02.6", "bytes"] = {
    "bytes between nodes 1.5 x the target": lambda x, inside, between: comm.all_reduce(x),
    "bytes between nodes 2.0 x the target": lambda x, inside, between: comm.all_reduce(
        comm.all_reduce(x, group=inside), group=between
    ),
    "nodes 2.0 x the target": groups_swapped,
}
WRONG["02.6", "values"] = {
    "the contribution of ranks 2, 3 is missing": lambda x, inside, between: comm.all_reduce(x, group=inside),
    "algorithm='hierarchical'": library_hierarchical,
}
WRONG["02.6", "edges"] = {"an error: ": length_forgotten}

# 02.7 ------------------------------------------------------------------------------------------------------------


def after(rank, shift, world_size):
    return (rank + shift) % world_size


def before(rank, shift, world_size):
    return (rank - shift) % world_size


def xor(rank, shift, world_size):
    return rank ^ shift


def all_to_all(x, *, to=after, source=before, chunk=lambda chunks, to: chunks[to]):
    """The chunks that came, by their senders; right, unless a part is chosen otherwise."""
    rank, world_size, left, right = ring()
    chunks = x.tensor_split(world_size)
    parts = [torch.empty_like(chunks[rank]) for _ in range(world_size)]
    parts[rank] = chunks[rank]
    for shift in range(1, world_size):
        partner, other = (way(rank, shift, world_size) for way in (to, source))
        if partner < world_size:
            exchange(chunk(chunks, partner), partner, parts[other], other)
    return parts


def in_order_of_arrival(x):
    rank, world_size, left, right = ring()
    parts = all_to_all(x)
    return torch.cat([parts[(rank - shift) % world_size] for shift in range(world_size)])


def everything_to_everybody(x):
    rank, world_size, left, right = ring()
    parts = [x.tensor_split(world_size)[rank]] * world_size
    for shift in range(1, world_size):
        source = (rank - shift) % world_size
        inbox = torch.empty_like(x)
        exchange(x, (rank + shift) % world_size, inbox, source)
        parts[source] = inbox.tensor_split(world_size)[rank]
    return torch.cat(parts)


WRONG["02.7", "values"] = {
    "stands where chunk 0 of rank 1 belongs": in_order_of_arrival,
    "stands where": lambda x: torch.cat(all_to_all(x, chunk=lambda chunks, to: own(chunks))),
}
HANGS["02.7", "values"] = {"nobody sends: does each partner": lambda x: torch.cat(all_to_all(x, source=after))}
WRONG["02.7", "edges"] = {  # right on 2 and on 4 ranks: with 3 there is no partner for everybody
    "3 ranks, 20 numbers, int64: ": lambda x: torch.cat(all_to_all(x, to=xor, source=xor)),
}
WRONG["02.7", "bytes"] = {"you send the whole tensor at each step": everything_to_everybody}

# 02.8 ------------------------------------------------------------------------------------------------------------


def max_ring(x, first_whole, second_whole, *, sends_what_it_receives=False):
    """`suspect_max`, each phase with the bug or without."""
    rank, world_size, left, right = ring()
    work, inbox = x.clone(), torch.empty_like(x)
    mine, theirs = work.tensor_split(world_size), inbox.tensor_split(world_size)
    for phase, whole in enumerate((first_whole, second_whole)):
        for step in range(world_size - 1):
            sent, i = (rank - step - 1 + phase) % world_size, (rank - step - 2 + phase) % world_size
            sent = i if sends_what_it_receives else sent
            exchange(work if whole else mine[sent], right, inbox if whole else theirs[i], left)
            mine[i].copy_(theirs[i] if phase else torch.maximum(mine[i], theirs[i]))
    return work


def keep_the_larger(mine, came):
    mine.copy_(torch.maximum(mine, came))


def whole_tensor_round_the_ring(x):
    rank, world_size, left, right = ring()
    largest, passing = x.clone(), x.clone()
    for _ in range(world_size - 1):
        inbox = torch.empty_like(x)
        exchange(passing, right, inbox, left)
        largest, passing = torch.maximum(largest, inbox), inbox
    return largest


WRONG["02.8", "bytes"] = {
    "bytes 4.0 x the target": lambda x: max_ring(x, True, True),
    "bytes 2.5 x the target": lambda x: max_ring(x, False, True),
    "bytes 2.0 x the target: 768 B sent by the busiest rank": whole_tensor_round_the_ring,
}
WRONG["02.8", "values"] = {
    "holds numbers of another chunk, where the maximum of chunk 0 belongs: is the chunk you send": lambda x: max_ring(
        x, False, False, sends_what_it_receives=True
    ),
    "does not count every rank, where the maximum of chunk 0 belongs": lambda x: all_gather(
        own(reduce_scatter(x, skip=1, join=keep_the_larger)), len(x)
    ),
    "where the maximum of chunk 0 belongs": all_reduce,
}

# 02.9 ------------------------------------------------------------------------------------------------------------


def not_mended_either(x):
    rank, world_size, left, right = ring()
    chunks = all_reduce(x).tensor_split(world_size)
    return torch.cat([chunks[(2 * rank - i) % world_size] for i in range(world_size)]) / world_size


WRONG["02.9", "values"] = {
    "3 ranks, 24 numbers: ": not_mended_either,
    "3.0 x the right one: a sum that was taken 3 times": all_reduce,
    "0.333 x the right one: an average": lambda x: all_reduce(x) / dist.get_world_size() ** 2,
    "returned int64, expected float32": lambda x: all_reduce(x.long()) // dist.get_world_size(),
}
WRONG["02.9", "bytes"] = {
    "bytes 2.0 x the target": lambda x: (all_reduce(x.double()) / dist.get_world_size()).to(x.dtype),
}

MUTANTS = [  # (exercise, level, reason, answer, hangs)
    (*where, reason, answer, hangs)
    for table, hangs in ((WRONG, False), (HANGS, True))
    for where, wrong in table.items()
    for reason, answer in wrong.items()
]
