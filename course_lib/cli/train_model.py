"""The model of a training run: a preset's is the course's decoder, a folder's that of `transformers`.

It is built without its numbers, which come once it is cut, each rank its own: drawn one tensor after the other, or read
from the folder, into which the trained ones go back. So no rank ever has the whole model.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

from course_lib.cli import train_activations, train_adapters
from course_lib.cli.train_config import TrainRun
from course_lib.models.decoder import Decoder, init_weight
from course_lib.models.moe import MoEDecoder
from course_lib.parallel.table.meta import all_on_meta
from course_lib.training import export_folder, step_folders
from course_lib.training.checkpoint import on_first_rank
from course_lib.training.initial import draw_adapters, drawn
from course_lib.training.mean_weights import at_the_mean
from course_lib.training.peft_folder import save_adapters
from course_lib.training.pretrained import Pretrained
from course_lib.training.safetensors_folder import load_safetensors, save_safetensors
from course_lib.training.trainer import Trainer

_WHOLE, _ADAPTER = EXPORTS = ("transformers", "adapter")  # in the folder of a run: the model, or what was trained of it


def on_meta(run: TrainRun, device: torch.device | None = None) -> nn.Module:
    """Its names and shapes with its adapters and its attention, in no memory.

    Raises: ValueError as `base_on_meta`, and for a model in which neither adapters nor another attention can stand.
    """
    model = train_adapters.with_adapters(base_on_meta(run, device), run.values)
    train_activations.use_attention(model, run.values)
    return model


def base_on_meta(run: TrainRun, device: torch.device | None = None) -> nn.Module:
    """The same without adapters; buffers that `transformers` computes lie on `device`, or the CPU.

    Raises: ValueError for a shape that our decoder cannot be.
    """
    dtype = run.precision.dtype
    if run.folder is not None:
        return Pretrained(run.folder).model(dtype, device or torch.device("cpu"))
    with all_on_meta():
        decoder = MoEDecoder(run.model, run.values["capacity"]) if run.model.n_experts > 1 else Decoder(run.model)
        return decoder.to(dtype)


def init_of(run: TrainRun) -> Callable[[Trainer], object]:
    """What fills it for the start of training."""
    if run.folder is None:
        return drawn(init_weight)
    pretrained = Pretrained(run.folder)
    return partial(_loaded, folder=run.folder) if pretrained.has_weights else drawn(pretrained.rule())


def _loaded(trainer: Trainer, folder: Path) -> None:
    load_safetensors(trainer, folder)
    draw_adapters(trainer)


def export_name(run: TrainRun) -> str:
    """What the run leaves of a folder's model."""
    return _WHOLE if run.values["adapter"] is None else _ADAPTER


def export(run: TrainRun, trainer: Trainer, wrote_by: str) -> None:
    """Write what became of a folder's model as a folder again, in place of one that the same run had begun or written.

    Of adapters what was trained is enough: the model that they stand in is where it was.
    Raises: OSError, on all ranks, if something else is there, or the system refuses.
    """
    if run.folder is None:
        return
    assert run.out is not None
    target, pretrained, everyone = run.out / export_name(run), Pretrained(run.folder), trainer.local.everyone
    mark = partial(step_folders.mark, run=wrote_by)
    on_first_rank(lambda: export_folder.make_room(target), everyone)
    with at_the_mean(trainer):
        if run.values["adapter"] is not None:
            save_adapters(trainer, target, str(run.folder.resolve()), mark=mark)
            return
        save_safetensors(trainer, target, mark=mark)
    on_first_rank(lambda: pretrained.copy_tokenizer(target), everyone)
