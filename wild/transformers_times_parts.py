"""A model that is not one of the library's own was trained with gradients as many times too large as it had parts.

The Trainer stopped dividing by the accumulated parts because the library's own models now count their targets
themselves; a model whose `forward` takes no further arguments does not, and nobody divided.
"""

import torch
from torch import nn
from transformers import Trainer

from course_lib.verify.adapters.transformers import HFTrainer, arguments

EXHIBIT = {
    "library": "transformers",
    "links": ["huggingface/transformers#35438"],
    "old": "transformers==4.47.1 accelerate==1.0.1 tokenizers==0.21.4 huggingface_hub==0.34.4",
    "mended": "transformers==4.57.6 accelerate==1.12.0 tokenizers==0.22.1 huggingface_hub==0.34.4",
    "ranks": 1,
    "rung": "gradients",
    "cause": "not divided by micro-batches",
}


class OwnModel(nn.Module):
    """What a user wrote: its loss is a mean."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.embedding(input_ids).tanh())
        loss = None if labels is None else nn.functional.cross_entropy(logits[:, :-1].mT, labels[:, 1:])
        return {"loss": loss, "logits": logits}


class Rows(HFTrainer):
    def output(self, inputs):
        return self.model(inputs)["logits"]


def trainer(config, parts):
    torch.manual_seed(0)
    return Rows(Trainer(OwnModel(), arguments(config, gradient_accumulation_steps=parts)))


def reference(config):
    """All eight rows at once."""
    return trainer(config, 1)


def parallel(config):
    """The same rows in four parts of two."""
    return trainer(config, 4)


def batches(step):
    """Eight rows of twelve tokens, all of which are targets."""
    return torch.randint(0, 50, (2, 8, 12), generator=torch.Generator().manual_seed(step))
