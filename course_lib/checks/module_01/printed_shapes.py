"""01.10's table of shapes: GPT-3's with the two misprints of its paper, or a family that is drawn, with two alike."""

from __future__ import annotations

import random
from typing import NamedTuple

from course_lib.config import load_preset
from course_lib.units import GB

_GPT3 = ("gpt3_large", "gpt3_xl", "gpt3_2_7b", "gpt3_13b")
_VOCABULARY = 50257
HEADS, WIDTH = 1, 3  # the rows in which one of them is a misprint


class Shape(NamedTuple):
    """A row of the table: what is printed of a model, its parameters in billions."""

    model: str
    billions: float
    layers: int
    width: int
    heads: int
    head_size: int


def printed_shapes(seed: int) -> tuple[Shape, ...]:
    """Four rows, two of them with a misprint."""
    rows = _of_gpt3() if seed == 0 else _drawn(random.Random(f"shapes {seed}"))
    return tuple(rows)


def _of_gpt3() -> list[Shape]:
    rows = []
    for name in _GPT3:
        found = load_preset(name)
        c, wrong = found.config, found.misprints
        printed = (c.n_layers, wrong.get("hidden_size", c.hidden_size), wrong.get("n_heads", c.n_heads))
        rows.append(Shape(c.name, (found.printed_parameters or 0) / GB, *printed, c.hidden_size // c.n_heads))
    return rows


def _drawn(draw: random.Random) -> list[Shape]:
    """No other number of the two rows can be the wrong one: widths divide by no other whole head, as in GPT-3's."""
    rows = []
    for number, heads in enumerate((range(8, 13), range(14, 21, 2), range(22, 29), range(32, 49))):
        # Half as many heads again are not whole in the width, since no size here is a multiple of 3.
        size, layers = draw.choice((64, 80, 128)), draw.randrange(16 + 6 * number, 25 + 6 * number)
        right = draw.choice(heads)
        width = right * size
        parameters = 12 * layers * width**2 + _VOCABULARY * width
        rows.append(Shape(f"model {number + 1}", float(f"{parameters / GB:.2g}"), layers, width, right, size))
    rows[HEADS] = rows[HEADS]._replace(heads=rows[HEADS].heads * 3 // 2)
    rows[WIDTH] = rows[WIDTH]._replace(width=rows[WIDTH].width + draw.choice((-20, -10, 10, 20)))
    return rows
