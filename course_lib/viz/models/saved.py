"""What autograd keeps of a layer between forward and backward: a bar for each tensor, the longest first."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.costs.model.activations import Saved
from course_lib.errors import four_parts
from course_lib.units import format_bytes
from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.picture import Picture
from course_lib.viz.memory.parts import MEMORY_PARTS

_NAMES, _STEP, _BAR, _SUM = 3.4, 0.32, 0.21, 1.1  # inches: names, from one bar to the next, a bar, bytes
_SMALL = 0.02  # of the longest: what is shorter is drawn together
_MOST = 20


@sheet.course_style()
def plot_saved(tensors: Sequence[Saved], *, title: str = "What backward needs of one layer") -> Picture:
    """Bytes of each tensor, as `costs.layer_activations` names them; the smallest are one bar. Units: KB, MB.

    Raises: ValueError for no tensors, or more than a page holds.
    """
    rows = _rows(tensors)
    if not 1 <= len(rows) <= _MOST:
        rule = f"this picture holds 1 to {_MOST} bars"
        raise ValueError(four_parts("plot_saved", f"{len(rows)} tensors", rule, "draw one layer"))
    total = sum(tensor.nbytes for tensor in tensors)
    top = style.HEADER + 0.12
    figure, page = sheet.new_page(
        top + _STEP * len(rows) + 0.1, title, f"bytes of each tensor; all together {format_bytes(total, binary=False)}"
    )
    left = style.MARGIN + _NAMES
    width = style.PAGE_WIDTH - style.MARGIN - _SUM - left
    longest = max(nbytes for _, nbytes in rows)
    for number, (name, nbytes) in enumerate(rows):
        y = top + number * _STEP
        long = width * nbytes / longest
        marks.label(page, style.MARGIN, y + _BAR / 2, name, align="left", size=style.SMALL_SIZE)
        marks.box(page, left, y, long, _BAR, fill=MEMORY_PARTS["activations"][1], corner=0)
        size = format_bytes(nbytes, binary=False)
        marks.label(page, left + long + 0.1, y + _BAR / 2, size, align="left", size=style.SMALL_SIZE)
    words = "\n".join(f"  {name}: {nbytes:,} bytes" for name, nbytes in rows)
    return Picture(figure, title=title, description=words, kinds=["formula"])


def _rows(tensors: Sequence[Saved]) -> list[tuple[str, int]]:
    """Names and bytes, longest first; what would be no bar comes last, together."""
    ordered = sorted(tensors, key=lambda tensor: -tensor.nbytes)
    longest = ordered[0].nbytes if ordered else 0
    shown = [(_told(tensor, tensors), tensor.nbytes) for tensor in ordered if tensor.nbytes >= _SMALL * longest]
    rest = [tensor.nbytes for tensor in ordered[len(shown) :]]
    return [*shown, (f"{len(rest)} small ones", sum(rest))] if rest else shown


def _told(tensor: Saved, tensors: Sequence[Saved]) -> str:
    """Its name in a reader's words, with a format only where the formats differ."""
    name = tensor.name.replace("ffn", "feed-forward")
    return name.removesuffix(" in fp32") if len({one.itemsize for one in tensors}) == 1 else name
