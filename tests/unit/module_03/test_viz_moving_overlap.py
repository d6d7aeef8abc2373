"""The moving overlap: bars begin and end when the formula's messages do, and buckets leave with them."""

from __future__ import annotations

import pytest

from course_lib import viz
from course_lib.costs.comm.ddp import ddp_time
from course_lib.hardware import ETHERNET
from course_lib.units import MiB
from course_lib.viz.ink import style
from tests.unit.moving_svg import Film

LAYERS = [[512 * 512, 512]] * 6
STEP = {"forward_s": 0.5e-3, "backward_s": 1e-3, "inside": ETHERNET, "bucket_bytes": MiB}


def bars(film, hue, **look):
    """(left, right, top) in pixels of all rectangles in a colour, from the left."""
    found = []
    for part in film.parts("rect"):
        if part.element.get("fill") == hue and all(part.element.get(name) == value for name, value in look.items()):
            x, y, wide = (float(part.element.get(side)) for side in ("x", "y", "width"))
            found.append((x, x + wide, y))
    return sorted(found)


@pytest.mark.parametrize("bucket_bytes", [MiB, 2 * MiB, 25 * MiB])
@pytest.mark.parametrize("p", range(2, 9))
def test_messages_begin_and_end_as_the_formula_says_in_both_ways(p, bucket_bytes):
    step = STEP | {"bucket_bytes": bucket_bytes}
    film, time = Film(viz.animate_overlap(LAYERS, world_size=p, **step).svg), ddp_time(LAYERS, world_size=p, **step)
    computing = bars(film, style.COMPUTE["forward"], stroke=style.PAPER)
    left = computing[0][0]
    scale = (computing[0][1] - left) / STEP["forward_s"]
    messages = bars(film, style.COMMUNICATION, stroke=style.PAPER)
    for top, in_turn in zip(sorted({y for *_, y in messages}), (True, False), strict=True):
        mine = [(x, end) for x, end, y in messages if y == top]
        end = time.compute_s if in_turn else 0.0
        for (x, right), ready, duration in zip(mine, time.ready_s, time.all_reduce_s, strict=True):
            start = max(end, ready)
            end = start + duration
            assert (x, right) == pytest.approx((left + start * scale, left + end * scale), rel=0.003)
        assert end == pytest.approx(time.in_turn_s if in_turn else time.overlapped_s)
    outlines = bars(film, "none", **{"stroke-dasharray": "3 3"})
    assert sorted({right for _, right, _ in outlines}) == pytest.approx(
        [left + ready * scale - 1 for ready in time.ready_s], abs=1
    )


def test_a_bucket_s_gradients_stay_until_the_line_reaches_its_message():
    film = Film(viz.animate_overlap(LAYERS, world_size=4, **STEP).svg)
    time = ddp_time(LAYERS, world_size=4, **STEP)
    still = "translate(0px,0px)"
    going = [motion for motion in film.motions.values() if motion[0][1].get("transform") == still]
    left_s = sorted(max(at for at, look in motion if look["transform"] == still) for motion in going)
    starts = sorted([*time.starts_s(), *time.starts_s(overlap=False)])
    first = starts[0]
    pace = (left_s[-1] - left_s[0]) / (starts[-1] - first)
    assert left_s == pytest.approx([left_s[0] + pace * (start - first) for start in starts], abs=0.02)


def test_each_way_says_its_step_and_what_of_it_is_waiting():
    film, time = Film(viz.animate_overlap(LAYERS, world_size=4, **STEP).svg), ddp_time(LAYERS, world_size=4, **STEP)
    for end in (time.in_turn_s, time.overlapped_s):
        assert f"step {1e3 * end:.3g} ms, waits {1e3 * (end - time.compute_s):.3g} ms" in film.words()
    assert not any(words.startswith("step") for words in film.words(0.5))


@pytest.mark.parametrize("layers", [0, 13])
def test_other_numbers_of_layers_are_refused(layers):
    with pytest.raises(ValueError, match=rf"animate_overlap: {layers} layers; this picture holds 1 to 12 layers"):
        viz.animate_overlap([[4]] * layers, world_size=2, **STEP)
