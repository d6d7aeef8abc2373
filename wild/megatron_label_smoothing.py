"""Labels were smoothed over each rank's own part of the vocabulary, so every rank had another loss and none was right.

Mean and size are those of the part; the gradients are off too. It was told in 2024, again in 2026, and is open.
"""

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy
from torch import nn

from course_lib.verify.adapters.loop import Loop

EXHIBIT = {
    "library": "megatron-core",
    "links": ["NVIDIA/Megatron-LM#737", "NVIDIA/Megatron-LM#7464", "NVIDIA/Megatron-LM#7452"],
    "old": "megatron-core==0.16.1",
    "mended": "",  # open
    "dtype": "float32",  # in which it computes the loss
    "ranks": 2,
    "rung": "gradients",
    "cause": "other rows",
}
SMOOTHING = 0.1


class OwnPart(torch.autograd.Function):
    """A rank's part of the vocabulary's logits; the gradients of all parts are put together."""

    @staticmethod
    def forward(ctx, logits):
        return logits.tensor_split(dist.get_world_size(), -1)[dist.get_rank()].contiguous()

    @staticmethod
    def backward(ctx, gradient):
        parts = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, gradient.contiguous())
        return torch.cat(parts, -1)


def words():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 50))


def on_one(logits, targets):
    return nn.functional.cross_entropy(logits.mT, targets, label_smoothing=SMOOTHING, reduction="sum")


def on_ranks(logits, targets):
    return vocab_parallel_cross_entropy(OwnPart.apply(logits), targets, SMOOTHING).sum()


def reference(config):
    return Loop(words(), config, on_one)


def parallel(config):
    if not parallel_state.is_initialized():
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=dist.get_world_size())
    return Loop(words(), config, on_ranks)


def batches(step):
    return torch.randint(0, 50, (2, 8, 12), generator=torch.Generator().manual_seed(step))
