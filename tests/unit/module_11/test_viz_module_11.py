"""The pictures of module 11: attention's walk over its tiles, 16 levels under a bell, what backward needs of a map."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from course_lib import viz
from course_lib.gauges.allocated import saved_bytes
from course_lib.savers.lora import LoRALinear
from course_lib.savers.nf4 import nf4_levels
from course_lib.viz.ink import style
from tests.unit.moving_svg import Film, drawn_texts, flaws

EVEN = [step / 7.5 - 1 for step in range(16)]


def words_of(picture):
    assert flaws(picture.svg) == []
    return [words for words, *_ in drawn_texts(picture.svg)]


@pytest.mark.parametrize(("sequence", "tile"), [(2048, 512), (1024, 1024), (4096, 512), (12, 1)])
def test_every_tile_below_the_diagonal_is_visited_once_and_one_is_there(sequence, tile):
    picture, rows = viz.plot_tiles(sequence, tile), sequence // tile
    visits = rows * (rows + 1) // 2
    assert {str(number + 1) for number in range(visits)} <= {*words_of(picture)}
    fills = [part.element.get("fill") for part in Film(picture.svg).parts("rect")]
    assert fills.count(style.COMPUTE["backward"]) == 1
    assert fills.count(style.COMPUTE["forward"]) == visits // 2
    assert f"tiles that are never visited: {rows * rows - visits} of {rows * rows}" in picture.description
    assert picture.kinds == ("formula",)


def test_a_tile_is_as_many_times_smaller_as_there_are_tiles():
    texts = words_of(viz.plot_tiles(2048, 512, now=0))
    assert "16 MiB" in texts and "1 MiB" in texts and "6 of 16" in texts


def test_the_fullest_and_emptiest_levels_are_those_of_a_normal_distribution():
    picture = viz.plot_levels({"even steps": EVEN, "NF4": nf4_levels().tolist()})
    texts = words_of(picture)

    def below(x):
        return math.erf(3 * x / math.sqrt(2))  # of the bell between -3 and 3 standard deviations

    for levels in (EVEN, nf4_levels().tolist()):
        borders = [-1, *((a + b) / 2 for a, b in zip(levels, levels[1:], strict=False)), 1]
        shares = [(below(b) - below(a)) / (2 * below(1)) for a, b in zip(borders, borders[1:], strict=False)]
        assert f"fullest: {max(shares):.0%}" in texts and f"emptiest: {min(shares):.1%}" in texts
    assert picture.kinds == ("formula",)


def test_maps_keep_what_the_picture_says():
    x = torch.randn(5, 60, requires_grad=True)
    frozen = nn.Linear(60, 40, bias=False).requires_grad_(False)
    with_adapter = LoRALinear(frozen, rank=3, scale=1.0)
    kept = [saved_bytes(one, lambda one=one: one(x)) for one in (nn.Linear(60, 40, bias=False), frozen, with_adapter)]
    assert kept == [4 * 5 * 60, 0, 4 * 5 * (60 + 3)]
    picture = viz.plot_frozen(60, rank=3, tokens=5)
    texts = words_of(picture)
    assert {"keeps x, 600 B", "keeps nothing", "keeps x, 600 B,", "and a, 30 B"} <= {*texts}  # half of 4 bytes a number
    fills = [part.element.get("fill") for part in Film(picture.svg).parts("rect")]
    assert fills.count(style.COMPUTE["forward"]) == 3 + 1  # x twice, a, and the key
    assert picture.kinds == ("formula",)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: viz.plot_frozen(rank=0), "plot_frozen: inputs=4096, rank=0, tokens=2048; a map has .*; give each at"),
        (lambda: viz.plot_tiles(100, 33), "plot_tiles: sequence=100, tile=33; 1 to 12 whole tiles stand in a row; "),
        (lambda: viz.plot_tiles(26, 2), "plot_tiles: sequence=26, tile=2; 1 to 12 whole tiles stand in a row; "),
        (lambda: viz.plot_tiles(4, 2, now=3), "plot_tiles: now=3; there are 3 tiles to visit; count from 0"),
        (lambda: viz.plot_levels({}), "plot_levels: 0 rows; this picture holds 1 to 3 rows; draw fewer"),
        (lambda: viz.plot_levels({"a": [1.0, 0.0]}), "plot_levels: levels\\['a'\\]; levels rise from -1 to 1, .*; div"),
    ],
)
def test_what_a_picture_cannot_hold_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
