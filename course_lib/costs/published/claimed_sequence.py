"""A thesis' result by formula: Llama 3 70B trained on two nodes of four V100, and how long its sequences could be.

It says: FSDP x TP with CPU offload and checkpointing on 2 nodes x 4 GPUs x 32 GB, sequences of at most about 5,200
tokens, almost 2 times as long as with FSDP alone. It names neither the optimizer's precision nor that of the numbers,
nor what attention and loss keep, and all of them decide. So each assumption is a row here; the claim lies between the
last two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from course_lib.config import ModelConfig, load_model
from course_lib.costs.model.conventions import CONVENTIONS, Convention, find_convention
from course_lib.costs.model.longest_sequence import Longest, Room, longest_sequence, most_bytes_per_parameter
from course_lib.costs.model.parameters import model_parameters
from course_lib.costs.model.two_axes import TwoAxes
from course_lib.hardware import load_cluster
from course_lib.units import GB

CLAIMED_SEQUENCE, CLAIMED_FACTOR = 5_200, 2
_NODES, _CLUSTER = 2, load_cluster("puhti_v100")
_GPUS_PER_NODE = _CLUSTER.gpus_per_node
HOST_BYTES = _NODES * 384 * GB  # CSC, user guide, Technical details about Puhti: a GPU node's memory
_RESERVED = 2 * GB  # an assumption: CUDA's context, NCCL's rooms, gaps between tensors
# Of each score plain attention has at once a probability in fp32, its copy where numbers have 16 bits, and in backward
# two gradients in fp32.
_SCORE_BYTES = {2: 4 + 2 + 4 + 4, 4: 4 + 4 + 4}
_MORE = (
    Convention(
        name="Adam, 16-bit weights and gradients, fp32 moments",
        weights=2,
        gradients=2,
        optimizer=8,
        assumes="no fp32 copy of the weights: small updates are rounded away",
        source="PyTorch, torch.optim.AdamW with moments cast to fp32",
    ),
    Convention(
        name="Adam, fp32 weights and gradients, moments of one byte",
        weights=4,
        gradients=4,
        optimizer=2,
        assumes="moments quantised in blocks",
        source="Dettmers et al. 2022, 8-bit Optimizers via Block-wise Quantization",
    ),
)


@dataclass(frozen=True, kw_only=True)
class HostRow:
    """Whether weights, gradients and an optimizer's states fit into the two hosts, where offload puts them."""

    convention: Convention
    nbytes: int
    fits: bool


@dataclass(frozen=True, kw_only=True)
class ClaimRow:
    """The longest sequence under some assumptions, with FSDP alone and with FSDP between nodes, TP inside."""

    assumes: str
    alone: Longest
    both: Longest

    @property
    def factor(self) -> float:
        """How much longer with both."""
        return self.both.sequence / self.alone.sequence


def claimed_model() -> ModelConfig:
    """Of Llama 3's shape, which 3.1 kept."""
    return load_model("llama3_1_70b")


def host_rows() -> tuple[HostRow, ...]:
    """Which precision of the optimizer makes the claim possible at all, from the least bytes to the most."""
    config = claimed_model()
    known = sorted([*CONVENTIONS.values(), *_MORE], key=lambda convention: convention.bytes_per_parameter)
    most = most_bytes_per_parameter(config, _room(_RESERVED))
    return tuple(
        HostRow(
            convention=convention,
            nbytes=convention.bytes_per_parameter * model_parameters(config),
            fits=convention.bytes_per_parameter <= most,
        )
        for convention in known
    )


def claim_rows(reserved: int = _RESERVED) -> tuple[ClaimRow, ...]:
    """The longest sequences, from all that PyTorch offers today to what a script of 2024 may have done.

    `reserved` are bytes of each device that nobody counts.
    """
    config, room = claimed_model(), _room(reserved)
    return tuple(
        ClaimRow(
            assumes=assumes,
            alone=longest_sequence(config, replace(run, dp=_NODES * _GPUS_PER_NODE, tp=1), room),
            both=longest_sequence(config, run, room),
        )
        for assumes, run in _assumptions()
    )


def _room(reserved: int) -> Room:
    return Room(device=_CLUSTER.device.memory_bytes(), reserved=reserved, hosts=HOST_BYTES)


def _assumptions() -> Iterator[tuple[str, TwoAxes]]:
    """V100 has no FlashAttention-2; a memory-efficient kernel keeps no scores there either, plain attention does."""
    best = TwoAxes(
        dp=_NODES, tp=_GPUS_PER_NODE, states=find_convention("half"), checkpointing=True, offload=True, reducing=2
    )
    yield "16-bit numbers, no scores, the tp ranks share sequence and logits", best
    yield "the same, logits whole on every rank", replace(best, loss_parallel=False)
    plain = replace(best, loss_parallel=False, sequence_parallel=False)
    yield "the same, and what lies between the blocks", plain
    yield "the same, scores kept (14 bytes each)", replace(plain, score_bytes=_SCORE_BYTES[2])
    wide = replace(plain, states=_MORE[1], computing=4, reducing=4)  # a V100 has no bf16 of its own
    yield "fp32 numbers, no scores", wide
    yield "the same, the model's output holds the logits", replace(wide, logit_copies=1)  # as transformers' does
    alone = replace(wide, logit_copies=1, overlap=False)
    yield "the same, a block gathers and reduces before the next", alone
    yield "the same, scores kept (12 bytes each)", replace(alone, score_bytes=_SCORE_BYTES[4])
