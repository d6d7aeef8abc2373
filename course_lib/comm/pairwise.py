"""Every rank has something for every other: pairs that change in each step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from course_lib.comm.p2p import Port


def all_to_all(outgoing: Sequence[Tensor], incoming: Sequence[Tensor], port: Port) -> None:
    """Send `outgoing[j]` to rank j and receive `incoming[j]` from it. Cost: M - chunk r bytes, p - 1 steps."""
    r, p = port.rank, port.size
    incoming[r].copy_(outgoing[r])
    for step in range(1, p):
        to, source = (r + step) % p, (r - step) % p
        port.exchange(outgoing[to], to, incoming[source], source)


def barrier(port: Port) -> None:
    """Return only when every rank has called: after step k each rank has heard of 2^(k+1) ranks.

    Cost: ceil(log2 p) messages of one byte. Source: Hensgen, Finkel & Manber 1988.
    """
    token, heard = torch.zeros(1, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)
    for k in range((port.size - 1).bit_length()):
        port.exchange(token, (port.rank + 2**k) % port.size, heard, (port.rank - 2**k) % port.size)
