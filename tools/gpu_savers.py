"""`make gpu`, its third part: the bill of one GPU, saver by saver, by the formula and as the GPU pays it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from course_lib.config import ModelConfig, load_model
from course_lib.costs.model.adapters import Adapters
from course_lib.costs.sweep.recipes import Recipe, recipe_memory
from course_lib.gauges.savers_on_gpu import Savers, pay
from course_lib.units import GB
from tools.gpu_files import asks_for_a_gpu, write
from tools.paths import ROOT

FOLDER = ROOT / "course_lib/presets/gpu_savers"
_FP32 = 4
RANK = 16
LORA = Adapters(rank=RANK)
RECIPES = {
    "all weights": Recipe(),
    "all weights, recomputed": Recipe(recompute=True),
    "all weights, recomputed, loss in 16 pieces": Recipe(recompute=True, pieces=16),
    "LoRA": Recipe(adapters=LORA),
    "LoRA, recomputed": Recipe(adapters=LORA, recompute=True),
    "LoRA beside codes, recomputed": Recipe(adapters=LORA, nf4=True, recompute=True),
    "LoRA beside codes, recomputed, loss in 16 pieces": Recipe(adapters=LORA, nf4=True, recompute=True, pieces=16),
}
CASES = [  # model, sequence, the first recipe: of those before it the model is too large
    ("llama3_2_1b", 2048, 0),
    ("llama3_2_1b", 8192, 0),
    ("llama3_1_8b", 2048, 3),
    ("llama3_1_8b", 32768, 6),
]


def savers() -> Iterator[dict[str, Any]]:
    """A row for each model, length and recipe."""
    for model, sequence, first in CASES:
        config = load_model(model)
        for name, recipe in list(RECIPES.items())[first:]:
            found = pay(config, savers_of(recipe), sequence=sequence)
            due = bytes_at_loss(config, recipe, sequence=sequence)
            row = {"model": model, "sequence": sequence, "recipe": name, "formula": due}
            row |= {"loss": None, "peak": None, "seconds": None} if found is None else vars(found)
            print(f"{model} {sequence} {name}: {due / GB:.2f} GB,", found, flush=True)
            yield row


def savers_of(recipe: Recipe) -> Savers:
    """What to switch on for it."""
    rank = None if recipe.adapters is None else RANK
    return Savers(rank=rank, codes=recipe.nf4, recompute=recipe.recompute, pieces=recipe.pieces)


def bytes_at_loss(config: ModelConfig, recipe: Recipe, *, sequence: int) -> int:
    """The formula's bytes when forward has ended.

    Backward has not begun, so no layer is there a second time, and no piece of the loss.
    """
    found = recipe_memory(config, recipe, sequence=sequence).total
    if recipe.pieces > 1:
        found -= _FP32 * sequence * config.vocab_size // recipe.pieces
    if recipe.recompute:
        everything = recipe_memory(config, replace(recipe, recompute=False), sequence=sequence)
        found -= everything.activations // config.n_layers
    return found


if __name__ == "__main__":
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"  # the allocator leaves no gaps between tensors
    asks_for_a_gpu("gpu_savers")
    write(FOLDER, "python -m tools.gpu_savers", {"savers": savers})
