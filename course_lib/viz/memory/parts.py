"""What fills a GPU, in the colours of where it comes from: forward, backward, optimizer, communication."""

from __future__ import annotations

from collections.abc import Mapping

from course_lib.costs.sweep.assembly import GpuMemory
from course_lib.hardware import Device
from course_lib.viz.ink import style
from course_lib.viz.widgets.controls import Table

WEIGHTS = "#6A4C93"
HEAD = "#1F6F99"  # a darker forward: it must show beside the activations
MEMORY_PARTS = {  # field of GpuMemory -> name, colour
    "weights": ("weights", WEIGHTS),
    "gradients": ("gradients", style.COMPUTE["backward"]),
    "optimizer": ("optimizer", style.COMPUTE["optimizer"]),
    "gathered": ("gathered weights", style.COMMUNICATION),
    "activations": ("activations", style.COMPUTE["forward"]),
    "head": ("head and loss", HEAD),
    "other": ("context and buffers", style.OTHER_COMPUTE),
}


def bytes_table(rows: Mapping[str, GpuMemory], device: Device) -> Table:
    """Each part of each bar in bytes, what they are together, and what the device has."""
    parts = [
        [words, *(f"{getattr(held, part):,}" for held in rows.values())] for part, (words, _) in MEMORY_PARTS.items()
    ]
    together = ["together", *(f"{held.total:,}" for held in rows.values())]
    return [["", *rows], *parts, together, [device.name, *(f"{device.memory_bytes():,}" for _ in rows)]]
