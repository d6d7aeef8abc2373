"""How large the messages of real training are: the tensors that one decoder layer sends."""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.config import ModelConfig
from course_lib.costs.model.parameters import layer_parameters
from course_lib.errors import four_parts
from course_lib.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class Message:
    """One row of the table: who sends what, by which operation."""

    technique: str
    operation: str
    tensor: str
    elements: int
    itemsize: int

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.elements * self.itemsize

    def __str__(self) -> str:
        return (
            f"{self.technique:<17} {self.operation:<15} {self.tensor:<25} "
            f"{self.elements:>13,} {format_bytes(self.nbytes):>12}"
        )


def layer_messages(config: ModelConfig, *, batch: int, sequence: int, itemsize: int) -> tuple[Message, ...]:
    """Whole tensors that one decoder layer sends under each technique.

    Shapes: activations (B, S, H), with B the sequences of one rank's (micro)batch.
    Raises: ValueError for a size below 1.
    """
    for name, size in (("batch", batch), ("sequence", sequence), ("itemsize", itemsize)):
        if size < 1:
            rule = f"{name} is positive"
            raise ValueError(four_parts("layer_messages", f"{name}={size}", rule, f"give {name} >= 1"))
    weights, activations = layer_parameters(config), batch * sequence * config.hidden_size
    rows = (
        ("DDP", "all_reduce", "gradients of one layer", weights),
        ("FSDP", "all_gather", "parameters of one layer", weights),
        ("FSDP", "reduce_scatter", "gradients of one layer", weights),
        ("tensor parallel", "all_reduce", "activations (B, S, H)", activations),
        ("pipeline parallel", "send", "activations at the cut", activations),
    )
    return tuple(
        Message(technique=technique, operation=operation, tensor=tensor, elements=elements, itemsize=itemsize)
        for technique, operation, tensor, elements in rows
    )
