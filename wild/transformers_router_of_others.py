"""Under expert parallelism the router learned from experts that were never asked.

Of each token a rank computed those experts that it has, and in the place of each other one any, with weight 0. So what
came out was right. But a weight's gradient is what its expert made, whether it counts or not, and the router got it.
It was so with `experts_implementation="batched_mm"` alone.
"""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from transformers import MixtralConfig, MixtralForCausalLM
from transformers.distributed import DistributedConfig

from course_lib.models.logits import Logits
from course_lib.training.step import count_targets
from course_lib.verify.adapters.loop import Loop

EXHIBIT = {
    "library": "transformers",
    "links": ["huggingface/transformers#48687", "huggingface/transformers#48689"],
    "old": "transformers==5.17.0 accelerate==1.12.0 huggingface_hub==1.31.0",
    "mended": "transformers==5.18.0 accelerate==1.12.0 huggingface_hub==1.31.0",
    "ranks": 2,
    "rung": "gradients",
    "cause": "some wrong",
}


def mixtral():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "initializer_range": 0.3}
    config = MixtralConfig(**sizes, **experts, num_key_value_heads=2, vocab_size=50, pad_token_id=None)
    config._experts_implementation = "batched_mm"
    return MixtralForCausalLM(config)


class Halves(Loop):
    """A plain loop; some tensors are cut and some are not, so that no norm takes them together."""

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = self.loss(self.model(batch[0]), batch[1]) / count_targets(batch)
        loss.backward()
        norm = torch.stack([gradient.norm() for gradient in self.gradients().values()]).norm()
        nn.utils.clip_grads_with_norm_(self.trained, self.max_norm, norm, foreach=False)
        self.optimizer.step()
        self.norm = norm.item()
        return loss.item()


def reference(config):
    return Loop(Logits(mixtral()), config)


def parallel(config):
    """Both ranks see all rows and have half of the experts, as a checkpoint is loaded."""
    os.environ |= {"LOCAL_RANK": str(dist.get_rank()), "RANK": str(dist.get_rank()), "WORLD_SIZE": "2"}
    with tempfile.TemporaryDirectory() as own:
        folders = [own]
        dist.broadcast_object_list(folders)
        mixtral().save_pretrained(folders[0])  # the first rank writes
        dist.barrier()
        halves = DistributedConfig(tp_size=2, enable_expert_parallel=True)
        options = {"distributed_config": halves, "experts_implementation": "batched_mm"}
        model = MixtralForCausalLM.from_pretrained(folders[0], **options, dtype=torch.get_default_dtype())
        dist.barrier()
    return Halves(Logits(model).train(), config)


def batches(step):
    return torch.randint(0, 50, (2, 4, 6), generator=torch.Generator().manual_seed(step))
