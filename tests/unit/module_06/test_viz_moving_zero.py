"""The moving stages of ZeRO: at each stage the bars are as high as what the formula leaves on a rank."""

from __future__ import annotations

import pytest

from course_lib import viz
from course_lib.costs.model.conventions import find_convention
from course_lib.costs.model.states import state_bytes
from course_lib.hardware import load_device
from course_lib.viz.memory.parts import MEMORY_PARTS
from tests.unit.moving_svg import Film, boxes

HUES = {MEMORY_PARTS[part][1]: part for part in ("weights", "gradients", "optimizer")}
STAGES = ("no ZeRO", "ZeRO-1", "ZeRO-2", "ZeRO-3, FSDP")


def columns(film, at_s=None):
    """By column from the left, by part: the heights of what is seen, and the highest and lowest pixel of all."""
    found = {}
    for part in [*film.parts("path"), *film.parts("rect")]:
        hue, element = part.element.get("fill"), part.element
        if hue in HUES and element.get("stroke") and film.opacity(part, at_s) > 0.5:
            sides = [float(element.get(side)) for side in ("x", "y", "width", "height")] if element.get("x") else None
            for x, y, _, tall in [sides] if sides else boxes(element.get("d")):
                column = found.setdefault(x, dict.fromkeys(HUES.values(), 0.0) | {"edges": []})
                column[HUES[hue]] += tall
                column["edges"] += [y + film.lift(part, at_s), y + film.lift(part, at_s) + tall]
    return [found[x] for x in sorted(found)]


@pytest.mark.parametrize("p", range(2, 9))
def test_bars_are_what_each_stage_leaves_on_every_rank_and_stand_without_a_gap(p):
    film, counted = Film(viz.animate_zero_stages(7.5, p).svg), find_convention("zero")
    whole = state_bytes(7_500_000_000, counted)
    at = {name: film.last_seen(name) for name in STAGES[:-1]} | {STAGES[-1]: None}
    scale = sum(columns(film, 0.0)[0][part] for part in HUES.values()) / whole.total
    for stage, name in enumerate(STAGES):
        found = columns(film, at[name])
        assert len(found) == p
        for column in found:
            left = state_bytes(7_500_000_000, counted, zero_stage=stage, shards=p)
            for part in HUES.values():
                assert column[part] == pytest.approx(getattr(left, part) * scale, abs=0.1), (name, part)
            assert max(column["edges"]) - min(column["edges"]) == pytest.approx(left.total * scale, abs=0.15)


def test_the_line_is_the_device_s_memory_and_every_stage_has_its_bytes():
    film = Film(viz.animate_zero_stages(7.5, 4).svg)
    memory = load_device("h100_sxm_80").memory_bytes() / 1e9
    assert {"120 GB", "52.5 GB", "41.2 GB", "30 GB", f"{memory:g} GB", "one H100"} <= set(film.words())
    assert "52.5 GB" not in film.words(0.0) and "120 GB" in film.words(0.0)


@pytest.mark.parametrize(("billions", "ranks"), [(7.5, 1), (7.5, 9), (0, 4), (-1, 4)])
def test_nothing_to_cut_is_refused(billions, ranks):
    with pytest.raises(
        ValueError, match=r"animate_zero_stages: .*; 2 to 8 ranks cut a model's states; give such numbers"
    ):
        viz.animate_zero_stages(billions, ranks)
