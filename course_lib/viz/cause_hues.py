"""The colours of a step's causes: violet computes, slate sends, as everywhere."""

from __future__ import annotations

from course_lib.viz import style

CAUSE_HUES = {
    "matmul": style.OTHER_COMPUTE,
    "attention": "#8F7CC0",
    "pointwise": "#DCD3EF",
    "recompute": "#5B4A8A",
    "tp": style.COMMUNICATION,
    "cp": "#5F7C93",
    "ep": "#86A0B4",
    "dp": "#1F2E3A",
    "transfer": "#AFC1CE",
    "bubble": style.IDLE,
    "optimizer": style.COMPUTE["optimizer"],
    "offload": "#B9AE2C",
    "fixed": "#E9DFD2",
}
