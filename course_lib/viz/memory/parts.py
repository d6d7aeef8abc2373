"""What fills a GPU, in the colours of where it comes from: forward, backward, optimizer, communication."""

from __future__ import annotations

from course_lib.viz.ink import style

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
