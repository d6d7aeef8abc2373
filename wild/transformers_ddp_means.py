"""Accumulated parts were weighed by their targets at last, but ranks were not: DDP averaged one mean per rank.

The rank with the shorter answers pulled as hard as the one with the longer answers. First an option cured it, which one
had to know of; nine months later it became the default.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer

from course_lib.verify.adapters.transformers import HFTrainer, arguments

EXHIBIT = {
    "library": "transformers",
    "links": [
        "huggingface/transformers#34242",
        "huggingface/transformers#34373",
        "huggingface/transformers#39395",
    ],
    "old": "transformers==4.46.3 accelerate==1.0.1 tokenizers==0.20.3 huggingface_hub==0.26.5",
    "mended": "transformers==4.57.6 accelerate==1.12.0 tokenizers==0.22.1 huggingface_hub==0.34.4",
    "ranks": 2,
    "rung": "gradients",
    "cause": "mean of means",
}
TINY = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def trainer(config):
    torch.manual_seed(0)
    return HFTrainer(Trainer(LlamaForCausalLM(LlamaConfig(**TINY)), arguments(config)))


reference = parallel = trainer  # the same file on one device and on two


def batches(step):
    """Eight rows of twelve tokens; the last has three targets, the first ten."""
    inputs, targets = torch.randint(0, 50, (2, 8, 12), generator=torch.Generator().manual_seed(step))
    before_the_first = torch.arange(2, 10).view(8, 1)
    return inputs, targets.masked_fill(torch.arange(12) < before_the_first, -100)
