"""The pictures of module 09: who computes which attention, two softmaxes, tokens and experts, an all-to-all."""

from __future__ import annotations

import html
import re

import pytest

from course_lib import viz
from course_lib.config import ParallelConfig, load_model
from course_lib.costs.model.activations import bytes_on_rank, layer_activations
from course_lib.sequence_cut import SequenceCut
from course_lib.viz.experts.routes import Routes
from course_lib.viz.ink import style
from course_lib.viz.memory.parts import MEMORY_PARTS
from course_lib.viz.sequence.work import shares
from tests.unit.moving_svg import Film, boxes, drawn_texts, flaws
from tests.unit.test_viz_pictures import drawn_texts as page_texts
from tests.unit.test_viz_pictures import flaws as page_flaws

ORDERS = ("contiguous", "zigzag")
CUTS = [(16, 4), (6, 2), (13, 4), (9, 3), (64, 8), (128, 5), (8, 8), (1, 1)]


def both(length, size):
    return [SequenceCut(length, size, order) for order in ORDERS]


def words_of(picture):
    assert flaws(picture.svg) == []
    return [words for words, *_ in drawn_texts(picture.svg)]


@pytest.mark.parametrize("size", CUTS)
def test_the_triangle_has_a_row_of_its_rank_s_hue_for_each_query(size):
    for cut in both(*size):
        picture = viz.plot_causal(cut)
        assert words_of(picture)
        found = [part.element for part in Film(picture.svg).parts("path")]
        for rank in range(cut.size):
            rows = next(boxes(one.get("d")) for one in found if one.get("fill") == style.rank_hue(rank))
            cell = rows[0][3]
            queries = [round((wide / cell) - 1) for _, _, wide, _ in rows]
            assert queries == cut.positions(rank)


@pytest.mark.parametrize("size", CUTS)
def test_a_rank_s_bar_is_as_long_as_its_work_in_fair_shares(size):
    picture = viz.plot_causal(*both(*size))
    texts, found = words_of(picture), [part.element for part in Film(picture.svg).parts("rect")]
    bars = [(one.get("fill"), float(one.get("width"))) for one in found if one.get("height") == "22"]
    ground = bars[0][1]
    drawn = [wide for fill, wide in bars if fill in style.RANK_HUES]
    work = [cut.work(rank) for cut in both(*size) for rank in range(cut.size)]
    total = size[0] * (size[0] + 1) / 2
    assert drawn == pytest.approx([pairs / total * size[1] / 2 * ground for pairs in work], abs=0.02)
    assert all(f"{pairs:,}" in texts or f"{pairs:,} pairs" in texts for pairs in work)


def test_the_last_of_four_ranks_has_43_percent_and_zigzag_is_even():
    picture = viz.plot_causal(*both(16, 4))
    texts = words_of(picture)
    assert picture.kinds == ("formula",) and texts.count("25%") == 4 and texts.count("fair share: 25%") == 2
    assert {"7%", "19%", "31%", "43%", "58 pairs", "34 pairs"} - {*texts} == {"58 pairs"} and "58" in texts
    assert "the slowest rank has 1.71 × a fair share" in texts and "the slowest rank has 1.00 × a fair share" in texts
    assert "  rank 1: positions 2 to 3 and 12 to 13; 34 pairs" in picture.description.splitlines()
    assert sum(shares(SequenceCut(13, 4))) == pytest.approx(1)


