"""The model of a training run: a preset's is the course's decoder, a folder's that of `transformers`.

A folder's weights are loaded once the model is cut, each rank its own, and the trained ones go back into such a folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from course_lib.cli.train_config import TrainRun
from course_lib.models.decoder import Decoder
from course_lib.training.checkpoint import on_first_rank
from course_lib.training.pretrained import Pretrained
from course_lib.training.safetensors_folder import load_safetensors, save_safetensors
from course_lib.training.torch_recompute import torch_recompute_layers
from course_lib.training.trainer import Trainer
from course_lib.verify.memory import recompute_layers

EXPORT = "transformers"  # in the folder of a run


def on_meta(run: TrainRun) -> nn.Module:
    """Its names and shapes, in no memory.

    Raises: ValueError for a shape that our decoder cannot be.
    """
    if run.folder is not None:
        return Pretrained(run.folder).model(torch.float32, torch.device("cpu"), on_meta=True)
    with torch.device("meta"):
        return Decoder(run.model)


def is_loaded(run: TrainRun) -> bool:
    """Whether there are weights to go on from, so that nobody builds the whole model."""
    return run.folder is not None and Pretrained(run.folder).has_weights


def begun(run: TrainRun, device: torch.device) -> nn.Module:
    """The model as it is before anything cuts it: on meta where its weights are loaded afterwards."""
    dtype = getattr(torch, run.dtype)
    if run.folder is None:
        return Decoder(run.model).to(dtype=dtype, device=device)
    return Pretrained(run.folder).model(dtype, device, on_meta=is_loaded(run))


def init_of(run: TrainRun) -> Callable[[Trainer], object] | None:
    """What fills a model that is on meta."""
    if not is_loaded(run):
        return None
    assert run.folder is not None
    return partial(load_safetensors, folder=run.folder)


def recompute(run: TrainRun, model: nn.Module) -> None:
    """Let every layer keep its input alone; layers of `transformers` take arguments by name, as PyTorch's own does."""
    if run.engine == "own" and isinstance(model, Decoder):
        recompute_layers(model)
    else:
        torch_recompute_layers(model)


def export(run: TrainRun, trainer: Trainer) -> None:
    """Write what became of a folder's model as a folder again, instead of one that a run which broke off had begun."""
    if run.folder is None:
        return
    assert run.out is not None
    target, pretrained, everyone = run.out / EXPORT, Pretrained(run.folder), trainer.local.everyone
    on_first_rank(lambda: shutil.rmtree(target, ignore_errors=True), everyone)
    save_safetensors(trainer, target)
    on_first_rank(lambda: pretrained.copy_tokenizer(target), everyone)
