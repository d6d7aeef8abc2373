"""What a number that goes round costs."""

from __future__ import annotations

from course_lib.costs.comm.toy import toy_bytes

from course_lib.viz.ink import sheet
from course_lib.viz.ink.picture import Picture


@sheet.course_style()
def plot_toy(world_size: int = 4) -> Picture:
    """The bytes in words."""
    title = f"Once round {world_size} ranks: {toy_bytes(world_size)} bytes"
    figure, _ = sheet.new_page(1.6, title, "each rank sends one number")
    return Picture(figure, title=title, description="a number goes round")
