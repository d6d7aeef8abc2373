"""What the words of a published run say about its software, sharding and recompute."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from course_lib.costs.model.conventions import Convention
from course_lib.costs.sweep.software import DEEPSPEED, UNKNOWN, Software

# words in a run's text -> stack, kind, attention kernel; the first match wins
_STACKS: tuple[tuple[tuple[str, ...], str, str, str], ...] = (
    (("maxtext", "jax"), "maxtext", "compiled", "cudnn"),
    (("internevo", "internlm/"), "internevo", "eager", "flash2"),
    (("foundry", "composer"), "foundry", "eager", "flash2"),
    (("aleph-alpha", "aleph alpha"), "aleph alpha", "megatron", "flash2"),
    (("nanotron",), "nanotron", "eager", "flash2"),
    (
        ("nemo", "dgx cloud", "dgxc", "megatron core", "megatron-core", "mcore", "megatron-moe", "mlperf", "mlcommons"),
        "nemo",
        "megatron",
        "cudnn",
    ),
)
_BEFORE_FLASH = re.compile(  # Megatron has flash attention since 2023
    r"megatron-lm readme|sc21|bigscience|activation recomputation in large|fp16|"
    r"\b20(19|20|21|22)\b|arxiv\W{0,2}(19|20|21|22)\d\d\."
)
_OLD_MEGATRONS = (
    (re.compile("bigscience|deepspeed|megatron-turing"), "megatron-deepspeed"),
    (re.compile("2020"), "megatron 2020"),
    (re.compile(""), "megatron 2021"),
)
_KERNELS = (  # what a run says of its attention kernel, which counts more than its stack's usual one
    (re.compile(r"flash[ _-]?attention[ _-]?v?[23](?!\d)|\bfa[23]\b"), "flash2"),
    (re.compile(r"flash[ _-]?attention[ _-]?v?1"), "flash1"),
    (re.compile(r"kernel: (fused|torch)\b"), "scores"),  # Megatron's soft-max in one kernel, and PyTorch's: scores stay
)
_TORCH = ("torch", "fms", "fsdp2")
_EAGER = ("accelerate", "transformers", "lightning", "axolotl", "colossal")
_NOT_COMPILED = ("without compile", "no compile", "not compiled", "eager")
_FUSED_LOSS = ("foundry", "internevo")
_PLAIN_NORMS = ("aleph alpha",)  # stacks whose norms are in Python, unless a run says "RMS kernel"
_WHOLE_LOGITS = (UNKNOWN, "aleph alpha")  # stacks whose loss is not known to be shared along tp, or known not to be
_PARTS = (  # of a layer, that Megatron recomputes by name -> how much work that is; the first match wins
    (re.compile("attn|attention"), "attention"),
    (re.compile(r"\bmoe\b|mlp"), "half"),
    (re.compile("norm|act"), "none"),  # next to nothing
)
_GRADIENTS_FP32 = ("mode default", "torchtitan", "fp32 reduce;", "ddp, fp32")
_DEEPSPEED_BF16 = Convention(
    name="deepspeed-bf16",
    weights=2,
    gradients=6,
    optimizer=12,
    assumes="bf16 weights, bf16 gradients beside their fp32 sums, fp32 weights and moments",
    source="DeepSpeed 0.6, deepspeed/runtime/bf16_optimizer.py",
)
_UNKNOWN_FORMATS = ("int8", "int4", "tf32")


@dataclass(frozen=True, kw_only=True)
class Words:
    """What was read from a run's text, and what it does not say and is assumed."""

    software: Software
    zero_stage: int
    shards: int | None  # None: all ranks that hold the same weights
    recompute: str | None  # None: not stated
    sequence_parallel: bool
    plain_norms: bool  # written in Python, in many kernels
    whole_logits: bool  # each of the ranks that share the head makes all of them for its loss
    four_bits: bool  # products of 4 bits, where `software` says FP8
    convention: str | Convention  # of `costs`: bytes of weights, gradients and Adam's states
    assumed: tuple[str, ...]


def words_of(row: Any, *, generation: str, tp: int) -> Words:
    """Read the free text of a row: its source, precision, sharding, recompute and notes."""
    assumed: list[str] = []
    parallel = row.get("parallel") or {}
    software = _software(row, generation, tp, assumed)
    recompute = _recompute(str(row.get("recompute") or "not stated").lower(), software)
    zero, shards = _sharding(str(parallel.get("sharding") or "").lower(), software, assumed)
    cut = parallel.get("sp")
    if not isinstance(cut, bool):
        cut = tp > 1 and software.kind in ("eager", "compiled")
        assumed += [f"sequence parallelism {'on' if cut else 'off'}"] if tp > 1 else []
    return Words(
        software=software,
        zero_stage=zero,
        shards=shards,
        recompute=recompute,
        sequence_parallel=cut,
        plain_norms=software.stack in _PLAIN_NORMS and "rms kernel" not in str(row.get("notes") or "").lower(),
        whole_logits=software.kind == "megatron" and software.stack in _WHOLE_LOGITS,
        four_bits="fp4" in _precision(row),
        convention=_convention(_text(row), software, zero),
        assumed=tuple(assumed),
    )


