"""The moving ring: after each of its steps the buffers that it shows are those of the algorithm."""

from __future__ import annotations

import re

import pytest

from course_lib import viz
from course_lib.viz.ink import style
from course_lib.viz.wires.ring_steps import ring_steps
from tests.unit.moving_svg import Film, boxes

SIZES = range(2, 9)


@pytest.mark.parametrize("p", SIZES)
def test_after_every_step_the_ring_s_buffers_are_those_of_the_algorithm(p):
    film, steps = Film(viz.animate_ring(p).svg), ring_steps(p)
    for state in steps[1:]:
        assert buffers(film, p, film.last_seen(f"step {state.number} of {len(steps) - 1}")) == state.buffers
    assert buffers(film, p, 0.0) == steps[0].buffers
    assert buffers(film, p) == steps[-1].buffers
    assert str(len(steps) - 1) in film.words() and f"× 1/{p} of the tensor sent by each rank" in film.words()


def buffers(film, p, at_s=None):
    """By rank, by chunk: whose stripes are seen."""
    paths = film.parts("path")
    cells = next(boxes(part.element.get("d")) for part in paths if part.element.get("fill") == style.PANEL)
    held = [[set() for _ in range(p)] for _ in range(p)]
    for part in paths:
        hue = part.element.get("stroke")
        if hue in style.RANK_HUES and film.opacity(part, at_s) > 0.5:
            for x, y in re.findall(r"M([\d.]+) ([\d.]+)h", part.element.get("d")):
                left, top, _, _ = next(c for c in cells if c[0] == float(x) and c[1] <= float(y) < c[1] + c[3])
                rank, chunk = ([*sorted({c[n] for c in cells})].index(at) for n, at in ((1, top), (0, left)))
                held[rank][chunk].add(style.RANK_HUES.index(hue))
    return tuple(tuple(tuple(sorted(parts)) for parts in chunks) for chunks in held)
