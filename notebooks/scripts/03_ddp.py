"""Data parallelism of lesson 03 in PyTorch alone, EPOCHS=4 unless you say so: torchrun --nproc-per-node 4 03_ddp.py"""

import os
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    # Each process takes a GPU of its own if there are enough; a collective that waits five minutes ends the run.
    gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else None
    dist.init_process_group("nccl" if gpu else "gloo", device_id=device, timeout=timedelta(minutes=5))
    rank, p = dist.get_rank(), dist.get_world_size()

    # All ranks have the same 96 rows, and the sampler deals them out; together the ranks take 16 at a time.
    x = torch.randn(96, 6, generator=torch.Generator().manual_seed(0)).to(device)
    rows = TensorDataset(x, y := (x[:, 0] > x[:, 1]).long())
    loader = DataLoader(rows, batch_size=16 // p, sampler=DistributedSampler(rows))

    # Ranks draw different weights, but wrapping the model gives all of them rank 0's; each has its own optimizer.
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 4), nn.GELU(), nn.Linear(4, 2)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)

    # If there is a checkpoint, every rank reads it and goes on after the last epoch that is in it.
    weights, states, done = torch.load("checkpoint.pt", device) if os.path.exists("checkpoint.pt") else ({}, {}, 0)
    if done:
        model.module.load_state_dict(weights)
        optimizer.load_state_dict(states)

    # Gradients of two micro-batches add up, and only the backward of the second lets the ranks average them.
    for epoch in range(done, int(os.environ.get("EPOCHS", 4))):
        loader.sampler.set_epoch(epoch)
        for number, (inputs, targets) in enumerate(loader):
            with nullcontext() if number % 2 else model.no_sync():
                (nn.functional.cross_entropy(model(inputs), targets) / 2).backward()
            if number % 2:
                nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5)
                optimizer.step()
                optimizer.zero_grad()
        if rank == 0:  # all have the same; a file that is not complete yet has another name
            torch.save((model.module.state_dict(), optimizer.state_dict(), epoch + 1), "new.pt")
            os.replace("new.pt", "checkpoint.pt")

    # The loss of all rows is the same number on all ranks, to the last bit; nobody leaves before all are done.
    dist.all_gather_object(losses := [0.0] * p, nn.functional.cross_entropy(model.module(x), y).item())
    if rank == 0:
        print(f"{p} ranks {'agree' if len(set(losses)) == 1 else 'differ'}: a loss of {losses[0]:.4f}", flush=True)
    dist.barrier()
    os._exit(0)  # gloo's threads are still alive, and if one freed a tensor while Python ends, the process would abort


if __name__ == "__main__":
    main()