@pytest.mark.parametrize(
    ("cuts", "message"),
    [
        ([], "plot_causal: no cut; this picture holds one cut, or two of the same length and size; pass "),
        (both(16, 4) + both(16, 4), "plot_causal: 16 positions on 4 ranks, .*; this picture holds one cut"),
        ([SequenceCut(8, 2), SequenceCut(9, 2)], "plot_causal: 8 positions on 2 ranks, 9 .*; this picture holds one"),
        ([SequenceCut(16, 9)], "plot_causal: world_size=9; this picture holds 1 to 8 ranks; draw fewer"),
        ([SequenceCut(129, 4)], "plot_causal: length=129; this picture holds 1 to 128 positions; draw fewer"),
    ],
)
def test_the_triangle_refuses_what_it_cannot_hold(cuts, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        viz.plot_causal(*cuts)


def test_the_explorer_s_bars_keep_their_axis_and_show_what_was_before():
    explorer = viz.causal_explorer()
    assert repr(explorer) == explorer.first.text and "before" not in explorer.text
    explorer.presets["zigzag"].click()
    before = "  before: contiguous, 16 positions: rank 0 7%, rank 1 19%, rank 2 31%, rank 3 43%"
    assert explorer.text.endswith(before)
    grounds = []
    for values in ({"length": 16, "ranks": 4}, {"length": 64, "ranks": 8}, {"length": 6, "ranks": 2}):
        now = {"order": "zigzag", **values}
        picture = explorer._panel.draw(before={**now, "order": "contiguous"}, **now)
        assert "in dashes: what each had before" in words_of(picture)
        found = [part.element for part in Film(picture.svg).parts()]
        ghosts = [one for one in found if one.get("stroke-dasharray") == "4 3"]
        assert len(ghosts) == values["ranks"]
        grounds.append({(one.get("x"), one.get("width")) for one in found if one.get("height") == "22"} & {*GROUND})
    assert grounds[0] == grounds[1] == grounds[2] == {*GROUND}


GROUND = [("545", "114")]


def test_the_explorer_says_what_cannot_be_below_the_last_picture():
    explorer = viz.causal_explorer(ranks=8)
    good = explorer._shown.value
    explorer.controls["length"].value = 4
    assert explorer.text == "SequenceCut: 4 positions, 8 ranks; every rank has a position; choose cp in 1..4"
    assert explorer._shown.value == good and html.escape(explorer.text) in explorer._refused.value
    explorer.controls["ranks"].value = 2
    assert explorer._refused.value == ""


SCORES, VALUES = [1.0, 0.0, 2.0, 3.0, 1.0, 2.0], [4.0, 2.0, 1.0, 3.0, 5.0, 2.0]


def test_the_merged_softmax_is_the_one_of_all_keys():
    torch = pytest.importorskip("torch")
    picture = viz.plot_two_softmaxes(SCORES, VALUES)
    texts, lines = words_of(picture), picture.description.splitlines()
    whole = torch.tensor(SCORES).softmax(0)
    assert f"out / sum {float(whole @ torch.tensor(VALUES)):.2f}" in lines[3]
    for key, weight in enumerate(whole.tolist()):
        assert f"key {key} {weight:.2f}" in lines[3]
    halves = [torch.tensor(SCORES[at : at + 3]).softmax(0).tolist() for at in (0, 3)]
    shown = [f"{weight:.2f}" for weight in (*halves[0], *halves[1], *whole.tolist())]
    assert {*shown} <= {*texts}
    assert lines[1].endswith("max 2.00, sum 1.50, out 2.74, factor 0.37; out / sum 1.82")
    sums = [float(number) for number in re.findall(r"sum ([\d.]+), out", picture.description)]
    assert sums[2] == pytest.approx(0.3679 * sums[0] + sums[1], abs=0.01)


def test_ghosts_are_the_weights_of_a_rank_alone():
    cut = SequenceCut(6, 2, "zigzag")
    found = [part.element for part in Film(viz.plot_two_softmaxes(SCORES, VALUES, cut).svg).parts()]
    ghosts = [float(re.search(r"v-([\d.]+)h", one.get("d"))[1]) for one in found if one.get("stroke-dasharray")]
    bars = [float(one.get("height")) for one in found if one.tag == "rect" and one.get("fill") in style.RANK_HUES[:2]]
    alone = [tall for tall in bars if tall != 28][:6]
    assert ghosts == pytest.approx(alone, abs=0.02) and sum(alone) == pytest.approx(2 * 134, abs=0.1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (([1.0], [1.0]), "1 scores, 1 values, 2 keys on 2 ranks; 2 ranks share 2 to 6 keys, .*; pass SequenceCut"),
        (([1.0] * 7, [1.0] * 7), "7 scores, 7 values, 7 keys on 2 ranks; 2 ranks share 2 to 6 keys"),
        ((SCORES, [1.0]), "6 scores, 1 values, 6 keys on 2 ranks; 2 ranks share"),
        ((SCORES, VALUES, SequenceCut(6, 3)), "6 scores, 6 values, 6 keys on 3 ranks; 2 ranks share"),
        (([1.0, float("-inf")], [1.0, 1.0]), r"scores=\[1.0, -inf\], .*; this picture holds finite .*; leave masked"),
    ],
)
def test_two_softmaxes_refuse_what_they_cannot_show(given, message):
    with pytest.raises(ValueError, match=f"^plot_two_softmaxes: {message}"):
        viz.plot_two_softmaxes(*given)


