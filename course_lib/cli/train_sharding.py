"""What a training run says of sharded data parallelism: zero_stage, strategy, shards, policy and policy_size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from course_lib.cli.compose import refuse
from course_lib.cli.settings import names
from course_lib.cli.train_precision import PRECISIONS
from course_lib.cli.train_settings import SHARDING
from course_lib.parallel.sharding.offload import CPUOffloadPolicy
from course_lib.parallel.sharding.wrapping import (
    LARGE,
    Policy,
    by_block,
    by_block_and_size,
    by_block_group,
    size_based,
)
from course_lib.split import divisors
from course_lib.training.setup import Technique
from course_lib.training.sharding import check_strategy, fully_shard, parts_of, zero
from course_lib.training.torch_sharding import torch_fully_shard, torch_zero

COMMAND = "train"
_OF_WEIGHTS = ("strategy", "shards", "offload")  # these have a meaning where weights are shared
POLICIES: dict[str, Callable[[int], Policy]] = {
    "by_block": lambda size: by_block,
    "by_block_and_size": lambda size: by_block_and_size,
    "by_block_group": by_block_group,
    "size_based": size_based,
}
_ALL_SHARE = ("FULL_SHARD", "SHARD_GRAD_OP")
_SIZES = {"by_block_group": None, "size_based": LARGE}  # who takes one, and which if none is given


def complete(values: dict[str, Any]) -> None:
    """Check the values, and say what was left unsaid: FULL_SHARD, by_block.

    Raises: ValueError for what does not fit the stage, the engine or the degrees.
    """
    stage = values["zero_stage"]
    given = {name: values[name] for name in names([SHARDING]) if values[name] is not None and name != "zero_stage"}
    if not stage:
        for name, value in given.items():
            _refuse(
                f"{name}={value} with zero_stage=0", "it says how ranks share", f"leave {name} out, or give a stage"
            )
        return
    _check_degrees(values)
    if stage == 3:
        values["strategy"] = values["strategy"] or "FULL_SHARD"
    _check_weights(values)
    _check_strategy(values)
    if values["engine"] == "torch" and stage == 1:
        for name, value in given.items():
            rule = "PyTorch's ZeRO-1 has no units"
            _refuse(f"{name}={value} with engine=torch", rule, f"leave {name} out, or choose engine=own")
        return
    _complete_policy(values)


def _check_degrees(values: Mapping[str, Any]) -> None:
    stage = f"zero_stage={values['zero_stage']}"
    if values["pp"] > 1 and values["zero_stage"] > 1:
        rule, way_out = "a pipeline's stages share the optimizer's states alone", "give zero_stage=1, or choose pp=1"
        _refuse(f"{stage} with pp={values['pp']}", rule, way_out)
    if values["tp"] > 1 and (values["engine"], values["zero_stage"]) == ("torch", 1):
        rule, way_out = "PyTorch's ZeRO-1 takes tensors of one rank", "choose engine=own, or zero_stage=3"
        _refuse(f"{stage} with tp={values['tp']} and engine=torch", rule, way_out)
    if values["dp"] * values["cp"] == 1:
        _refuse(f"{stage} with dp=1", "one rank has nobody to share with", "leave zero_stage out, or give dp >= 2")


def _check_weights(values: Mapping[str, Any]) -> None:
    stage = values["zero_stage"]
    for name in _OF_WEIGHTS:
        if values[name] is not None and stage < 3:
            rule, way_out = (
                "it says how weights are shared, which is stage 3",
                f"give zero_stage=3, or leave {name} out",
            )
            _refuse(f"{name}={values[name]} with zero_stage={stage}", rule, way_out)
    if values["offload"] not in (None, "cpu"):
        _refuse(f"offload={values['offload']!r}", "not a known kind", "choose cpu, or leave offload out")
    if values["offload"] is not None and values["engine"] == "torch":
        rule, way_out = (
            "here PyTorch's engine keeps its pieces on the device",
            "choose engine=own, or leave offload out",
        )
        _refuse(f"offload={values['offload']} with engine=torch", rule, way_out)


def _check_strategy(values: Mapping[str, Any]) -> None:
    stage, strategy, shards, dp = (values[name] for name in ("zero_stage", "strategy", "shards", "dp"))
    if stage == 3:
        check_strategy(COMMAND, strategy, shards)
    inner = next((f"{axis}={values[axis]}" for axis in ("cp", "ep") if values[axis] > 1), None)
    if inner and strategy not in (None, *_ALL_SHARE):
        rule = "all ranks that have the same weights share them"
        _refuse(f"strategy={strategy} with {inner}", rule, f"choose {' or '.join(_ALL_SHARE)}")
    if shards is not None and (shards < 1 or dp % shards):
        _refuse(
            f"shards={shards} with dp={dp}", "every copy has equally many ranks", f"choose shards in {divisors(dp)}"
        )


def _complete_policy(values: dict[str, Any]) -> None:
    policy, size = values["policy"] or "by_block", values["policy_size"]
    if policy not in POLICIES:
        _refuse(f"policy={policy!r}", "not a known policy", f"choose from {', '.join(POLICIES)}")
    if size is not None and policy not in _SIZES:
        rule = f"a size is for {' and '.join(_SIZES)}"
        _refuse(f"policy_size={size} with policy={policy}", rule, "leave policy_size out, or choose one of these")
    size = _SIZES.get(policy) if size is None else size
    if policy in _SIZES and (size is None or size < 1):
        rule = "it says how many blocks, or parameters, are a unit"
        _refuse(f"policy={policy}, policy_size={size}", rule, "give policy_size >= 1, as policy_size=2")
    values |= {"policy": policy, "policy_size": size}


def technique(values: Mapping[str, Any]) -> Technique:
    """What shares."""
    stage, strategy, shards, name = (values[key] for key in ("zero_stage", "strategy", "shards", "policy"))
    if values["engine"] == "torch" and stage == 1:
        return torch_zero()
    policy = POLICIES[name](values["policy_size"])
    gathered = PRECISIONS[values["precision"]].gathered
    dtype = None if gathered is None else getattr(torch, gathered)
    if values["engine"] == "torch":  # of whole weights it would reduce parts of gradients, but keep whole ones
        return torch_fully_shard(policy, strategy=strategy or "SHARD_GRAD_OP", shards=shards, param_dtype=dtype)
    if stage < 3:
        return zero(stage, policy)
    offload = CPUOffloadPolicy() if values["offload"] else None
    return fully_shard(policy, strategy=strategy, shards=shards, param_dtype=dtype, offload_policy=offload)


def ranks_that_share(values: Mapping[str, Any]) -> tuple[int, int, int]:
    """Over how many ranks weights, gradients and the optimizer's states are shared between steps.

    An expert's over as many: of fewer ranks that have it, each has 1/ep of the experts already.
    """
    stage, ranks = values["zero_stage"], values["dp"] * values["cp"]
    shared = parts_of(values["strategy"], values["shards"], ranks)
    if values["engine"] == "torch" and stage == 2:
        return ranks, ranks, ranks
    weights, gradients, states = (shared if stage >= least else 1 for least in (3, 2, 1))
    return weights, gradients, states


def _refuse(values: str, rule: str, way_out: str) -> None:
    refuse(COMMAND, values, rule, way_out)
