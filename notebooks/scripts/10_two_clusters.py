"""Two clusters meet now and then (lesson 10): torchrun --nproc-per-node 4 10_two_clusters.py [TEXT]"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

WIDTH, HEADS, LAYERS, BYTES = 64, 4, 4, 256  # a token is a byte of the text
BATCH, LENGTH, STEPS, RATE = 16, 32, 40, 3e-3
CLUSTERS, EVERY, OUTER_RATE, MOMENTUM = 2, 10, 0.7, 0.5


class Block(nn.Module):
    """Attention and feed-forward of a Llama, as the lessons draw them; positions are told by rotation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        read = self.norm1(x)
        q, k, v = (by_heads(linear(read)) for linear in (self.q, self.k, self.v))  # each (B, heads, S, 16)
        seen = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        x = x + self.o(seen.transpose(1, 2).flatten(2))
        read = self.norm2(x)
        return x + self.down(F.silu(self.gate(read)) * self.up(read))


def by_heads(x: torch.Tensor) -> torch.Tensor:
    """(B, S, width) -> (B, heads, S, 16): however many heads a rank has, each is as wide."""
    return x.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Rotary embedding: two halves of a head turn, by an angle that grows with the position."""
    a, b = x.chunk(2, dim=-1)
    positions, pairs = (torch.arange(length, device=x.device) for length in a.shape[-2:])
    angle = positions[:, None] / 100 ** (pairs / len(pairs))
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), dim=-1)


def rows_of(step: int, tokens: torch.Tensor) -> torch.Tensor:
    """The batch follows from the number of the step, so every process can make it."""
    starts = torch.randint(len(tokens) - LENGTH, (BATCH,), generator=torch.Generator().manual_seed(step))
    return torch.stack([tokens[start : start + LENGTH + 1] for start in starts])


def loss_of(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def as_row(model: nn.Module, pieces: int) -> torch.Tensor:
    """All weights in one row, with zeros at its end so that it can be cut into equal pieces."""
    row = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    return F.pad(row, (0, -len(row) % pieces))


def main() -> None:
    # Each process takes a GPU of its own if there are enough, and computes on the CPU if not.
    gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    dist.init_process_group("nccl" if gpu else "gloo", device_id=device if gpu else None)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    assert ranks % CLUSTERS == 0 and BATCH % ranks == 0, "clusters and shares are equally large"

    # Near are the ranks of one cluster, far those that have the same place in the others.
    near, _ = dist.new_subgroups(ranks // CLUSTERS)
    far, _ = dist.new_subgroups_by_enumeration(torch.arange(ranks).view(CLUSTERS, -1).T.tolist())

    # The same seed gives the same weights in every process and in every stage of this script.
    torch.manual_seed(0)
    blocks = [Block() for _ in range(LAYERS)]
    model = nn.Sequential(nn.Embedding(BYTES, WIDTH), *blocks, nn.RMSNorm(WIDTH), nn.Linear(WIDTH, BYTES))
    model = DistributedDataParallel(model.to(device), process_group=near)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)

    # What all clusters had in common at their last meeting, as one row, and the optimizer that moves it.
    size = ranks // CLUSTERS
    common = as_row(model, size)
    outer = torch.optim.SGD([common], lr=OUTER_RATE, momentum=MOMENTUM, nesterov=MOMENTUM > 0)

    tokens = torch.tensor([*Path(sys.argv[1] if sys.argv[1:] else os.__file__).read_bytes()])
    for step in range(STEPS):
        rows = rows_of(step, tokens).to(device).chunk(ranks)[rank]

        # Gradients are averaged inside a cluster, by DDP, as in every lesson before.
        loss = loss_of(model(rows[:, :-1]), rows[:, 1:])
        loss.backward()
        total = loss.detach() / ranks
        dist.all_reduce(total)

        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()

        # Each rank averages its piece with the other clusters, so that one copy crosses the slow line.
        if (step + 1) % EVERY == 0:
            mean = as_row(model, size)
            piece = mean.chunk(size)[rank % size].clone()
            dist.all_reduce(piece, group=far)
            dist.all_gather([*mean.chunk(size)], piece / CLUSTERS, group=near)

            # The way from the mean back to where they began is a gradient, by which what they share moves.
            common.grad = common - mean
            outer.step()
            nn.utils.vector_to_parameters(common.clone(), model.parameters())  # which take its memory
        if rank == 0:
            print(f"step {step + 1}: loss {total:.4f}, gradients of length {norm:.4f}", flush=True)
    dist.barrier()  # who left first would cut the connections of those who still work
    del model  # who holds the group last may wait for a thread of its own that waits for Python (2.13)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
