"""Lesson 05 in PyTorch alone, on 1, 2 or 4 processes: torchrun --nproc-per-node 4 05_tensor_parallel.py"""

import copy
import os

import torch
import torch.distributed as dist
import torch.distributed.tensor.parallel as tp
from torch import nn
from torch.distributed.tensor import Replicate, Shard


class Block(nn.Module):
    # The rows of qkv are ordered by its four heads, so that 1, 2 or 4 ranks have whole heads, each with its keys.
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.qkv, self.out = nn.RMSNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.norm2, self.up, self.down = nn.RMSNorm(32), nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (-1, 3, 8)).permute(3, 0, 2, 1, 4)  # each (B, heads/tp, S, 8)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


def main() -> None:
    # Each process takes a GPU of its own if the machine has enough of them, and computes on the CPU if not.
    device = "cuda" if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]) else "cpu"
    mesh = dist.init_device_mesh(device, (int(os.environ["WORLD_SIZE"]),), mesh_dim_names=("tp",))

    # All ranks draw the same weights and the same tokens; each keeps a whole model to compare with.
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Embedding(64, 32), Block(), Block(), nn.RMSNorm(32), nn.Linear(32, 64)).to(device)
    tokens, targets = torch.randint(64, (2, 4, 8)).to(device)

    # The plan cuts a block's first matrix by outputs (Colwise), its second by inputs (Rowwise); outside, by positions.
    enter, leave = tp.ColwiseParallel(input_layouts=Shard(1)), tp.RowwiseParallel(output_layouts=Shard(1))
    plan = {"0": tp.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "3": tp.SequenceParallel()}
    plan |= {"[12].norm?": plan["3"], "[12].qkv": enter, "[12].out": leave, "[12].up": enter, "[12].down": leave}
    plan["4"] = tp.ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)
    model = tp.parallelize_module(copy.deepcopy(whole), mesh, plan)

    # The loss is computed of logits that are cut, and so is its backward; in every step it is one device's.
    optimizer = torch.optim.SGD([*model.parameters(), *whole.parameters()], lr=0.5, foreach=False)
    for _ in range(3):
        with tp.loss_parallel():
            (loss := nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())).backward()
        (alone := nn.functional.cross_entropy(whole(tokens).flatten(0, 1), targets.flatten())).backward()
        torch.testing.assert_close(loss.full_tensor(), alone, rtol=1e-4, atol=0)
        optimizer.step()
        optimizer.zero_grad()
    if mesh.get_rank() == 0:
        print(f"{mesh.size()} ranks agree: the loss falls to {alone.item():.4f} nats, as on one device", flush=True)
    dist.barrier()  # who leaves first would cut the connections of those who still work
    dist.destroy_process_group()
    os._exit(0)  # DTensor keeps gloo's threads alive, and one that frees a tensor while Python ends would abort it


if __name__ == "__main__":
    main()
