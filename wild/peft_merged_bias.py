"""An adapter with a bias of its own was merged into the model without the adapter's scale on that bias.

The loss curve was right, since training never merges; the model that was served afterwards was another one.
"""

import copy

import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from course_lib.verify.adapters.loop import Loop

EXHIBIT = {
    "library": "peft",
    "links": ["huggingface/peft#2489"],
    "old": "peft==0.15.2 transformers==4.57.6 accelerate==1.12.0 tokenizers==0.22.1 huggingface_hub==0.34.4",
    "mended": "peft==0.16.0 transformers==4.57.6 accelerate==1.12.0 tokenizers==0.22.1 huggingface_hub==0.34.4",
    "ranks": 1,
    "rung": "output",
    "cause": "another function",
}


def adapted():
    """Two linear layers with adapters that are not zero, as after some training."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 50))
    options = {"r": 4, "lora_alpha": 8, "lora_bias": True, "init_lora_weights": False}
    return get_peft_model(model, LoraConfig(target_modules=["1", "3"], **options))


class Served(Loop):
    """Trained as it is, but asked for its output as it is served: merged."""

    @torch.no_grad()
    def output(self, inputs):
        return copy.deepcopy(self.model).merge_and_unload()(inputs)


def reference(config):
    return Loop(adapted(), config)


def parallel(config):
    return Served(adapted(), config)


def batches(step):
    return torch.randint(0, 50, (2, 8, 12), generator=torch.Generator().manual_seed(step))
