"""Ranks share each sequence (lesson 09): torchrun --nproc-per-node 4 09_long_contexts.py [TEXT]"""

import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed._functional_collectives import all_gather_single_autograd
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

WIDTH, HEADS, LAYERS, BYTES = 64, 4, 4, 256  # a token is a byte of the text
BATCH, MICRO_BATCHES, LENGTH, STEPS, RATE = 16, 4, 32, 20, 3e-3
CP, SAVE_EVERY = 2, 5


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
        seen = attention(rotated(q, self.mine), rotated(k, self.mine), v)
        x = x + self.o(seen.transpose(1, 2).flatten(2))
        read = self.norm2(x)
        return x + self.down(F.silu(self.gate(read)) * self.up(read))


def by_heads(x: torch.Tensor) -> torch.Tensor:
    """(B, S, width) -> (B, heads, S, 16): however many heads a rank has, each is as wide."""
    return x.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)


def positions_of(rank: int) -> torch.Tensor:
    """Zigzag: a piece from the front and the one as far from the end, so that all have as much to do."""
    pieces = torch.arange(LENGTH).chunk(2 * CP)
    return torch.cat((pieces[rank], pieces[-1 - rank]))


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Gather all keys and values, which lie rank by rank; backward adds up their gradients' terms."""
    theirs = torch.cat([positions_of(rank) for rank in range(CP)]).to(q.device)
    k, v = (all_gather_single_autograd(x, 2, Block.cp) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=Block.mine[:, None] >= theirs)


def rotated(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary embedding: two halves of a head turn, by an angle that grows with the position."""
    a, b = x.chunk(2, dim=-1)
    pairs = torch.arange(a.shape[-1], device=x.device)
    angle = positions[:, None] / 100 ** (pairs / len(pairs))
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), dim=-1)


def rows_of(step: int, tokens: torch.Tensor) -> torch.Tensor:
    """The batch follows from the number of the step, so every process can make it."""
    starts = torch.randint(len(tokens) - LENGTH, (BATCH,), generator=torch.Generator().manual_seed(step))
    return torch.stack([tokens[start : start + LENGTH + 1] for start in starts])


def loss_of(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def shard(model: nn.Module, mesh: dist.DeviceMesh) -> None:
    """Each block is a unit, the root has the rest; on GPUs they compute in bfloat16, add up in float32."""
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")  # nothing changes a result in place
    low = torch.bfloat16 if mesh.device_type == "cuda" else None
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32)
    for module in (*model[1:-2], model):
        fully_shard(module, mesh=mesh, mp_policy=policy)


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))


def main() -> None:
    # Each process takes a GPU of its own if there are enough, and computes on the CPU if not.
    device = "cuda" if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]) else "cpu"
    dp, left = divmod(int(os.environ["WORLD_SIZE"]), CP)
    assert left == 0, "each group along cp is whole"
    mesh = dist.init_device_mesh(device, (dp, CP), mesh_dim_names=("dp", "cp"))  # neighbours talk most
    everyone = mesh._flatten("all")  # so that the gradients' norm is added up over all ranks at once
    assert BATCH % (mesh["dp"].size() * MICRO_BATCHES) == 0, "all micro-batches are equally long"
    assert LENGTH % (2 * CP) == 0, "all pieces of a sequence are equally long"

    # The same seed gives the same weights in every process and in every stage of this script.
    torch.manual_seed(0)
    blocks = [Block() for _ in range(LAYERS)]
    model = nn.Sequential(nn.Embedding(BYTES, WIDTH), *blocks, nn.RMSNorm(WIDTH), nn.Linear(WIDTH, BYTES))
    Block.cp, Block.mine = mesh["cp"].get_group(), positions_of(mesh["cp"].get_local_rank()).to(device)
    shard(model.to(device), everyone)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)

    # A stopped run goes on from the last checkpoint that is whole: its metadata is written last.
    if done := max((int(path.parent.name) for path in Path("checkpoints").glob("*/.metadata")), default=0):
        dcp.load(saved := state_of(model, optimizer), checkpoint_id=f"checkpoints/{done}")
        weights, states = saved["model"], saved["optimizer"]
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)

    tokens = torch.tensor([*Path(sys.argv[1] if sys.argv[1:] else os.__file__).read_bytes()])
    for step in range(done, STEPS):
        rows = rows_of(step, tokens).to(device).chunk(mesh["dp"].size())[mesh["dp"].get_local_rank()]

        # Gradient accumulation: only the last backward lets the ranks average their gradients.
        total = torch.zeros((), device=device)
        for number, part in enumerate(rows.chunk(MICRO_BATCHES), start=1):
            model.set_requires_gradient_sync(number == MICRO_BATCHES)
            inputs, targets = part[:, Block.mine], part[:, Block.mine + 1]  # shift first, then cut
            loss = loss_of(model(inputs).float(), targets) / MICRO_BATCHES
            loss.backward()
            total += loss.detach() / everyone.size()
        dist.all_reduce(total, group=everyone.get_group())

        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0).full_tensor()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % SAVE_EVERY == 0:  # each rank writes its own pieces, which any layout can read
            dcp.save(state_of(model, optimizer), checkpoint_id=f"checkpoints/{step + 1}")
        if mesh.get_rank() == 0:
            print(f"step {step + 1}: loss {total:.4f}, gradients of length {norm:.4f}", flush=True)
    dist.barrier()  # who left first would cut the connections of those who still work
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads still live, and one that freed a DTensor now would abort the process


if __name__ == "__main__":
    main()