CHOSEN = [[[0, 1], [0, 2], [0, 3], [1, 0]], [[2, 3], [3, 0], [1, 2], [0, 3]]]


def test_each_row_has_a_line_in_the_hue_of_its_token_s_rank_and_a_part_of_a_bar():
    picture = viz.plot_experts(CHOSEN, 4, ranks=2)
    texts, film = words_of(picture), Film(picture.svg)
    curves = [part.element for part in film.parts("path") if "C" in part.element.get("d")]
    assert [[one.get("stroke") for one in curves].count(style.rank_hue(rank)) for rank in range(2)] == [8, 8]
    parts = [part.element for part in film.parts("rect") if part.element.get("height") == "24"]
    wide = [float(one.get("width")) for one in parts if one.get("fill") in style.RANK_HUES]
    rows = [4, 2, 2, 1, 1, 2, 1, 3]  # of ranks 0 and 1 at each expert
    assert wide == pytest.approx([156 * count / 8 for count in rows], abs=0.02)
    assert {"fair share: 4 rows", "tokens", "work", "56%", "44%"} <= {*texts} and "dropped" not in texts
    assert "  expert 0 on rank 0: 6 rows: 4 from rank 0, 2 from rank 1" in picture.description
    assert picture.description.endswith("rows computed: rank 0 9 (56%), rank 1 7 (44%)")


def test_what_is_above_the_capacity_of_a_sequence_ends_at_a_cross():
    picture = viz.plot_experts(CHOSEN, 4, ranks=2, capacity=1.0, kind="formula")
    texts, film = words_of(picture), Film(picture.svg)
    dropped = [part.element for part in film.parts("path") if part.element.get("stroke") == style.WRONG]
    assert [("l8 8" in one.get("d")) for one in dropped].count(True) == 3 and len(dropped) == 6
    assert {"dropped", "−2", "−1"} <= {*texts} and picture.kinds == ("formula",)
    assert "each takes 2 of a sequence at most, 3 are dropped" in picture.description
    lost = [(row.token, row.expert) for row in Routes.of(CHOSEN, 4, 2, 1.0).rows if not row.kept]
    assert lost == [(2, 0), (3, 0), (7, 3)]


@pytest.mark.parametrize(("experts", "ranks", "tokens"), [(4, 1, 6), (8, 8, 4), (16, 4, 8), (16, 8, 64), (3, 2, 40)])
def test_few_tokens_and_many_have_room(experts, ranks, tokens):
    firsts = [[(s * t + t * t) % experts for t in range(tokens)] for s in range(ranks)]
    chosen = [[[first, (first + 1) % experts] for first in sequence] for sequence in firsts]
    for capacity in (None, 1.25):
        picture = viz.plot_experts(chosen, experts, ranks=ranks, capacity=capacity)
        assert words_of(picture)
        curves = [part for part in Film(picture.svg).parts("path") if "C" in part.element.get("d")]
        single = ranks * tokens <= 32
        assert (len(curves) == 2 * ranks * tokens) if single else (len(curves) <= ranks * experts)


