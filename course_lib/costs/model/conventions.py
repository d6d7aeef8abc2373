"""Bytes per parameter that weights, gradients and Adam take: who counts what.

They all describe training with Adam; what differs is the number format, and what is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from course_lib.errors import four_parts

DTYPE_BYTES: dict[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "none": 0}
OPTIMIZERS = ("adamw", "adamw8bit", "sgd")
BLOCK = 256  # moments of 8 bits that share one scale in fp32


@dataclass(frozen=True, kw_only=True)
class Convention:
    """Bytes of each parameter's lasting state.

    `optimizer` holds what a step alone reads: Adam's two moments, the fp32 weights of mixed precision, and an
    fp32 copy of the gradients where there is one.
    """

    name: str
    weights: int
    gradients: int
    optimizer: int
    assumes: str
    source: str
    moments: int = 8  # what of `optimizer` is Adam's two moments
    scales: int = 0  # bytes beside them for each BLOCK parameters

    @property
    def bytes_per_parameter(self) -> int:
        """All of it but scales, on one device."""
        return self.weights + self.gradients + self.optimizer


_MEGATRON = "Megatron Core developer guide, Distributed Optimizer; read 2026-11"
_ALL = (
    Convention(
        name="half",
        weights=2,
        gradients=2,
        optimizer=4,
        moments=4,
        assumes="everything in 16 bits, the moments too: small updates are rounded away",
        source="K. Yuan 2024, talk on distributed training for LLM, 2(4 Phi)",
    ),
    Convention(
        name="workshop",
        weights=2,
        gradients=0,
        optimizer=12,
        assumes="bf16 weights, fp32 weights and moments; gradients are forgotten",
        source="Kempner Institute 2024-10, workshop on distributed training, 14 P",
    ),
    Convention(
        name="zero",
        weights=2,
        gradients=2,
        optimizer=12,
        assumes="16-bit weights and gradients, fp32 weights and moments (K = 12)",
        source="Rajbhandari et al. 2020, ZeRO, section 3.1",
    ),
    Convention(
        name="fp32",
        weights=4,
        gradients=4,
        optimizer=8,
        assumes="fp32 throughout; also FSDP2, whose bf16 weights live but for a moment",
        source="PyTorch, torch.distributed.fsdp.fully_shard with MixedPrecisionPolicy(param_dtype=torch.bfloat16)",
    ),
    Convention(
        name="megatron",
        weights=2,
        gradients=4,
        optimizer=12,
        assumes="bf16 weights, gradients summed in fp32, fp32 weights and moments",
        source=f"{_MEGATRON}: 18, and 6 + 12/d with the optimizer sharded",
    ),
    Convention(
        name="megatron-fp16",
        weights=2,
        gradients=2,
        optimizer=16,
        assumes="fp16 weights and gradients, fp32 copies of both, fp32 moments",
        source=f"{_MEGATRON}: 20, and 4 + 16/d with the optimizer sharded",
    ),
    Convention(
        name="fp8-lm",
        weights=2,
        gradients=1,
        optimizer=3,
        moments=3,
        assumes="fp16 weights with scales, fp8 gradients, fp8 first and fp16 second moment",
        source="Peng et al. 2023, FP8-LM, section 2.2, equation 8: 6 bytes instead of 16; MS-AMP manual, level O2",
    ),
)
CONVENTIONS = {convention.name: convention for convention in _ALL}


def find_convention(name: str) -> Convention:
    """The convention called `name`.

    Raises: ValueError for an unknown name.
    """
    if name not in CONVENTIONS:
        way_out = f"choose one of {', '.join(CONVENTIONS)}"
        raise ValueError(four_parts("find_convention", f"name={name!r}", "nobody counts so", way_out))
    return CONVENTIONS[name]


def convention_in(*, weights: str, gradients: str, master: str, moments: str) -> Convention:
    """The convention of these formats; `master` is a second copy of the weights that a step changes, or "none".

    Raises: ValueError for a format that has no bytes here.
    """
    given = {"weights": weights, "gradients": gradients, "master": master, "moments": moments}
    for name, dtype in given.items():
        if dtype not in DTYPE_BYTES or (dtype == "none" and name != "master"):
            known = ", ".join(one for one in DTYPE_BYTES if one != "none" or name == "master")
            raise ValueError(four_parts("convention_in", f"{name}={dtype!r}", "not a format", f"choose one of {known}"))
    copy = "no second copy of the weights" if master == "none" else f"a copy of the weights in {master}"
    return Convention(
        name="own",
        weights=DTYPE_BYTES[weights],
        gradients=DTYPE_BYTES[gradients],
        optimizer=DTYPE_BYTES[master] + 2 * DTYPE_BYTES[moments],
        moments=2 * DTYPE_BYTES[moments],
        assumes=f"weights in {weights}, gradients in {gradients}, moments in {moments}, {copy}",
        source="as given",
    )


def with_optimizer(convention: Convention, optimizer: str) -> Convention:
    """The same with another optimizer than Adam: "sgd" keeps no moments, "adamw8bit" two of a byte with a scale each.

    Source: Dettmers et al. 2022, 8-bit Optimizers via Block-wise Quantization, section 2; blocks of 256 as in
    bitsandbytes since 0.44. Small tensors, which stay in 32 bits there, are not told apart.
    Raises: ValueError for an unknown optimizer.
    """
    if optimizer not in OPTIMIZERS:
        way_out = f"choose one of {', '.join(OPTIMIZERS)}"
        raise ValueError(four_parts("with_optimizer", f"optimizer={optimizer!r}", "its states are not known", way_out))
    if optimizer == "adamw":
        return convention
    moments, scales = (2, 2 * DTYPE_BYTES["fp32"]) if optimizer == "adamw8bit" else (0, 0)
    rest = convention.optimizer - convention.moments
    assumes = f"{convention.assumes}; {'moments in 8 bits' if moments else 'no moments'}"
    return replace(convention, optimizer=rest + moments, moments=moments, scales=scales, assumes=assumes)
