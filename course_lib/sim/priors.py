"""Every fitted constant with its physical guess and how far the truth may lie from it, before any run is seen.

A spread is the standard deviation of the logarithm. Rates of matrix products and of attention are shares of the dense
peak; sources of the guesses: stas00/ml-engineering (achievable matmul TFLOP/s, NCCL bus bandwidth, 2026-08), Dao 2023,
FlashAttention-2, section 4, and Shah et al. 2024, FlashAttention-3, section 4.
"""

from __future__ import annotations

from course_lib.costs.sweep.software import UNKNOWN

_RATE, _LOOSE = 0.15, 0.5
_KINDS = ("eager", "compiled", "megatron", "legacy")
STACKS = (
    "aleph alpha",
    "deepspeed",
    "foundry",
    "internevo",
    "maxtext",
    "megatron 2020",
    "megatron 2021",
    "megatron-deepspeed",
    "nanotron",
    "nemo",
    "torch compiled",
    "torch eager",
)
# What each stack has of its own -> the guess for one that nobody knows, how far that may be off, and how far stacks
# lie from it. A stack with few runs stays near the unknown one, which is like all that are known.
OF_STACKS: dict[str, tuple[float, float, float]] = {
    "stack": (1.0, 0.1, 0.15),  # what multiplies the whole step
    "tp_exposed": (1.0, 0.15, 0.5),
    "dp_exposed": (0.3, 1.0, 1.0),
}

PRIORS: dict[str, tuple[float, float]] = {
    "matmul.V100": (0.75, _RATE),
    "matmul.A100": (0.85, _RATE),
    "matmul.H100": (0.78, _RATE),
    "matmul.Blackwell": (0.72, _RATE),
    "matmul_fp8.H100": (0.68, _RATE),
    "matmul_fp8.Blackwell": (0.62, _RATE),
    "attention.V100": (0.6, _RATE),
    "attention.A100": (0.6, _RATE),
    "attention.H100": (0.4, 0.3),
    "attention.Blackwell": (0.35, 0.3),
    "kernel.flash1": (0.6, _RATE),
    "kernel.flash2": (0.8, _RATE),
    "kernel.cudnn": (1.1, _RATE),
    "kernel.scores": (1.0, _RATE),
    "pointwise.eager": (1.5, 0.3),
    "pointwise.compiled": (1.0, 0.3),
    "pointwise.megatron": (1.2, 0.3),
    "pointwise.legacy": (1.2, 0.3),
    **{f"microbatch_ms.{kind}": (2.0, _LOOSE) for kind in _KINDS},
    **{f"layer_us.{kind}": (400.0, 1.0) for kind in _KINDS},
    **{f"accumulated.{kind}": (8.0, 0.7) for kind in _KINDS},  # bytes: bf16 read, fp32 read and written, and less
    "size_penalty": (0.6, 0.3),
    "odd_width": (1.1, 0.2),
    "odd_head": (3.0, 0.7),
    "plain_norms": (24.0, _LOOSE),
    "attention_knee": (500.0, _LOOSE),
    "small_head": (1.3, 0.2),
    "casts": (2.0, _LOOSE),
    "cp_exposed": (0.2, _LOOSE),
    "pp_exposed": (0.5, _LOOSE),
    "inside": (0.7, _RATE),
    "between": (0.85, _RATE),
    "ring_us": (4.0, _LOOSE),
    "optimizer": (0.8, 0.2),
    "expert_us": (600.0, 0.7),
    "step_ms": (20.0, _LOOSE),
    "node_slowdown": (0.005, _LOOSE),
    **{f"{what}.{UNKNOWN}": (guess, off) for what, (guess, off, _) in OF_STACKS.items()},
    **{f"{what}.{stack}": (guess, apart) for what, (guess, _, apart) in OF_STACKS.items() for stack in STACKS},
}


def drawn_to() -> dict[str, str]:
    """What lies near another constant and not near a guess: all that a stack has of its own."""
    return {f"{what}.{stack}": f"{what}.{UNKNOWN}" for what in OF_STACKS for stack in STACKS}