@pytest.mark.parametrize(
    ("chosen", "options", "message"),
    [
        (CHOSEN, {"n_experts": 17}, "n_experts=17; this picture holds 1 to 16 experts; draw fewer"),
        (CHOSEN, {"n_experts": 3}, r"expert 3 of 3; experts are numbered from 0; choose experts in 0..2"),
        (CHOSEN, {"n_experts": 4, "ranks": 3}, "2 sequences, 4 experts, 3 ranks; every rank has a .*; choose fewer"),
        (CHOSEN, {"n_experts": 4, "ranks": 9}, "world_size=9; this picture holds 1 to 8 ranks; draw"),
        (CHOSEN, {"n_experts": 4, "capacity": 0}, "capacity=0; an expert takes a row of .*; give a capacity above 0"),
        ([[[0]], []], {"n_experts": 4}, "sequences of 1, 0 tokens; a sequence has a token; pass "),
    ],
)
def test_experts_refuse_what_they_cannot_show(chosen, options, message):
    with pytest.raises(ValueError, match=f"^plot_experts: {message}"):
        viz.plot_experts(chosen, **options)


def test_what_a_rank_has_for_itself_is_not_sent():
    picture = viz.plot_all_to_all([[512, 1024], [256, 768]])
    texts = [text for text, *_ in page_texts(picture.figure)]
    assert list(page_flaws(picture.figure)) == [] and picture.kinds == ("formula",)
    assert texts.count("1 KiB") == 3 and texts.count("256 B") == 3 and texts.count("1.25 KiB") == 1
    assert "  rank 0 sends 1 KiB: 1 KiB to rank 1" in picture.description
    assert picture.description.endswith("  stays where it is: rank 0 512 B, rank 1 768 B")
    assert "stays" not in viz.plot_all_to_all([[0, 8], [8, 0]], kind="measured").text


def test_an_all_to_all_of_a_recorded_run_is_drawn_as_its_ledger_is():
    table = [[0, 512, 64], [128, 0, 64], [0, 0, 0]]
    picture = viz.plot_all_to_all(table, title="Out")
    lines = picture.description.splitlines()
    assert lines[1:4] == [
        "  rank 0 sends 576 B: 512 B to rank 1, 64 B to rank 2",
        "  rank 1 sends 192 B: 128 B to rank 0, 64 B to rank 2",
        "  rank 2 sends 0 B",
    ]


@pytest.mark.parametrize("table", [[[1, 2]], [[0, -1], [1, 0]], [[0, 1], [1]], []])
def test_an_all_to_all_is_a_square_of_bytes(table):
    with pytest.raises(ValueError, match=r"^plot_all_to_all: .*; .*; (pass a square|draw fewer)"):
        viz.plot_all_to_all(table)


def test_of_a_long_sequence_s_memory_only_activations_change_with_cp():
    model = load_model("llama3_1_405b")
    picture = viz.plot_context_memory()
    words_of(picture)
    rows = re.findall(r"  (tp 8.*): (.*), activations ([\d.]+); together ([\d.]+) GB", picture.description)
    assert len(rows) == 4 and len({states for _, states, *_ in rows}) == 1
    layers = model.n_layers // 14
    for cp, cut, (name, _, activations, _) in zip((1, 1, 4, 16), (False, True, True, True), rows, strict=True):
        parallel = ParallelConfig(tp=8, cp=cp, sequence_parallel=cut)
        kept = layer_activations(model, batch=1, sequence=131_072 // cp, itemsize=2, fused_norms=True)
        expected = layers * bytes_on_rank(kept, parallel) / 1e9
        assert float(activations) == pytest.approx(expected, rel=6e-3), name
    assert [float(total) > 80 for *_, total in rows] == [True, True, False, False]


def test_parts_of_memory_too_narrow_to_be_told_apart_have_one_hue_and_one_entry():
    svg = viz.plot_context_memory().svg
    assert "weights, gradients, optimizer, gathered weights" in svg
    hues = [hue for part, (_, hue) in MEMORY_PARTS.items() if part not in ("activations", "head", "other")]
    assert MEMORY_PARTS["activations"][1] in svg and not [hue for hue in hues if hue in svg]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cps": (3,)}, "plot_context_memory: cp=3; dp x cp is 128 in every bar; choose divisors of 128"),
        ({"cps": (2, 4, 8, 16, 32, 64, 128)}, "plot_gpu_memory: 9 rows; this picture holds 1 to 8 bars; draw fewer"),
    ],
)
def test_the_memory_of_a_long_sequence_refuses_what_it_cannot_hold(options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        viz.plot_context_memory(**options)
