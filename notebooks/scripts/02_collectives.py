"""The collectives of lesson 02 in PyTorch alone: torchrun --nproc-per-node 4 02_collectives.py"""

import os

import torch
import torch.distributed as dist


def main() -> None:
    # Each process takes a GPU of its own if the machine has enough of them, and computes on the CPU if not.
    gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    dist.init_process_group("nccl" if gpu else "gloo", device_id=device if gpu else None)
    rank, p = dist.get_rank(), dist.get_world_size()

    # Every rank can compute all inputs, so that it knows what must come out; rank r puts in row r.
    inputs = torch.arange(p * 3 * p, dtype=torch.float32, device=device).reshape(p, 3 * p)
    mine, total = inputs[rank], inputs.sum(dim=0)

    # An all-reduce writes the sum over the tensor that it is given, so we give it a copy.
    summed = mine.clone()
    dist.all_reduce(summed)
    assert torch.equal(summed, total)

    # A reduce-scatter leaves each rank one finished chunk, and an all-gather puts the chunks together: an all-reduce.
    chunk = torch.empty(3, device=device)
    dist.reduce_scatter_single(chunk, mine)
    assert torch.equal(chunk, total.chunk(p)[rank])
    gathered = torch.empty(3 * p, device=device)
    dist.all_gather_single(gathered, chunk)
    assert torch.equal(gathered, total)

    # With async_op=True the call returns at once, and we may compute until wait() says that the sum is there.
    later = mine.clone()
    work = dist.all_reduce(later, async_op=True)
    square = mine @ mine
    work.wait()
    assert torch.equal(later, total) and square >= 0

    # A broadcast gives everybody what the last rank has; the others bring a tensor of the same size to write into.
    weights = inputs[-1].clone() if rank == p - 1 else torch.empty(3 * p, device=device)
    dist.broadcast(weights, src=p - 1)
    assert torch.equal(weights, inputs[-1])

    # All ranks make all groups, in the same order, but only the members call a collective in a group.
    groups = [dist.new_group(ranks) for ranks in (list(range(p // 2)), list(range(p // 2, p)))]
    half = int(rank >= p // 2)
    within = mine.clone()
    dist.all_reduce(within, group=groups[half])
    assert torch.equal(within, (inputs[p // 2 :] if half else inputs[: p // 2]).sum(dim=0))

    if rank == 0:
        print(f"{p} ranks agree: all-reduce, reduce-scatter, all-gather, async_op, broadcast, two groups")
    dist.barrier()  # who leaves first would cut the connections of those who still work
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
