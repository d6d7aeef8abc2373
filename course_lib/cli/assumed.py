"""What a command assumes of the code that trains: settings that `plan` and `sweep` share, and what is said of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from course_lib.cli.compose import refuse
from course_lib.cli.settings import Group, Setting, defaults, typed
from course_lib.costs.model.conventions import DTYPE_BYTES, OPTIMIZERS
from course_lib.costs.sweep.assembly import BESIDE_BYTES, FRAGMENTS
from course_lib.costs.sweep.assumptions import ADAPTERS, COMPUTED, FORMATS_OF, SHARED, WORDS
from course_lib.costs.sweep.job import CODES_ARE_WHOLE, OFFLOAD, Job
from course_lib.costs.sweep.software import KERNELS, KINDS
from course_lib.hardware import Device
from course_lib.units import format_bytes

_DTYPES = tuple(DTYPE_BYTES)
ASSUMED = Group(
    "what is assumed of the code that trains; every answer prints what was not given",
    (
        Setting("weights", None, "choice", "their format, in place of the convention's", "01", _DTYPES[:-1]),
        Setting("gradients", None, "choice", "the format that they are added up in", "01", _DTYPES[:-1]),
        Setting("master", None, "choice", "a second copy of the weights, which steps change", "01", _DTYPES),
        Setting("moments", None, "choice", "the format of Adam's two", "01", _DTYPES[:-1]),
        Setting("optimizer", Job.optimizer, "choice", "what it keeps of each parameter", "03", OPTIMIZERS),
        Setting(
            "compute_dtype",
            "bf16",
            "choice",
            "what is gathered and computed in; of the last three products alone",
            "01",
            COMPUTED,
        ),
        Setting("sequence_parallel", None, "choice", "of tp ranks; without it as the stack does", "05", SHARED),
        Setting("stack", Job.software.kind, "choice", "whose code: loss, kernels and buffers", "08", KINDS),
        Setting("kernel", Job.software.kernel, "choice", "attention's", "01", KERNELS),
        Setting("logits", None, "whole", "bytes of each in the loss; without it the stack's", "01"),
        Setting("adapter", None, "choice", "trained beside frozen weights; without it these are", "11", ADAPTERS),
        Setting("rank", None, "positive", "of LoRA's two matrices; without it 8", "11"),
        Setting(
            "loss_chunks", Job.loss_pieces, "positive", "parts of a micro-batch, whose logits are made apart", "11"
        ),
        Setting("offload", Job.offload, "choice", "what lies in the host's memory", "06", OFFLOAD),
    ),
)


def of_code(values: Mapping[str, Any]) -> dict[str, Any]:
    """Of a command's values those that say what is assumed, where they are not as they would be anyway."""
    usual = defaults([ASSUMED])
    return {name: values[name] for name in WORDS if values[name] != usual.get(name)}


def check_codes(command: str, values: dict[str, Any], given: Collection[str]) -> None:
    """Look for no ranks along tp where frozen weights lie in codes.

    Raises: ValueError if some are asked for.
    """
    if values["adapter"] != "qlora":
        return
    if "tp" in given and values["tp"] not in (1, [1]):
        given_tp = f"adapter=qlora with tp={typed(values['tp'])}"
        refuse(command, given_tp, CODES_ARE_WHOLE, "choose adapter=lora, or tp=1")
    values["tp"] = [1]


def assumed_line(job: Job, device: Device, given: Collection[str], *, names: Mapping[str, str] | None = None) -> str:
    """Everything that the answer rests on and nobody gave; `names` are those of another command's settings."""
    known = {*given, *(("convention",) if {*FORMATS_OF} & {*given} else ())}
    called = names or {}
    said = [f"{called.get(key, key)}={value}" for key, value in job.assumptions.items() if key not in known]
    beside = f"{format_bytes(BESIDE_BYTES)} of context and buffers, {FRAGMENTS:.0%} lost between tensors"
    room = f"a program can use {device.usable_in_words}"
    return f"assumed, for it was not given: {'; '.join([*said, beside, room])}"
