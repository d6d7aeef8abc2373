"""The colours of a step's causes, few enough for a key: violet computes, slate and teal send, light grey is idle."""

from __future__ import annotations

from course_lib.viz.ink import style

CAUSE_GROUPS = {  # by their name in a key: a hue, and the causes that have it
    "the model's own work": (style.OTHER_COMPUTE, ("matmul", "attention", "pointwise")),
    "recomputation": ("#5B4A8A", ("recompute",)),
    "messages along tp": (style.COMMUNICATION, ("tp",)),
    "messages along cp": ("#4F9DA6", ("cp",)),
    "messages along ep": ("#2F6F77", ("ep",)),
    "messages along dp": ("#6C8BA3", ("dp",)),
    "bubble": (style.IDLE, ("bubble",)),
    "host, stragglers, the rest": ("#E9DFD2", ("launch", "transfer", "optimizer", "offload", "fixed")),
}
CAUSE_HUES = {cause: hue for hue, causes in CAUSE_GROUPS.values() for cause in causes}
