"""Plausible wrong answers to the exercises of module 02, each with the level that must reject it and why.

Not for learners: it comes close to the solutions.
"""

from __future__ import annotations

import os
import signal

import torch
import torch.distributed as dist

from course_lib import comm

MUTANTS = []  # (exercise, level, reason, answer, hangs)


def mutant(exercise, level, reason, hangs=False):
    """Register a function as a wrong answer."""

    def register(function):
        MUTANTS.append((exercise, level, reason, function, hangs))
        return function

    return register


def ring():
    """rank, world_size, left, right"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return rank, world_size, (rank - 1) % world_size, (rank + 1) % world_size


def exchange(mine, to, into, source):
    """Send and receive at the same time."""
    incoming, outgoing = comm.irecv(into, source), comm.isend(mine, to)
    incoming.wait()
    outgoing.wait()


def reduce_scatter(x):
    """Right: a part that some mutants are made of."""
    rank, world_size, left, right = ring()
    chunks = x.clone().tensor_split(world_size)
    for step in range(world_size - 1):
        sent, received = (rank - step - 1) % world_size, (rank - step - 2) % world_size
        inbox = torch.empty_like(chunks[received])
        exchange(chunks[sent], right, inbox, left)
        chunks[received].add_(inbox)
    return chunks[rank]


def all_gather(shard, length):
    """Right: a part that some mutants are made of."""
    rank, world_size, left, right = ring()
    whole = torch.empty((length, *shard.shape[1:]), dtype=shard.dtype)
    chunks = whole.tensor_split(world_size)
    chunks[rank].copy_(shard)
    for step in range(world_size - 1):
        exchange(chunks[(rank - step) % world_size], right, chunks[(rank - step - 1) % world_size], left)
    return whole


# 02.2 ------------------------------------------------------------------------------------------------------------


@mutant("02.2", "values", "nothing is in the ledger")
def native_sum(x):
    total = x.clone()
    dist.all_reduce(total)
    return total.tensor_split(dist.get_world_size())[dist.get_rank()]


@mutant("02.2", "values", "by comm.reduce_scatter")
def library_reduce_scatter(x):
    return comm.reduce_scatter(x)


@mutant("02.2", "values", "chunks are shifted; chunk 0 is finished on rank 3, not on rank 0")
def textbook_numbering(x):
    """Rank r starts with chunk r and ends with chunk r + 1."""
    rank, world_size, left, right = ring()
    chunks = x.clone().tensor_split(world_size)
    for step in range(world_size - 1):
        sent, received = (rank - step) % world_size, (rank - step - 1) % world_size
        inbox = torch.empty_like(chunks[received])
        exchange(chunks[sent], right, inbox, left)
        chunks[received].add_(inbox)
    return chunks[(rank + 1) % world_size]


@mutant("02.2", "values", "0.25 x the right one: an average")
def average_instead_of_sum(x):
    return reduce_scatter(x) / dist.get_world_size()


@mutant("02.2", "values", "the contribution of rank 1 is missing in the sum of chunk 0")
def one_step_too_few(x):
    rank, world_size, left, right = ring()
    chunks = x.clone().tensor_split(world_size)
    for step in range(1, world_size - 1):
        sent, received = (rank - step - 1) % world_size, (rank - step - 2) % world_size
        inbox = torch.empty_like(chunks[received])
        exchange(chunks[sent], right, inbox, left)
        chunks[received].add_(inbox)
    return chunks[rank]


@mutant("02.2", "values", "start from x.clone()")
def overwrites_its_input(x):
    rank, world_size, left, right = ring()
    chunks = x.tensor_split(world_size)
    for step in range(world_size - 1):
        sent, received = (rank - step - 1) % world_size, (rank - step - 2) % world_size
        inbox = torch.empty_like(chunks[received])
        exchange(chunks[sent], right, inbox, left)
        chunks[received].add_(inbox)
    return chunks[rank].clone()


@mutant("02.2", "values", "nobody receives: start the receive first", hangs=True)
def all_send_first(x):
    rank, world_size, left, right = ring()
    chunks = x.clone().tensor_split(world_size)
    for step in range(world_size - 1):
        sent, received = (rank - step - 1) % world_size, (rank - step - 2) % world_size
        inbox = torch.empty_like(chunks[received])
        comm.send(chunks[sent], right)
        comm.recv(inbox, left)
        chunks[received].add_(inbox)
    return chunks[rank]


@mutant("02.2", "values", "an endless loop?", hangs=True)
def endless_loop(x):
    step = 0
    while step < dist.get_world_size() - 1:
        pass


@mutant("02.2", "values", "a crash: rank 2 died")
def exits(x):
    if dist.get_rank() == 2:
        os._exit(0)
    return reduce_scatter(x)


@mutant("02.2", "values", "a crash: rank 1 died")
def is_killed(x):
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return reduce_scatter(x)


@mutant("02.2", "edges", "4 ranks, 26 numbers: an error")
def inbox_of_my_own_length(x):
    rank, world_size, left, right = ring()
    chunks = x.clone().tensor_split(world_size)
    for step in range(world_size - 1):
        sent, received = (rank - step - 1) % world_size, (rank - step - 2) % world_size
        inbox = torch.empty_like(x[: len(x) // world_size])
        exchange(chunks[sent][: len(inbox)], right, inbox, left)
        chunks[received].add_(inbox)
    return chunks[rank]


@mutant("02.2", "values", "it is finished on rank 3, not on rank 0: start one chunk earlier")
def starts_with_its_own_chunk(x):
    rank, world_size, left, right = ring()
    chunks = x.clone().tensor_split(world_size)
    for step in range(world_size - 1):
        sent, received = (rank - step) % world_size, (rank - step - 1) % world_size
        inbox = torch.empty_like(chunks[received])
        exchange(chunks[sent], right, inbox, left)
        chunks[received].add_(inbox)
    return chunks[rank]


@mutant("02.2", "values", "the contribution of ranks 1, 2, 3 is missing")
def sends_nothing(x):
    return x.tensor_split(dist.get_world_size())[dist.get_rank()].clone()


@mutant("02.2", "edges", "receive into a tensor like the one that is sent")
def inbox_like_the_chunk_sent(x):
    rank, world_size, left, right = ring()
    chunks = x.clone().tensor_split(world_size)
    for step in range(world_size - 1):
        sent, received = (rank - step - 1) % world_size, (rank - step - 2) % world_size
        inbox = torch.empty_like(chunks[sent])
        exchange(chunks[sent], right, inbox, left)
        chunks[received].add_(inbox)
    return chunks[rank]


@mutant("02.2", "bytes", "bytes 4.0 x the target")
def whole_tensor_in_each_step(x):
    rank, world_size, left, right = ring()
    work = x.clone()
    inbox = torch.empty_like(work)
    mine, theirs = work.tensor_split(world_size), inbox.tensor_split(world_size)
    for step in range(world_size - 1):
        exchange(work, right, inbox, left)
        received = (rank - step - 2) % world_size
        mine[received].add_(theirs[received])
    return mine[rank]


@mutant("02.2", "bytes", "is there one phase too many?")
def ring_all_reduce_and_cut(x):
    rank, world_size, left, right = ring()
    return all_gather(reduce_scatter(x), len(x)).tensor_split(world_size)[rank]


# 02.3 ------------------------------------------------------------------------------------------------------------


@mutant("02.3", "values", "rank 3's input stands where rank 1's input belongs")
def own_shard_first(shard, length):
    rank, world_size, left, right = ring()
    parts = [shard]
    for _ in range(world_size - 1):
        inbox = torch.empty_like(shard)
        exchange(parts[-1], right, inbox, left)
        parts.append(inbox)
    return torch.cat(parts)


@mutant("02.3", "values", "only zeros, where rank 1's input belongs")
def nothing_received(shard, length):
    whole = torch.zeros((length, *shard.shape[1:]), dtype=shard.dtype)
    whole.tensor_split(dist.get_world_size())[dist.get_rank()].copy_(shard)
    return whole


@mutant("02.3", "values", "returned NoneType, not a tensor")
def forgot_to_return(shard, length):
    all_gather(shard, length)


@mutant("02.3", "values", "stands where")
def indices_run_the_wrong_way(shard, length):
    rank, world_size, left, right = ring()
    whole = torch.zeros((length, *shard.shape[1:]), dtype=shard.dtype)
    chunks = whole.tensor_split(world_size)
    chunks[rank].copy_(shard)
    for step in range(world_size - 1):
        exchange(chunks[(rank + step) % world_size], right, chunks[(rank + step + 1) % world_size], left)
    return whole


@mutant("02.3", "edges", "returned shape")
def equal_shards_only(shard, length):
    rank, world_size, left, right = ring()
    longest = -(-length // world_size)
    padded = torch.zeros((longest, *shard.shape[1:]), dtype=shard.dtype)
    padded[: len(shard)] = shard
    return all_gather(padded, longest * world_size)


@mutant("02.3", "bytes", "you send the whole tensor at each step")
def whole_buffer_in_each_step(shard, length):
    rank, world_size, left, right = ring()
    whole = torch.zeros((length, *shard.shape[1:]), dtype=shard.dtype)
    chunks = whole.tensor_split(world_size)
    chunks[rank].copy_(shard)
    for step in range(world_size - 1):
        inbox = torch.empty_like(whole)
        exchange(whole, right, inbox, left)
        received = (rank - step - 1) % world_size
        chunks[received].copy_(inbox.tensor_split(world_size)[received])
    return whole


@mutant("02.3", "bytes", "messages")
def number_by_number(shard, length):
    rank, world_size, left, right = ring()
    whole = torch.zeros((length, *shard.shape[1:]), dtype=shard.dtype)
    chunks = whole.tensor_split(world_size)
    chunks[rank].copy_(shard)
    for step in range(world_size - 1):
        sent, received = chunks[(rank - step) % world_size], chunks[(rank - step - 1) % world_size]
        for i in range(max(len(sent), len(received))):
            exchange(sent[i : i + 1], right, received[i : i + 1], left)
    return whole


# 02.4 ------------------------------------------------------------------------------------------------------------


@mutant("02.4", "values", "by comm.all_reduce")
def library_all_reduce(x):
    return comm.all_reduce(x)


@mutant("02.4", "values", "0.25 x the right one: an average")
def divided(x):
    total = all_gather(reduce_scatter(x.reshape(-1)), x.numel())
    return (total / dist.get_world_size()).to(x.dtype).reshape(x.shape)


@mutant("02.4", "values", "expected (24,)")
def only_the_first_half(x):
    return reduce_scatter(x.reshape(-1))


@mutant("02.4", "edges", "expected (3, 2, 4)")
def stays_flat(x):
    return all_gather(reduce_scatter(x.reshape(-1)), x.numel())


@mutant("02.4", "bytes", "bytes 1.33 x the target")
def cuts_rows(x):
    return all_gather(reduce_scatter(x), len(x))


@mutant("02.4", "bytes", "whole tensors travel in 4 - 1 steps")
def through_the_root(x):
    rank, world_size, left, right = ring()
    total = x.clone()
    inbox = torch.empty_like(total)
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


# 02.5 ------------------------------------------------------------------------------------------------------------


@mutant("02.5", "steps", "in a tree, receivers help to send")
def star(x, src):
    rank, world_size, left, right = ring()
    x = x.clone()
    for other in range(world_size):
        if rank == src and other != src:
            comm.send(x, other)
        elif rank == other != src:
            comm.recv(x, src)
    return x


@mutant("02.5", "steps", "steps 1.5 x the target")
def chain(x, src):
    rank, world_size, left, right = ring()
    x = x.clone()
    if rank != src:
        comm.recv(x, left)
    if right != src and world_size > 1:
        comm.send(x, right)
    return x


@mutant("02.5", "edges", "rank 0's input stands where rank 1's input belongs")
def source_is_always_rank_0(x, src):
    rank, world_size, left, right = ring()
    x, distance = x.clone(), 1
    while distance < world_size:
        if rank < distance and rank + distance < world_size:
            comm.send(x, rank + distance)
        elif distance <= rank < 2 * distance:
            comm.recv(x, rank - distance)
        distance *= 2
    return x


@mutant(
    "02.5", "edges", "rank 0 sends to 2, which has already returned: is there such a partner in this step?", hangs=True
)
def powers_of_two_only(x, src):
    rank, world_size, left, right = ring()
    x, distance, me = x.clone(), 1, (rank - src) % world_size
    while distance < world_size:
        if me < distance:
            comm.send(x, (me + distance + src) % world_size)
        elif me < 2 * distance:
            comm.recv(x, (me - distance + src) % world_size)
        distance *= 2
    return x


@mutant("02.5", "values", "rank 2's input stands where rank 0's input belongs")
def stops_one_level_early(x, src):
    rank, world_size, left, right = ring()
    x, distance, me = x.clone(), 1, (rank - src) % world_size
    while 2 * distance < world_size or distance == 1:
        if me < distance and me + distance < world_size:
            comm.send(x, (me + distance + src) % world_size)
        elif distance <= me < 2 * distance:
            comm.recv(x, (me - distance + src) % world_size)
        distance *= 2
    return x


@mutant("02.5", "values", "by comm.broadcast")
def library_broadcast(x, src):
    return comm.broadcast(x, src=src)


# 02.6 ------------------------------------------------------------------------------------------------------------


@mutant("02.6", "bytes", "bytes between nodes 1.5 x the target")
def flat_ring(x, inside, between):
    return comm.all_reduce(x)


@mutant("02.6", "bytes", "bytes between nodes 2.0 x the target")
def whole_tensor_between_nodes(x, inside, between):
    return comm.all_reduce(comm.all_reduce(x, group=inside), group=between)


@mutant("02.6", "bytes", "bytes between nodes 2.0 x the target")
def groups_swapped(x, inside, between):
    chunk = comm.all_reduce(comm.reduce_scatter(x, group=between), group=inside)
    return comm.all_gather(chunk, length=len(x), group=between)


@mutant("02.6", "values", "the contribution of ranks 2, 3 is missing")
def one_node_only(x, inside, between):
    return comm.all_reduce(x, group=inside)


@mutant("02.6", "edges", "an error: ")
def length_forgotten(x, inside, between):
    chunk = comm.all_reduce(comm.reduce_scatter(x, group=inside), group=between)
    return comm.all_gather(chunk, group=inside)


@mutant("02.6", "values", "algorithm='hierarchical'")
def library_hierarchical(x, inside, between):
    return comm.all_reduce(x, algorithm="hierarchical", node_size=dist.get_world_size(inside))


# 02.7 ------------------------------------------------------------------------------------------------------------


@mutant("02.7", "values", "stands where chunk 0 of rank 1 belongs")
def in_order_of_arrival(x):
    rank, world_size, left, right = ring()
    chunks = x.tensor_split(world_size)
    parts = [chunks[rank]]
    for shift in range(1, world_size):
        inbox = torch.empty_like(chunks[rank])
        exchange(chunks[(rank + shift) % world_size], (rank + shift) % world_size, inbox, (rank - shift) % world_size)
        parts.append(inbox)
    return torch.cat(parts)


@mutant("02.7", "values", "stands where")
def sends_its_own_chunk_to_all(x):
    rank, world_size, left, right = ring()
    chunks = x.tensor_split(world_size)
    parts = [torch.empty_like(chunks[rank]) for _ in range(world_size)]
    parts[rank] = chunks[rank]
    for shift in range(1, world_size):
        source = (rank - shift) % world_size
        exchange(chunks[rank], (rank + shift) % world_size, parts[source], source)
    return torch.cat(parts)


@mutant("02.7", "values", "nobody sends: does each partner", hangs=True)
def same_partner_both_ways(x):
    rank, world_size, left, right = ring()
    chunks = x.tensor_split(world_size)
    parts = [torch.empty_like(chunks[rank]) for _ in range(world_size)]
    parts[rank] = chunks[rank]
    for shift in range(1, world_size):
        partner = (rank + shift) % world_size
        exchange(chunks[partner], partner, parts[partner], partner)
    return torch.cat(parts)


@mutant("02.7", "edges", "3 ranks, 20 numbers, int64: ")
def pairs_by_xor(x):
    """Right on 2 and on 4 ranks: with 3 there is no partner for everybody."""
    rank, world_size, left, right = ring()
    chunks = x.tensor_split(world_size)
    parts = [torch.empty_like(chunks[rank]) for _ in range(world_size)]
    parts[rank] = chunks[rank]
    for shift in range(1, world_size):
        partner = rank ^ shift
        if partner < world_size:
            exchange(chunks[partner], partner, parts[partner], partner)
    return torch.cat(parts)


@mutant("02.7", "bytes", "you send the whole tensor at each step")
def everything_to_everybody(x):
    rank, world_size, left, right = ring()
    parts = [x.tensor_split(world_size)[rank]] * world_size
    for shift in range(1, world_size):
        source = (rank - shift) % world_size
        inbox = torch.empty_like(x)
        exchange(x, (rank + shift) % world_size, inbox, source)
        parts[source] = inbox.tensor_split(world_size)[rank]
    return torch.cat(parts)


# 02.8 ------------------------------------------------------------------------------------------------------------


def max_ring(x, first_whole, second_whole):
    """`suspect_max`, each phase with the bug or without."""
    rank, world_size, left, right = ring()
    work, inbox = x.clone(), torch.empty_like(x)
    mine, theirs = work.tensor_split(world_size), inbox.tensor_split(world_size)
    for phase, whole in enumerate((first_whole, second_whole)):
        for step in range(world_size - 1):
            sent, i = (rank - step - 1 + phase) % world_size, (rank - step - 2 + phase) % world_size
            exchange(work if whole else mine[sent], right, inbox if whole else theirs[i], left)
            mine[i].copy_(theirs[i] if phase else torch.maximum(mine[i], theirs[i]))
    return work


@mutant("02.8", "bytes", "bytes 4.0 x the target")
def not_mended(x):
    return max_ring(x, True, True)


@mutant("02.8", "bytes", "bytes 2.5 x the target")
def one_phase_mended(x):
    return max_ring(x, False, True)


@mutant("02.8", "values", "holds numbers of another chunk, where the maximum of chunk 0 belongs: is the chunk you send")
def sends_the_chunk_it_receives(x):
    rank, world_size, left, right = ring()
    work, inbox = x.clone(), torch.empty_like(x)
    mine, theirs = work.tensor_split(world_size), inbox.tensor_split(world_size)
    for phase in range(2):
        for step in range(world_size - 1):
            i = (rank - step - 2 + phase) % world_size
            exchange(mine[i], right, theirs[i], left)
            mine[i].copy_(theirs[i] if phase else torch.maximum(mine[i], theirs[i]))
    return work


@mutant("02.8", "values", "does not count every rank, where the maximum of chunk 0 belongs")
def one_step_of_the_maximum_too_few(x):
    rank, world_size, left, right = ring()
    chunks = x.clone().tensor_split(world_size)
    for step in range(1, world_size - 1):
        sent, received = (rank - step - 1) % world_size, (rank - step - 2) % world_size
        inbox = torch.empty_like(chunks[received])
        exchange(chunks[sent], right, inbox, left)
        chunks[received].copy_(torch.maximum(chunks[received], inbox))
    return all_gather(chunks[rank], len(x))


@mutant("02.8", "values", "where the maximum of chunk 0 belongs")
def sum_instead_of_maximum(x):
    return all_gather(reduce_scatter(x), len(x))


@mutant("02.8", "bytes", "bytes 2.0 x the target: 768 B sent by the busiest rank")
def whole_tensor_round_the_ring(x):
    rank, world_size, left, right = ring()
    largest, passing = x.clone(), x.clone()
    for _ in range(world_size - 1):
        inbox = torch.empty_like(x)
        exchange(passing, right, inbox, left)
        largest, passing = torch.maximum(largest, inbox), inbox
    return largest


# 02.9 ------------------------------------------------------------------------------------------------------------


@mutant("02.9", "values", "3 ranks, 24 numbers: ")
def not_mended_either(x):
    rank, world_size, left, right = ring()
    chunks = all_gather(reduce_scatter(x), len(x)).tensor_split(world_size)
    return torch.cat([chunks[(2 * rank - i) % world_size] for i in range(world_size)]) / world_size


@mutant("02.9", "values", "3.0 x the right one: a sum that was taken 3 times")
def forgot_to_divide(x):
    return all_gather(reduce_scatter(x), len(x))


@mutant("02.9", "values", "0.333 x the right one: an average")
def divided_twice(x):
    world_size = dist.get_world_size()
    return all_gather(reduce_scatter(x) / world_size, len(x)) / world_size


@mutant("02.9", "values", "returned int64, expected float32")
def whole_numbers(x):
    return all_gather(reduce_scatter(x.long()), len(x)) // dist.get_world_size()


@mutant("02.9", "bytes", "bytes 2.0 x the target")
def in_double_precision(x):
    return (all_gather(reduce_scatter(x.double()), len(x)) / dist.get_world_size()).to(x.dtype)
