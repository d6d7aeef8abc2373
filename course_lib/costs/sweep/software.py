"""The code that runs a step, as far as time and memory depend on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from course_lib.errors import four_parts

_Kind = Literal["eager", "compiled", "megatron", "legacy"]  # legacy: Megatron-LM before flash attention
_Kernel = Literal["flash1", "flash2", "cudnn", "scores", "naive"]  # the last two write their scores to memory
KINDS: tuple[_Kind, ...] = get_args(_Kind)
KERNELS: tuple[_Kernel, ...] = get_args(_Kernel)
UNKNOWN = "unknown"  # a stack of which only the kind was guessed
DEEPSPEED = "deepspeed"  # its ZeRO-2 and ZeRO-3; of Megatron's with DeepSpeed its ZeRO-1 is no stack of its own
_LOGIT_BYTES = {"eager": 12, "compiled": 12, "megatron": 8, "legacy": 8}  # bf16 and fp32 logits, their gradients
_FUSED_LOGIT_BYTES = 6  # of a loss in one kernel


@dataclass(frozen=True, kw_only=True)
class Software:
    """The stack that runs the step.

    `stack` names one that constants were fitted for, or is UNKNOWN or DEEPSPEED; None: any of this kind, well tuned.
    """

    kind: str = "megatron"
    kernel: str = "cudnn"
    fp8: bool = False
    gradient_bytes: int = 2  # of one number in a reduction over dp
    fused_loss: bool = False  # one kernel makes loss and gradient of bf16 logits
    stack: str | None = None

    def __post_init__(self) -> None:
        for field, value, choices in (("kind", self.kind, KINDS), ("kernel", self.kernel, KERNELS)):
            if value not in choices:
                way_out = f"choose one of {', '.join(choices)}"
                raise ValueError(four_parts("Software", f"{field}={value!r}", "not a known kind", way_out))

    @property
    def timed_kernel(self) -> str:
        """Whose speed is known: no published run writes attention out as a paper does."""
        return "scores" if self.kernel == "naive" else self.kernel

    @property
    def is_torch(self) -> bool:
        """Whether sequence parallelism keeps what it gathers, and a pipeline FSDP's weights: PyTorch's DTensor does."""
        return self.kind in ("eager", "compiled")

    @property
    def fuses_swiglu(self) -> bool:
        """Whether silu(gate) is computed again in backward, within one kernel."""
        return self.kind in ("compiled", "megatron")

    @property
    def logit_bytes(self) -> int:
        """Bytes that the loss makes of each logit."""
        return _FUSED_LOGIT_BYTES if self.fused_loss else _LOGIT_BYTES[self.kind]
