"""Every rank trained an adapter of its own, and the first one's was saved: what the others learned is lost.

The model was cut first and the adapter came afterwards, so FSDP knows nothing of it: each rank draws its own A, and
nobody averages the gradients. B is born 0, so that every output is right. Nothing warns of it. Adapters first mends it.
The thread tells of models that `transformers` cuts when it loads them; its Trainer sees to them since 5.19.
"""

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from course_lib.verify.adapters.loop import Loop
from course_lib.verify.adapters.sharded import Sharded

EXHIBIT = {
    "library": "peft",
    "links": ["huggingface/transformers#48792", "huggingface/transformers#48873"],
    "old": "peft==0.21.2 accelerate==1.15.0",
    "mended": "peft==0.21.2 accelerate==1.15.0",
    "open": True,
    "ranks": 2,
    "rung": "gradients",
    "cause": "left out",
}


def words():
    """The same weights on every rank, frozen; what is drawn next is drawn from the rank's own numbers."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 50))


def adapted(model):
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=["1", "3"])
    return get_peft_model(model, lora, autocast_adapter_dtype=False)


def ranks():
    return init_device_mesh("cpu", (dist.get_world_size(),))


def reference(config):
    return Loop(adapted(words()), config)


def parallel(config):
    """Cut, then adapted."""
    mesh = ranks()
    return Sharded(adapted(fully_shard(words(), mesh=mesh)), config, shares=mesh)


def workaround(config):
    """Adapted, then cut, with the first rank's A."""
    mesh, model = ranks(), adapted(words())
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    return Sharded(fully_shard(model, mesh=mesh), config, shares=mesh)


def batches(step):
    return torch.randint(0, 50, (2, 8, 12), generator=torch.Generator().manual_seed(step))
