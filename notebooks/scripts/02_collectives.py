"""The collectives of lesson 02 in PyTorch alone: torchrun --nproc-per-node 4 02_collectives.py"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist


def main() -> None:
    # Each process takes a GPU of its own if there are enough, and waits for another process two minutes at most.
    gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    dist.init_process_group("nccl" if gpu else "gloo", device_id=device if gpu else None, timeout=timedelta(minutes=2))
    rank, p = dist.get_rank(), dist.get_world_size()

    # Every rank can compute all inputs, so that it knows what must come out; rank r puts in row r.
    inputs = torch.arange(p * 3 * p, dtype=torch.float32, device=device).reshape(p, 3 * p)
    mine, total = inputs[rank], inputs.sum(dim=0)

    # An all-reduce writes the sum over the tensor that it is given, so we give it a copy.
    summed = mine.clone()
    dist.all_reduce(summed)
    assert torch.equal(summed, total)

    # A reduce-scatter leaves each rank one finished chunk, and an all-gather puts the chunks together: an all-reduce.
    chunk, gathered = torch.empty(3, device=device), torch.empty(3 * p, device=device)
    dist.reduce_scatter_single(chunk, mine)  # before PyTorch 2.13: reduce_scatter_tensor
    dist.all_gather_single(gathered, chunk)  # before PyTorch 2.13: all_gather_into_tensor
    assert torch.equal(chunk, total.chunk(p)[rank]) and torch.equal(gathered, total)

    # With async_op=True the call returns at once, and we may compute until wait() says that the sum is there.
    later = mine.clone()
    work = dist.all_reduce(later, async_op=True)
    square = mine @ mine
    work.wait()
    assert torch.equal(later, total) and square >= 0

    # All ranks make all groups, in the same order, but only the members call a collective in a group.
    halves = torch.arange(p).chunk(2)  # a single rank makes only one part
    groups, half = [dist.new_group(half.tolist()) for half in halves], int(rank >= len(halves[0]))
    within = mine.clone()
    dist.all_reduce(within, group=groups[half])
    assert torch.equal(within, inputs[halves[half]].sum(dim=0))

    # Do all ranks hold the same sums? A broadcast brings rank 0's to everybody, to compare.
    rounded = torch.randn(1001, generator=torch.Generator().manual_seed(rank)).to(device)
    dist.all_reduce(rounded)
    of_rank_0 = rounded.clone()
    dist.broadcast(of_rank_0, src=0)
    assert torch.equal(of_rank_0, rounded)
    if rank == 0:
        print(f"{p} ranks agree: {summed.int().tolist()}")
    dist.barrier()  # whoever left first would cut the connections of those who still work
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
