"""Models that are built on PyTorch's meta device: names and shapes without numbers, which come when they are cut.

with torch.device("meta"): model = Decoder(config)  # in no memory, however large

Then one parameter after the other gets its numbers, is cut, and let go of: no rank ever holds the whole model.
Source: Zhao et al. 2023, PyTorch FSDP, section 4.1 (deferred initialisation).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib import comm
from course_lib.comm.call import device_of
from course_lib.errors import four_parts
from course_lib.parallel.agreement import listing
from course_lib.parallel.flat_row import FlatRow, Sharing

Init = Callable[[str, Tensor], object]  # fills a whole tensor in place, by its name in the model


def on_meta(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers without numbers; what is tied has its first name."""
    return {name: x for name, x in chain(model.named_parameters(), model.named_buffers()) if x.is_meta}


def check(operation: str, model: nn.Module, init: Init | None) -> None:
    """Raise the four-part error if something is on meta and no `init` says what its numbers are."""
    if init is None and (absent := on_meta(model)):
        rule, way_out = (
            "what has no numbers cannot be trained",
            "apply fully_shard(init=…), or build the model off meta",
        )
        raise ValueError(four_parts(operation, f"on meta: {listing(list(absent))}", rule, way_out))


@torch.no_grad()
def give_numbers(absent: dict[str, Tensor], rows: Iterable[FlatRow], sharing: Sharing, init: Init) -> None:
    """Let `init` fill the tensors, in the model's order whatever the units; the first rank's are everybody's.

    A buffer stays whole. Cost: a broadcast of each tensor. Memory: the pieces and two copies of one tensor.
    Raises: ValueError, the same on all ranks, for a tensor in which numbers are missing.
    """
    row_of = {name: row for row in rows for name in row.names}
    first = dist.get_process_group_ranks(sharing.everyone)[0]
    for name, x in absent.items():
        row = row_of.get(name)
        shape = x.shape if row is None else row.shapes[row.names.index(name)]
        numbers = torch.empty(shape, dtype=x.dtype, device=device_of(sharing.everyone))
        if x.is_floating_point():
            numbers.fill_(torch.nan)
        init(name, numbers)
        numbers = comm.broadcast(numbers, src=first, group=sharing.everyone)
        if numbers.isnan().any():
            rule = "init fills every tensor that is on meta, norms and buffers too"
            raise ValueError(four_parts("fully_shard", f"init leaves {name} without numbers", rule, "give it a rule"))
        if row is None:
            torch.utils.swap_tensors(x, numbers)
        else:
            row.put(name, numbers)
