"""What a training run says of the bytes between forward and backward: recompute and loss_chunks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from course_lib.cli.compose import refuse
from course_lib.cli.recompute_words import read_recompute
from course_lib.cli.train_precision import Precision, autocasting
from course_lib.models.decoder import Decoder
from course_lib.models.registered import check_attention, mix_by
from course_lib.parallel.tensors.roles import causal_model
from course_lib.savers.tiled_attention import attention_with_scores, tiled_attention
from course_lib.training.loss_technique import chunked_loss
from course_lib.training.recompute_technique import recompute
from course_lib.training.setup import Technique

COMMAND = "train"
_ATTENTION = {"naive": attention_with_scores, "tiles": tiled_attention}  # else PyTorch's own kernels


def check(values: Mapping[str, Any], folder: Path | None) -> None:
    """Refuse what does not fit the engine, the folder, or the rest of these settings.

    Raises: ValueError.
    """
    recompute, chunks = values["recompute"], values["loss_chunks"]
    if recompute not in ("none", "layers") and values["engine"] == "torch":
        rule, way_out = "PyTorch's engine computes each layer again here", "choose engine=own, or recompute=layers"
        refuse(COMMAND, f"engine=torch with recompute={recompute}", rule, way_out)
    if values["attention"] != "sdpa" and values["cp"] > 1:
        rule, way_out = "context= says how ranks attend to each other's keys", "leave attention out, or choose cp=1"
        refuse(COMMAND, f"attention={values['attention']} with cp={values['cp']}", rule, way_out)
    if chunks > 1 and values["engine"] == "torch":
        rule, way_out = "PyTorch's engine makes the logits at once", "choose engine=own, or leave loss_chunks out"
        refuse(COMMAND, f"engine=torch with loss_chunks={chunks}", rule, way_out)
    if chunks > 1 and folder is not None:
        rule, way_out = "a model of transformers makes its own logits", "leave loss_chunks out"
        refuse(COMMAND, f"model={str(folder)!r} with loss_chunks={chunks}", rule, way_out)
    if chunks > 1 and values["precision"] == "bf16":
        rule = "stage 3 gives what comes out of the model in fp32, and the head lies in 16 bits"
        refuse(COMMAND, f"precision=bf16 with loss_chunks={chunks}", rule, "leave one of them out")


def use_attention(model: nn.Module, values: Mapping[str, Any]) -> None:
    """Let positions of a model meet as the run asks.

    Raises: ValueError for a model of `transformers` whose attention is more than a softmax over the past.
    """
    if values["attention"] == "sdpa":
        return
    mix = _ATTENTION[values["attention"]]
    if isinstance(model, Decoder):
        model.mix_by(mix)
    elif (found := causal_model(model)) is not None:
        check_attention(found[1], "train")
        mix_by(found[1], mix)


def techniques(values: Mapping[str, Any], precision: Precision) -> list[Technique]:
    """In their order."""
    found = autocasting(precision)
    way, group = read_recompute(COMMAND, values["recompute"])
    if way != "none" and values["engine"] == "own":
        found.append(recompute(group=group, keep="matmuls" if way == "selective" else "nothing"))
    if values["loss_chunks"] > 1:
        found.append(chunked_loss(values["loss_chunks"]))
    return found
