"""Every rank sends every other one as many numbers as it likes, as tokens to experts, or heads against positions."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.comm import guard, pairwise
from course_lib.comm.opening import next_call
from course_lib.comm.p2p import Port
from course_lib.comm.switches import active


def all_to_all_uneven(
    outgoing: Sequence[Tensor], shapes: Sequence[Sequence[int]], *, group: ProcessGroup | None = None
) -> list[Tensor]:
    """Send `outgoing[j]` to rank j; the result is what came from each rank, of the shapes that were expected.

    Both ends know the size of every message: where it follows from the data, ranks send each other counts first.
    Not differentiable. Cost: the bytes of all but this rank's own part, p - 1 steps; what is empty is no message.
    Raises: ValueError, the same on all ranks, if one has not a part for each, or expects another size or dtype than the
        other sends.
    """
    members, call = next_call("all_to_all_uneven", group)
    incoming = [outgoing[0].new_empty(*shape) for shape in shapes]
    if active.guard:
        guard.agree_pairwise("all_to_all_uneven", outgoing, incoming, call, members)
    port = Port(members, operation="all_to_all_uneven", algorithm="pairwise", call=call)
    pairwise.all_to_all([part.contiguous() for part in outgoing], incoming, port)
    return incoming
