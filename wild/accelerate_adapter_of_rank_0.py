"""A checkpoint of adapters under FSDP2 had the first rank's part of each matrix, and loading gave nobody else any.

With `FULL_STATE_DICT` and `adapter_only`, which the Trainer of `transformers` always asks for, the parts were never
gathered. Of two ranks that go on from it, the second has its half of every adapter as it was born.
"""

import torch
import torch.distributed as dist
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import load_fsdp_model, save_fsdp_model
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from course_lib.verify.adapters.accelerate import as_torchrun
from course_lib.verify.adapters.loop import Loop
from course_lib.verify.adapters.sharded import Sharded

EXHIBIT = {
    "library": "accelerate",
    "links": ["huggingface/accelerate#4206"],
    "old": "accelerate==1.14.0 peft==0.21.2",
    "mended": "accelerate==1.15.0 peft==0.21.2",
    "ranks": 2,
    "rung": "save and load",
    "cause": "weights not loaded",
}


def adapted():
    torch.manual_seed(0)
    words = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 50))
    return get_peft_model(words, LoraConfig(r=4, target_modules=["1", "3"]), autocast_adapter_dtype=False)


class Resumed(Sharded):
    """The library writes the adapters and reads them; the optimizer's states are each rank's own, and right."""

    def __init__(self, config):
        as_torchrun()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        super().__init__(fully_shard(adapted(), mesh=mesh), config, shares=mesh)
        self.plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="FULL_STATE_DICT")
        self.accelerator = Accelerator(cpu=True)
        state = self.accelerator.state  # FSDP is for GPUs there, but nothing in these two functions is
        state.distributed_type, state.fsdp_plugin = DistributedType.FSDP, self.plugin

    def save(self, folder):
        save_fsdp_model(self.plugin, self.accelerator, self.model, folder, adapter_only=True)
        torch.save(self.optimizer.state_dict(), f"{folder}/optimizer-{self.rank}.pt")

    def load(self, folder):
        load_fsdp_model(self.plugin, self.accelerator, self.model, folder, adapter_only=True)
        states = torch.load(f"{folder}/optimizer-{self.rank}.pt", weights_only=False)
        self.optimizer.load_state_dict(states)


def reference(config):
    return Loop(adapted(), config)


def parallel(config):
    return Resumed(config)


def batches(step):
    return torch.randint(0, 50, (2, 8, 12), generator=torch.Generator().manual_seed(step))
