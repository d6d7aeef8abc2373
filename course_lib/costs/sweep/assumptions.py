"""What is assumed of the code that trains, said in words: the same for command lines and for rows of a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from course_lib.costs.model.adapters import IA3, Adapters
from course_lib.costs.model.conventions import OPTIMIZERS, Convention, convention_in, find_convention
from course_lib.costs.sweep.job import FORMATS, FP8, OFFLOAD
from course_lib.costs.sweep.software import KERNELS, KINDS, Software
from course_lib.errors import four_parts

FORMATS_OF = {"weights": "bf16", "gradients": "fp32", "master": "fp32", "moments": "fp32"}  # with one given, the others
ADAPTERS = ("lora", "ia3", "qlora")
COMPUTED = (*FORMATS, FP8)
SHARED = ("keep", "regather", "none")
_CHOICES = {
    "optimizer": OPTIMIZERS,
    "compute_dtype": COMPUTED,
    "sequence_parallel": SHARED,
    "stack": KINDS,
    "kernel": KERNELS,
    "offload": OFFLOAD,
    "adapter": ADAPTERS,
}
_OF_SOFTWARE = {"stack": "kind", "kernel": "kernel"}  # word -> field
_COUNTS = ("logits", "rank", "loss_chunks")
WORDS = ("convention", *FORMATS_OF, *_CHOICES, *_COUNTS)


def job_fields(said: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a job that these words decide; what is None, or not there, is not said.

    Raises: ValueError for a word that is not known, or a value that it does not have.
    """
    words = {name: value for name, value in said.items() if value is not None}
    _check(words)
    found: dict[str, Any] = {name: words[name] for name in ("optimizer", "offload") if name in words}
    if formats := {name: words[name] for name in FORMATS_OF if name in words}:
        found["convention"] = convention_in(**{**FORMATS_OF, **formats})
    elif "convention" in words:
        found["convention"] = words["convention"]
    if "compute_dtype" in words:
        found["itemsize"], found["products"] = FORMATS.get(words["compute_dtype"], FORMATS["bf16"])
    if "adapter" in words:
        found |= adapter_fields(words["adapter"], words.get("rank"))
    if "loss_chunks" in words:
        found["loss_pieces"] = words["loss_chunks"]
    if "logits" in words:
        found["logit_bytes"] = words["logits"]
    if words.get("sequence_parallel") in ("keep", "regather"):
        found["keep_gathered"] = words["sequence_parallel"] == "keep"
    software: dict[str, Any] = {field: words[name] for name, field in _OF_SOFTWARE.items() if name in words}
    if words.get("compute_dtype") == FP8:
        software["fp8"] = True
    return found | ({"software": Software(**software)} if software else {})


def adapter_fields(adapter: str, rank: int | None) -> dict[str, Any]:
    """The fields of a job that trains so, at the usual rank where nobody says another."""
    return {"adapters": IA3 if adapter == "ia3" else Adapters(rank=rank or Adapters.rank), "nf4": adapter == "qlora"}


def _check(words: Mapping[str, Any]) -> None:
    for name, value in words.items():
        if name not in WORDS:
            way_out = f"choose from {', '.join(WORDS)}"
            raise ValueError(four_parts("job", f"{name}={value!r}", "nothing is assumed under that name", way_out))
        if name in _CHOICES and value not in _CHOICES[name]:
            way_out = f"choose one of {', '.join(_CHOICES[name])}"
            raise ValueError(four_parts("job", f"{name}={value!r}", "not a known kind", way_out))
        if name in _COUNTS and (type(value) is not int or value < 1):
            raise ValueError(four_parts("job", f"{name}={value!r}", "it is a whole number", f"give {name} >= 1"))
    if "rank" in words and words.get("adapter") not in ("lora", "qlora"):
        values, rule = f"rank={words['rank']}", "it is the width between the two matrices of LoRA"
        raise ValueError(four_parts("job", values, rule, "give adapter=lora or qlora, or leave rank out"))
    if isinstance(named := words.get("convention"), str):
        find_convention(named)
    assert named is None or isinstance(named, str | Convention)
