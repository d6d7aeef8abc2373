"""Trained adapters as files of `peft`, small beside their base: `PeftModel.from_pretrained(base, folder)` loads them.

Source: https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from course_lib.models.linear_maps import TransposedMap
from course_lib.parallel.table.local import own_part
from course_lib.savers.adapted import Adapted
from course_lib.savers.ia3 import IA3Linear
from course_lib.savers.lora import LoRALinear
from course_lib.training.checkpoint import on_first_rank
from course_lib.training.step_folders import UNFINISHED
from course_lib.training.trainer import Trainer

CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_KINDS = {"A": "lora_A.weight", "B": "lora_B.weight", "factors": "ia3_l"}  # ours -> theirs


def save_adapters(trainer: Trainer, folder: Path, base: str, *, mark: Callable[[Path], None]) -> None:
    """Write what is trained of a model of theirs; `base` is where its frozen weights are, and `mark` begins the folder.

    All ranks call it; adapters are whole on each for a moment.
    Raises: OSError, on all ranks, if the first one cannot write.
    """
    local = trainer.local
    mine = {name: {"": own_part(local.parameters[name].detach())} for name in trainer.trained}
    whole = {name: kinds[""] for name, kinds in local.whole_once(mine).items()}
    modules = {name: module for name, module in trainer.skeleton.named_modules() if isinstance(module, Adapted)}
    tensors = {_name_of_theirs(name): _as_theirs(modules, name, x) for name, x in whole.items()}
    config = _config(modules) | {"base_model_name_or_path": base}
    on_first_rank(lambda: _write(folder, tensors, config, mark), local.everyone)


def _name_of_theirs(name: str) -> str:
    owner, _, kind = name.removeprefix("model.").rpartition(".")
    return f"base_model.model.{owner}.{_KINDS[kind]}"


def _as_theirs(modules: dict[str, Adapted], name: str, x: Tensor) -> Tensor:
    """Their factors are a column, or a row where they multiply what a map reads."""
    module = modules[name.rpartition(".")[0]]
    if isinstance(module, IA3Linear):
        return (x[None] if module.on_input else x[:, None]).contiguous()
    return x.contiguous()


def _config(modules: dict[str, Adapted]) -> dict[str, Any]:
    shared = {"task_type": "CAUSAL_LM", "inference_mode": True}
    targets = sorted({name.rpartition(".")[2] for name in modules})
    first = next(iter(modules.values()))
    if isinstance(first, LoRALinear):
        rank = len(first.A)  # the skeleton is not cut
        turned = isinstance(first.base, TransposedMap)
        sizes = {"r": rank, "lora_alpha": rank * first.scale, "fan_in_fan_out": turned}
        return {"peft_type": "LORA", **sizes, "target_modules": targets, **shared}
    inner = sorted({name.rpartition(".")[2] for name, one in modules.items() if getattr(one, "on_input", False)})
    return {"peft_type": "IA3", "target_modules": targets, "feedforward_modules": inner, **shared}


def _write(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any], mark: Callable[[Path], None]) -> None:
    unfinished = folder.with_name(f"{folder.name}{UNFINISHED}")
    mark(unfinished)
    save_file({name: x.cpu() for name, x in tensors.items()}, unfinished / _WEIGHTS, {"format": "pt"})
    (unfinished / CONFIG).write_text(json.dumps(config, indent=2), encoding="utf-8")
    unfinished.rename(folder)
