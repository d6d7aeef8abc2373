"""What a training run says of the bytes between forward and backward: recompute, its groups and results, the loss."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from course_lib.cli.compose import refuse
from course_lib.config import ModelConfig
from course_lib.training.loss_technique import chunked_loss
from course_lib.training.recompute_technique import recompute
from course_lib.training.setup import Technique

COMMAND = "train"


def check(values: Mapping[str, Any], model: ModelConfig, folder: Path | None) -> None:
    """Refuse what does not fit the engine, the model, or the rest of these settings.

    Raises: ValueError.
    """
    group, keep, chunks = (values[name] for name in ("recompute_group", "recompute_keep", "loss_chunks"))
    for name, value, usual in (("recompute_group", group, 1), ("recompute_keep", keep, "nothing")):
        if value != usual and not values["recompute"]:
            refuse(
                COMMAND, f"{name}={value} without recompute", "it says how layers compute twice", "add recompute=true"
            )
        if value != usual and values["engine"] == "torch":
            rule, way_out = "PyTorch's engine computes each layer again here", "choose engine=own, or leave it out"
            refuse(COMMAND, f"engine=torch with {name}={value}", rule, way_out)
    if keep == "matmuls" and model.n_experts > 1:
        rule, way_out = "how many tokens pass an expert is not known before", "choose recompute_keep=attention"
        refuse(COMMAND, f"recompute_keep=matmuls with {model.n_experts} experts", rule, way_out)
    if chunks > 1 and values["engine"] == "torch":
        rule, way_out = "PyTorch's engine makes the logits at once", "choose engine=own, or leave loss_chunks out"
        refuse(COMMAND, f"engine=torch with loss_chunks={chunks}", rule, way_out)
    if chunks > 1 and folder is not None:
        rule, way_out = "a model of transformers makes its own logits", "leave loss_chunks out"
        refuse(COMMAND, f"model={str(folder)!r} with loss_chunks={chunks}", rule, way_out)
    if chunks > 1 and values["param_dtype"] is not None:
        rule = "stage 3 gives what comes out of the model in fp32, and the head lies in 16 bits"
        refuse(COMMAND, f"param_dtype={values['param_dtype']} with loss_chunks={chunks}", rule, "leave one of them out")


def techniques(values: Mapping[str, Any]) -> list[Technique]:
    """Those of the course's own engine, in their order."""
    found: list[Technique] = []
    if values["recompute"] and values["engine"] == "own":
        found.append(recompute(group=values["recompute_group"], keep=values["recompute_keep"]))
    if values["loss_chunks"] > 1:
        found.append(chunked_loss(values["loss_chunks"]))
    return found
