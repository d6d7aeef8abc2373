"""What fills a GPU, in the colours of where it comes from: forward, backward, optimizer, communication."""

from __future__ import annotations

from course_lib.viz import style

WEIGHTS = "#6A4C93"
MEMORY_PARTS = {  # field of GpuMemory -> name, colour
    "weights": ("weights", WEIGHTS),
    "gradients": ("gradients", style.COMPUTE["backward"]),
    "optimizer": ("optimizer", style.COMPUTE["optimizer"]),
    "gathered": ("gathered weights", style.COMMUNICATION),
    "activations": ("activations", style.COMPUTE["forward"]),
    "head": ("head and loss", style.tint(style.COMPUTE["forward"], 0.45)),
}
