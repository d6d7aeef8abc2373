"""The way back from heads to positions put the rows of a batch in the places of positions, if there were several.

With one row it was right. With two, what attention had found at one position went to another, in another sequence, and
the loss curve hardly showed it.
"""

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.sequence.layer import DistributedAttention
from torch import nn

from course_lib.models import decoder
from course_lib.verify.adapters.ddp import DDP
from course_lib.verify.adapters.loop import Loop

EXHIBIT = {
    "library": "deepspeed",
    "links": ["deepspeedai/DeepSpeed#5808", "deepspeedai/DeepSpeed#5823"],
    "old": "deepspeed==0.14.4 hjson==3.1.0 py-cpuinfo==9.0.0 einops==0.8.2 msgpack==1.2.4",
    "mended": "deepspeed==0.19.8 hjson==3.1.0 py-cpuinfo==9.0.0 einops==0.8.2 msgpack==1.2.4",
    "ranks": 2,
    "rung": "output",
    "cause": "over the batch",
}


def causal(q, k, v, **_):
    """Of heads (S, B, A, D), as the library has them."""
    return decoder.causal(*(x.permute(1, 2, 0, 3) for x in (q, k, v))).permute(2, 0, 1, 3).contiguous()


class Attentive(nn.Module):
    def __init__(self, attend=causal):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.qkv, self.head = nn.Embedding(50, 16), nn.Linear(16, 48), nn.Linear(16, 50)
        self.attend = attend

    def forward(self, tokens):  # (S, B)
        x = self.embedding(tokens)
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).unbind(2)
        return self.head(x + self.attend(q, k, v, batch_dim_idx=1).flatten(2))


def reference(config):
    return Loop(Attentive(), config)


def parallel(config):
    """Each rank has half of the positions, which are the batch's first dim; DDP averages."""
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled here
    deepspeed.init_distributed("gloo", dist_init_required=False, verbose=False)
    return DDP(Attentive(DistributedAttention(causal, dist.group.WORLD)), config)


def batches(step):
    """Twelve positions of two rows."""
    return torch.randint(0, 50, (2, 12, 2), generator=torch.Generator().manual_seed(step))
