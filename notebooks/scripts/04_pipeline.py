"""The pipeline of lesson 04 in PyTorch alone: torchrun --nproc-per-node 4 04_pipeline.py"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

LAYERS, WIDTH, ROWS, MICRO_BATCHES = 12, 5, 16, 8


def main() -> None:
    # Each process takes a GPU of its own if the machine has enough of them, and computes on the CPU if not.
    gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    dist.init_process_group("nccl" if gpu else "gloo", device_id=device if gpu else None)
    rank, p = dist.get_rank(), dist.get_world_size()

    # All ranks draw the same model and the same rows, so that each can compare its stage with the whole.
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)]
    whole = nn.Sequential(*layers).to(device)
    inputs, targets = torch.randn(ROWS, WIDTH).to(device), torch.randint(WIDTH, (ROWS,)).to(device)

    # A stage is a part of the layers under its number; the first message tells its neighbours the shapes.
    per_stage = LAYERS // p
    mine = whole[rank * per_stage : (rank + 1) * per_stage]
    stage = PipelineStage(mine, rank, p, device)

    # The loss is divided by all rows here, so the schedule must not divide by the number of micro-batches once more.
    def loss_of(outputs: torch.Tensor, goals: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, goals, reduction="sum") / ROWS

    # The schedule cuts the batch and follows its list; the first stage gives the rows, the last one compares.
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss_of, scale_grads=False)
    parts: list[torch.Tensor] = []
    schedule.step(*([inputs] if rank == 0 else []), target=targets if rank == p - 1 else None, losses=parts)

    # Squares of all stages add up to the length of the whole gradient; then each stage compares with one device.
    found = [weight.grad.clone() for weight in mine.parameters()]
    squares = sum(gradient.square().sum() for gradient in found)
    dist.all_reduce(squares)
    whole.zero_grad()
    loss_of(whole(inputs), targets).backward()
    torch.testing.assert_close(found, [weight.grad for weight in mine.parameters()])
    if rank == p - 1:
        print(f"{p} ranks agree: loss {sum(parts):.4f}, gradients of length {squares.sqrt():.4f}, as on one device")
    dist.barrier()  # a rank that left first would cut the connections of those that still work
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