def _text(row: Any) -> str:
    source = row.get("source") or {}
    parts = [*source.values()] if isinstance(source, dict) else [source]
    parallel = row.get("parallel") or {}
    notes = re.sub(r"kernel: \w+", "", str(row.get("notes") or ""))  # a kernel's name is no stack's
    more = (row.get("source_key"), row.get("precision"), notes, parallel.get("sharding"), row.get("stack"))
    return " ".join(str(part) for part in (*parts, *more) if part).lower()


def _precision(row: Any) -> str:
    return str(row.get("precision") or "").lower()


def _software(row: Any, generation: str, tp: int, assumed: list[str]) -> Software:
    """The stack by its name; else torch with or without compile, Megatron before flash attention, or unknown."""
    text, precision = _text(row), _precision(row)
    if precision.strip() in ("fp32", "float32") or any(word in precision for word in _UNKNOWN_FORMATS):
        raise ValueError(f"no constants for the number format {precision!r}")
    kind, kernel, stack = _kind(row, text, precision, generation, tp, assumed)
    notes = str(row.get("notes") or "").lower()
    said = next((name for words, name in _KERNELS if words.search(notes)), kernel)
    return Software(
        kind=kind,
        kernel=said,
        fp8=any(word in precision for word in ("fp8", "float8", "fp4")),
        gradient_bytes=4 if any(word in text for word in _GRADIENTS_FP32) else 2,
        fused_loss=stack in _FUSED_LOSS,
        stack=stack,
    )


def _kind(row: Any, text: str, precision: str, generation: str, tp: int, assumed: list[str]) -> tuple[str, str, str]:
    """Kind, attention kernel, and the name of a stack that constants are fitted for."""
    new = generation not in ("V100", "A100")
    for words, stack, kind, kernel in _STACKS:
        if any(word in text for word in words):
            return kind, kernel if new or kernel != "cudnn" else "flash2", stack
    if "megatron" in text or "activation recomputation" in text or "bigscience" in text:
        if not new and _BEFORE_FLASH.search(text):
            return "legacy", "scores", next(stack for words, stack in _OLD_MEGATRONS if words.search(text))
        return "megatron", "cudnn" if new else "flash2", UNKNOWN
    said = f"{precision} {row.get('notes') or ''}".lower()
    compiled = "compile" in said and not any(word in said for word in _NOT_COMPILED)
    if any(word in text for word in _TORCH):
        return ("compiled", "flash2", "torch compiled") if compiled else ("eager", "flash2", "torch eager")
    if "deepspeed" in text and _gathers_weights(row, tp):
        return "compiled" if compiled else "eager", "flash2", DEEPSPEED
    if any(word in text for word in _EAGER) or _gathers_weights(row, tp):
        assumed.append("an unknown software stack, taken as torch's kind")
        return "compiled" if compiled else "eager", "flash2", UNKNOWN
    assumed.append("an unknown software stack that gathers no weights, taken as Megatron's kind")
    return "megatron", "cudnn" if new else "flash2", UNKNOWN


def _gathers_weights(row: Any, tp: int) -> bool:
    """Whether it shards as torch's stacks do, whose pipelines are few.

    Its tp is not asked: one stack runs a sweep's layouts with and without. A run that says nothing and has neither tp
    nor a pipeline is FSDP's more often than Megatron's.
    """
    parallel = row.get("parallel") or {}
    sharding = str(parallel.get("sharding") or "").lower()
    if (parallel.get("pp") or 1) > 1:
        return False
    if sharding:
        return any(word in sharding for word in ("zero-2", "zero-3", "shard", "fsdp", "hsdp"))
    return tp == 1


def _recompute(text: str, software: Software) -> str | None:
    if "not stated" in text or text in ("unknown", "n/a"):
        return None
    if "full" in text or text in ("true", "yes"):
        return "layers"
    if "selective" not in text:
        return "none"
    if software.kind in ("megatron", "legacy"):
        return next((work for words, work in _PARTS if words.search(text.partition("(")[2])), "attention")
    if "op" in text.replace("optimizer", ""):
        return "operators"
    return "attention" if "attention" in text else "half"


def _sharding(text: str, software: Software, assumed: list[str]) -> tuple[int, int | None]:
    """ZeRO stage, and over how many ranks where these are not all."""
    found = re.search(r"within (\d+)|fsdp (\d+) x", text)
    shards = int(next(group for group in found.groups() if group)) if found else None
    if "hybrid_shard" in text or "hsdp" in text:
        shards = shards or 8
    stages = (("zero-3", "full_shard", "hybrid_shard", "fsdp2"), 3), (("zero-2", "shard_grad_op"), 2)
    for words, stage in (*stages, (("zero-1", "distributed optimizer"), 1), (("fsdp",), 3)):
        if any(word in text for word in words):
            return stage, shards
    if text:
        return 0, None
    stage = 1 if software.kind == "megatron" else 0 if software.kind == "legacy" else 3
    assumed.append(f"ZeRO-{stage}" if stage else "no sharding of states")
    return stage, None


def _convention(text: str, software: Software, zero: int) -> str | Convention:
    """How the stack keeps its states: FSDP in fp32 shards, unless all of it is bf16; NeMo adds gradients up in bf16."""
    if "mode pure" in text:
        return "half"
    if "bigscience" in text or "deepspeed" in text:
        return _DEEPSPEED_BF16 if "fp32 grad" in text or "bf16 optimizer" in text else "megatron-fp16"
    if software.kind in ("eager", "compiled") and zero >= 2:
        return "fp32"
    return {"legacy": "megatron-fp16", "megatron": "zero"}.get(software.kind, "megatron")
