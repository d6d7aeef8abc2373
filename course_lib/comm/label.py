"""The label that travels ahead of a learner's message, so that two sides who disagree get an error.

On the wire a message is bare bytes: a longer one than expected aborts the receiver, a shorter one leaves garbage, and
a dtype is read as another. So with the guard on, `comm.isend` first sends length and dtype, outside the ledger; a
message travels under a tag made from them, and can only be received by who expects the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib.errors import four_parts

_DTYPE_NAME_BYTES = 16  # the longest name of a dtype today has 15


def of(x: Tensor, device: torch.device) -> Tensor:
    """Number of elements and name of the dtype, always of the same size, on the device that carries messages."""
    name = str(x.dtype).removeprefix("torch.").encode().ljust(_DTYPE_NAME_BYTES)
    return torch.tensor([x.numel(), *name], device=device)


def text(label: Tensor) -> str:
    """What a label says, for example "12 of float32"."""
    numel, *name = label.tolist()
    return f"{numel} of {bytes(name).decode().strip()}"


def mismatch(sent: Tensor, expected: Tensor, sender: int, receiver: int) -> str:
    """The error of a receiver that has room for another message than the one under way."""
    return four_parts(
        "recv",
        f"rank {sender} sends {text(sent)}, rank {receiver} expects {text(expected)}",
        "both sides of a message name the same length and dtype",
        "receive into a tensor like the one that is sent",
    )
