"""What a training run says of a model of experts: ep, balance and capacity."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from course_lib.cli.compose import refuse
from course_lib.config import ModelConfig
from course_lib.split import divisors
from course_lib.training.balance import balanced
from course_lib.training.expert_technique import experts
from course_lib.training.setup import Technique

COMMAND = "train"


def check(values: Mapping[str, Any], model: ModelConfig, folder: Path | None) -> None:
    """Refuse what a model of so many experts cannot be asked, or one from a folder.

    Raises: ValueError for what belongs to experts where there are none, and for what does not fit the degrees.
    """
    ep, balance, capacity = (values[name] for name in ("ep", "balance", "capacity"))
    for name, usual in (("balance", 0), ("capacity", None)) if folder is not None else ():
        if values[name] != usual:
            given = f"model={str(folder)!r} with {name}={values[name]}"
            refuse(COMMAND, given, "the course's own decoder measures the load of its experts", f"leave {name} out")
    if model.n_experts == 1:
        for name, value, usual in (("ep", ep, 1), ("balance", balance, 0), ("capacity", capacity, None)):
            if value != usual:
                way_out = f"leave {name} out, or choose model=tiny_mixtral"
                refuse(COMMAND, f"{name}={value} with {model.name}", "a layer of it has one block", way_out)
        return
    if ep > model.n_experts:
        choices = [n for n in divisors(values["dp"]) if n <= model.n_experts]
        refuse(COMMAND, f"ep={ep}, {model.n_experts} experts", "every rank has one", f"choose ep in {choices}")
    shared = next((f"{axis}={values[axis]}" for axis in ("ep", "tp") if values[axis] > 1), None)
    if shared and values["engine"] == "torch":
        rule, way_out = "PyTorch's engine has every expert on every rank here", "choose engine=own, or dp alone"
        refuse(COMMAND, f"engine=torch with {shared} and {model.n_experts} experts", rule, way_out)
    if values["sequence_parallel"] is not None:
        given = f"sequence_parallel={values['sequence_parallel']} with {model.n_experts} experts"
        refuse(COMMAND, given, "a token is routed once, not by each rank along tp", "leave sequence_parallel out")
    if balance < 0 or (balance and values["pp"] > 1):
        rule = "it is added to the loss" if balance < 0 else "the last stage alone has a loss"
        way_out = "give 0 or more" if balance < 0 else "leave it out, or choose pp=1"
        refuse(COMMAND, f"balance={balance}" + f" with pp={values['pp']}" * (balance > 0), rule, way_out)


def techniques(values: Mapping[str, Any], model: ModelConfig, *, own: bool = True) -> list[Technique]:
    """What spreads experts over ranks.

    Ranks along tp share each expert's inner features, as they share a plain block's: that is the same technique.
    A model of transformers, which is not our `own`, has gate and values in one matrix, and keeps it whole along tp.
    """
    cut_inner = own and values["tp"] > 1
    spread = model.n_experts > 1 and (values["ep"] > 1 or cut_inner)
    return [experts(cut_inner=cut_inner)] if spread else []


def balancing(values: Mapping[str, Any]) -> list[Technique]:
    """What keeps experts equally busy, if anything does: it adds to the loss that there is by then."""
    return [balanced(float(values["balance"]))] if values["balance"] else []
