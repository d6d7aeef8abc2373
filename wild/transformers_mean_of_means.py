"""Four parts of a batch, each with its own mean, were averaged as if they had equally many targets.

A row with few targets counted for more than a row with many, so that the same eight rows gave other gradients when they
were accumulated than when they were seen at once.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer

from course_lib.verify.adapters.transformers import HFTrainer, arguments

EXHIBIT = {
    "library": "transformers",
    "links": ["huggingface/transformers#34191"],
    "old": "transformers==4.45.2 accelerate==1.0.1 tokenizers==0.20.3 huggingface_hub==0.26.5",
    "mended": "transformers==4.57.6 accelerate==1.12.0 tokenizers==0.22.1 huggingface_hub==0.34.4",
    "ranks": 1,
    "rung": "gradients",
    "cause": "mean of micro-batch means",
}
TINY = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def trainer(config, parts):
    torch.manual_seed(0)
    options = arguments(config, gradient_accumulation_steps=parts)
    return HFTrainer(Trainer(LlamaForCausalLM(LlamaConfig(**TINY)), options))


def reference(config):
    """All eight rows at once."""
    return trainer(config, 1)


def parallel(config):
    """The same rows in four parts of two."""
    return trainer(config, 4)


def batches(step):
    """Eight rows of twelve tokens; the last has three targets, the first ten."""
    inputs, targets = torch.randint(0, 50, (2, 8, 12), generator=torch.Generator().manual_seed(step))
    before_the_first = torch.arange(2, 10).view(8, 1)
    return inputs, targets.masked_fill(torch.arange(12) < before_the_first, -100)
