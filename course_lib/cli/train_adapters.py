"""What a training run says of adapters: a frozen model, beside whose maps something small is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from course_lib.cli.compose import refuse
from course_lib.cli.settings import said
from course_lib.cli.train_settings import ADAPTERS
from course_lib.costs.model.adapters import Adapters
from course_lib.costs.sweep.job import CODES_ARE_WHOLE
from course_lib.models.linear_maps import TransposedMap, is_linear_map
from course_lib.models.made import piece_of
from course_lib.parallel.sharding.wrapping import blocks_of
from course_lib.savers.ia3 import add_ia3
from course_lib.savers.lora import add_lora
from course_lib.savers.quantised_linear import quantise
from course_lib.training.frozen_technique import without_frozen
from course_lib.training.setup import Technique
from course_lib.units import format_count

COMMAND = "train"


def complete(values: dict[str, Any]) -> None:
    """Check the values, and say what was left unsaid: rank=8.

    Raises: ValueError for what does not fit the adapter, the engine or the degrees.
    """
    adapter, rank = values["adapter"], values["rank"]
    if rank is not None and adapter not in ("lora", "qlora"):
        given = f"rank={rank} with adapter={adapter}" if adapter else f"rank={rank} without an adapter"
        rule = "it is the width between the two matrices of LoRA"
        refuse(COMMAND, given, rule, "choose adapter=lora or qlora, or leave rank out")
    if adapter is None:
        return
    if values["engine"] == "torch" and values["tp"] > 1:
        rule, way_out = "PyTorch's styles cut a plain map, and no adapter beside it", "choose engine=own, or tp=1"
        refuse(COMMAND, f"adapter={adapter} with engine=torch and tp={values['tp']}", rule, way_out)
    if adapter == "qlora":
        _check_codes(values)
    if adapter != "ia3":
        values["rank"] = rank or Adapters.rank


def _check_codes(values: Mapping[str, Any]) -> None:
    """Codes are cut between their neighbours alone, and are numbers of no dtype."""
    if values["tp"] > 1:
        refuse(
            COMMAND,
            f"adapter=qlora with tp={values['tp']}",
            CODES_ARE_WHOLE,
            "choose adapter=lora, or zero_stage=3",
        )
    if values["engine"] == "torch" and values["zero_stage"] > 1:
        rule = "PyTorch's engine shares numbers of one dtype, and codes are bytes"
        refuse(
            COMMAND, f"adapter=qlora with engine=torch and zero_stage={values['zero_stage']}", rule, "choose engine=own"
        )
    if values["precision"] == "bf16":
        rule, way_out = "stage 3 would round the codes", "choose precision=autocast, or adapter=lora"
        refuse(COMMAND, "adapter=qlora with precision=bf16", rule, way_out)


def with_adapters(model: nn.Module, values: Mapping[str, Any]) -> nn.Module:
    """The model with its adapters, if there are any; it may be on meta.

    Raises: ValueError for a model without such maps.
    """
    adapter = values["adapter"]
    if adapter is None:
        return model
    maps = _maps_of(model)
    if adapter == "ia3":
        outputs = [name for name in maps if name.rpartition(".")[2] in ("k_proj", "v_proj")]
        inputs = [name for name in maps if name.rpartition(".")[2] == "down_proj"]
        if not outputs:
            rule, way_out = "factors stand at keys and values, as k_proj and v_proj", "choose adapter=lora"
            refuse(COMMAND, f"adapter=ia3 for {_kind(model)}", rule, way_out)
        return add_ia3(model, outputs, inputs)
    if not maps:
        rule, way_out = "its layers have no linear map that an adapter could stand beside", "leave adapter out"
        refuse(COMMAND, f"adapter={adapter} for {_kind(model)}", rule, way_out)
    if adapter == "qlora":
        if any(isinstance(model.get_submodule(name), TransposedMap) for name in maps):
            rule = "its matrices lie transposed, and codes are those of a plain map's rows"
            refuse(COMMAND, f"adapter=qlora for {_kind(model)}", rule, "choose adapter=lora")
        quantise(model, maps)
    return add_lora(model, values["rank"], targets=maps)


def _maps_of(model: nn.Module) -> list[str]:
    """The linear maps of all layers, but those that choose experts."""
    return [
        f"{block}.{name}"
        for block in blocks_of(model)
        for name, module in model.get_submodule(block).named_modules()
        if is_linear_map(module) and piece_of(f"{name}.weight", tuple(module.weight.shape)) != "router"
    ]


def _kind(model: nn.Module) -> str:
    return f"a {type(getattr(model, 'model', model)).__name__}"


def techniques(values: Mapping[str, Any]) -> list[Technique]:
    """After all others."""
    return [] if values["adapter"] is None else [without_frozen()]


def in_words(model: nn.Module, parameters: int, values: Mapping[str, Any]) -> str:
    """How much of it is trained, behind the number of all parameters in the line that a run begins with."""
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    share = f"{trained / parameters:.2%}"
    return f", frozen, and {format_count(trained)} trained beside them ({share}, {said(ADAPTERS, values)})"
