"""The moving ring attention: in each step its keys are where they are, and its table has what is computed."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from course_lib import viz
from course_lib.sequence_cut import SequenceCut
from course_lib.viz.ink import style
from course_lib.viz.sequence.rounds import busiest, rounds
from tests.unit.moving_svg import Film, flaws

CUTS = [
    SequenceCut(*size, order)
    for size in ((16, 4), (6, 2), (13, 4), (9, 3), (21, 8), (64, 7), (4, 4), (3, 1))
    for order in ("contiguous", "zigzag")
]


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_over_all_steps_every_rank_computes_all_that_the_mask_leaves_it(cut):
    steps = rounds(cut)
    for rank in range(cut.size):
        meetings = [step[rank] for step in steps]
        assert sorted(meeting.source for meeting in meetings) == [*range(cut.size)]
        assert [one.pairs for one in meetings] == [cut.work(rank, one.source) for one in meetings]
    assert sum(one.pairs for step in steps for one in step) == cut.length * (cut.length + 1) // 2
    assert sum(busiest(steps)) >= max(cut.work(rank) for rank in range(cut.size))


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_the_still_has_room_for_its_words(cut):
    assert flaws(viz.animate_ring_attention(cut).still) == []


def area(d: str) -> float:
    """Of a path of horizontal and vertical lines."""
    whole = 0.0
    for shape in re.findall(r"M[^M]*", d):
        points = []
        for command, numbers in re.findall(r"([MhvHV])([-\d. ]+)", shape):
            values = [*map(float, numbers.split())]
            x, y = points[-1] if points else (0.0, 0.0)
            ends = {"M": values, "h": [x + values[0], y], "v": [x, y + values[0]], "H": [values[0], y]}
            points.append(tuple(ends[command]))
        around = zip(points, points[1:] + points[:1], strict=True)
        whole += abs(sum(a[0] * b[1] - b[0] * a[1] for a, b in around)) / 2
    return whole


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_after_each_step_the_table_has_what_was_computed(cut):
    film, steps, p = Film(viz.animate_ring_attention(cut).svg), rounds(cut), cut.size
    size = 232 / max(p, 2) - 4
    paths = [part for part in film.parts("path") if part.element.get("fill") in style.RANK_HUES]
    for number in range(p + 1):
        at_s = film.last_seen(f"step {number} of {p}") if number else 0.0
        found = dict.fromkeys(range(p), 0.0)
        for part in paths:
            if film.opacity(part, at_s) > 0.5:
                found[style.RANK_HUES.index(part.element.get("fill"))] += area(part.element.get("d"))
        for rank in range(p):
            shares = [
                one.pairs / cut.count(rank) / cut.count(one.source)
                for step in steps[:number]
                for one in step[rank : rank + 1]
            ]
            assert found[rank] == pytest.approx(sum(shares) * size**2, rel=5e-3)


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_in_each_step_keys_and_values_are_at_the_rank_that_computes_with_them(cut):
    film, p = Film(viz.animate_ring_attention(cut).svg), cut.size
    symbols = {}
    for group in film.root.iter("g"):
        words = group.findtext("text") if group.get("id") else None
        if words:
            symbols[f"#{group.get('id')}"] = int(words.removeprefix("KV "))
    assert sorted(symbols.values()) == [*range(p)]
    resting = [part for part in film.parts("use") if part.element.get("x")]
    ends = [film.last_seen("start"), *(film.last_seen(f"step {number} of {p}") for number in range(1, p + 1))]
    for (begins, over), step in zip(pairwise(ends), rounds(cut), strict=True):
        at_s = begins + 0.35 * (over - begins)  # before they leave
        seen = [part.element for part in resting if film.opacity(part, at_s) > 0.5]
        assert [symbols[one.get("href")] for one in seen] == [meeting.source for meeting in step]


def test_the_busiest_ranks_take_58_pairs_where_zigzag_takes_34():
    for order, sums, total in (("contiguous", "10 + 16 + 16 + 16", 58), ("zigzag", "10 + 8 + 8 + 8", 34)):
        picture = viz.animate_ring_attention(SequenceCut(16, 4, order))
        words = Film(picture.svg).words()
        assert {f"{total} pairs", "fair share: 34", "done"} <= {*words} and picture.kinds == ("formula",)
        last = f"the busiest rank of each step: {sums} = {total} pairs; a fair share is 34"
        assert picture.description.splitlines()[-1] == last
        assert words.count("skip") == (6 if order == "contiguous" else 0)
        assert words.count("max, sum, out") == 4
    assert "rank 0 with keys of rank 3: skips" in viz.animate_ring_attention(SequenceCut(16, 4)).text


def test_more_ranks_than_hues_are_refused():
    with pytest.raises(ValueError, match=r"^animate_ring_attention: world_size=9; this picture holds 1 to 8 ranks; dr"):
        viz.animate_ring_attention(SequenceCut(18, 9))
