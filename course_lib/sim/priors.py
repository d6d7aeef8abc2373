"""Every fitted constant with its physical guess and how far the truth may lie from it, before any run is seen.

A spread is the standard deviation of the logarithm. Rates of matrix products and of attention are shares of the dense
peak; sources of the guesses: stas00/ml-engineering (achievable matmul TFLOP/s, NCCL bus bandwidth, 2026-08), Dao 2023,
FlashAttention-2, section 4, and Shah et al. 2024, FlashAttention-3, section 4.
"""

from __future__ import annotations

_RATE, _LOOSE, _STACK = 0.15, 0.5, 0.15

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
    "tp_exposed.eager": (1.0, 0.1),
    "tp_exposed.compiled": (0.8, 0.2),
    "tp_exposed.megatron": (0.4, 0.3),
    "tp_exposed.legacy": (1.0, 0.1),
    "dp_exposed.eager": (0.25, _LOOSE),
    "dp_exposed.compiled": (0.25, _LOOSE),
    "dp_exposed.megatron": (0.25, _LOOSE),
    "dp_exposed.legacy": (0.3, _LOOSE),
    "microbatch_ms.eager": (2.0, _LOOSE),
    "microbatch_ms.compiled": (2.0, _LOOSE),
    "microbatch_ms.megatron": (2.0, _LOOSE),
    "microbatch_ms.legacy": (2.0, _LOOSE),
    "size_penalty": (0.6, 0.3),
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
    "stack.foundry": (1.0, _STACK),
    "stack.internevo": (1.0, _STACK),
    "stack.maxtext": (1.0, _STACK),
    "stack.megatron 2020": (1.0, _STACK),
    "stack.megatron 2021": (1.0, _STACK),
    "stack.nemo": (1.0, _STACK),
    "stack.torch compiled": (1.0, _STACK),
    "stack.torch eager": (1.0, _STACK),
}
