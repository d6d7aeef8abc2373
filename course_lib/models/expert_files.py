"""Experts in the files of Hugging Face: a tensor for each matrix of each expert, where the model has all in one.

A layer of theirs holds its experts' gates and values as one tensor (E, 2F, H), the gates first, and their way back as
another (E, H, F), so that one product serves all of them. `save_pretrained` takes both apart, and `from_pretrained`
puts them together, since the files are older than that.
Source: transformers 5, `conversion_mapping`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

_IN, _OUT = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"  # in the model
_ROUTER = "mlp.gate.weight"


@dataclass(frozen=True, kw_only=True)
class _Spelling:
    """How a family's files call the block, and the three matrices of an expert."""

    block: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


_SPELLINGS = {
    "mixtral": _Spelling(block="block_sparse_moe", gate="w1", up="w3", down="w2"),
    **dict.fromkeys(("qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3"), _Spelling()),
}

Box = tuple[tuple[int, ...], tuple[int, ...]]  # where it begins, and its size


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One tensor of theirs that is a part of one of ours: of this expert, of its rows the `part` out of `parts`."""

    theirs: str
    ours: tuple[str]
    expert: int
    part: int = 0
    parts: int = 1

    def common(self, name: str, shape: Sequence[int], box: Box, numbers: Tensor) -> tuple[Box, Tensor] | None:
        """Where in theirs lies what a box of ours has of it, and these of its numbers; None if it has none.

        Shapes: `shape` is (E, rows, columns), `numbers` as the box; found are two dims, without the expert.
        """
        rows = shape[1] // self.parts
        offsets, sizes = box
        begin, end = (self.expert, self.part * rows, 0), (self.expert + 1, (self.part + 1) * rows, shape[2])
        first = [max(pair) for pair in zip(begin, offsets, strict=True)]
        last = [min(e, offset + size) for e, offset, size in zip(end, offsets, sizes, strict=True)]
        if any(a >= b for a, b in zip(first, last, strict=True)):
            return None
        here = tuple(slice(a - offset, b - offset) for a, b, offset in zip(first, last, offsets, strict=True))
        there = tuple(a - start for a, start in zip(first, begin, strict=True))
        found = numbers[here][0]
        return (there[1:], tuple(found.shape)), found

    def shape_of_theirs(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Of a part of this shape."""
        return shape[1] // self.parts, shape[2]


def name_in_files(model_type: str, name: str) -> str:
    """A tensor of the model that is whole in the files too, by the name that it has there."""
    spelling = _SPELLINGS.get(model_type)
    return name if spelling is None else name.replace(_ROUTER, f"{spelling.block}.gate.weight")


def is_in_pieces(model_type: str, name: str) -> bool:
    """Whether the files have this tensor of a model expert by expert."""
    return model_type in _SPELLINGS and name.endswith((_IN, _OUT))


def pieces(model_type: str, name: str, ours: str, n_experts: int) -> Iterator[Piece]:
    """What the files have of a tensor of all experts: theirs in the model is `name`, and we call it `ours`."""
    spelling = _SPELLINGS[model_type]
    matrices = (spelling.gate, spelling.up) if name.endswith(_IN) else (spelling.down,)
    before = name.removesuffix(_IN).removesuffix(_OUT)
    for expert in range(n_experts):
        for part, matrix in enumerate(matrices):
            theirs = f"{before}{spelling.block}.experts.{expert}.{matrix}.weight"
            yield Piece(theirs=theirs, ours=(ours,), expert=expert, part=part, parts=len(matrices))
