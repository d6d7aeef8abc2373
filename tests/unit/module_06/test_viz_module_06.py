"""The pictures of module 06: they look like the others, and say what is kept, gathered and reduced."""

from __future__ import annotations

from statistics import mode
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import FancyBboxPatch, PathPatch, Rectangle

from course_lib.comm.ledger import Event, Ledger
from course_lib.config import ModelConfig
from course_lib.costs import state_bytes
from course_lib.costs.model.conventions import find_convention
from course_lib.models.decoder import Decoder
from course_lib.parallel.sharding.wrapping import by_block, by_block_group, by_name, size_based
from course_lib.viz import plot_kept, plot_memory_strips, plot_states, plot_units, plot_wrapping, zero_explorer
from course_lib.viz.ink.style import FAINT, PAPER, SOFT, rank_hue
from course_lib.viz.memory.parts import MEMORY_PARTS as PARTS
from tests.unit import moving_svg
from tests.unit.test_viz_pictures import drawn_texts, flaws

EVEN = find_convention("zero")
MODEL = ModelConfig(
    name="small", hidden_size=16, n_layers=3, n_heads=2, n_kv_heads=1, ffn_size=32, vocab_size=32, tied=False
)


def states(parameters=7_500_000_000):
    return {f"ZeRO-{s}": state_bytes(parameters, EVEN, zero_stage=s, shards=64) for s in range(4)}


def step_of(n_units, *, again=True):
    """A step of so many units in which everything waits for everything: 1 ms for each."""
    events, now, call = [], 5.0, 0
    whole = [("all_gather", "forward")] * n_units + [("all_gather", "backward", "reduce_scatter")] * n_units
    for number, operations in enumerate(whole):
        for operation in operations if again or number < n_units else operations[1:]:
            kind = "compute" if operation in ("forward", "backward") else "send"
            call += kind == "send"
            number_of = call if kind == "send" else 0
            events.append(Event(rank=0, kind=kind, operation=operation, call=number_of, start_s=now, end_s=now + 0.001))
            now += 0.001
    return Ledger(events, 1)


def wrapped(**policies):
    model = Decoder(MODEL)
    return plot_wrapping(model, {name: policy(model) for name, policy in policies.items()})


def strip(blocks, **more):
    """A step in which only activations grow and shrink."""
    passes = [
        *(f"forward layers.{n}" for n in range(blocks)),
        *(f"backward layers.{n}" for n in reversed(range(blocks))),
    ]
    names = ["start", *passes, "end"]
    kept = {"weights": 4096, "gathered": 0, "gradients": 0, "reducing": 0, "gradient_pieces": 0, "optimizer": 8192}
    return [SimpleNamespace(name=name, activations=1024 * n, **kept | more) for n, name in enumerate(names)]


def drawn_as(kind, picture):
    page = picture.figure.axes[0]
    return [one for one in (*page.artists, *page.patches) if isinstance(one, kind)]


def boxes_of(picture):
    return drawn_as(FancyBboxPatch | Rectangle, picture)


FIGURES = {
    "strips": lambda: plot_memory_strips({"DDP": strip(4), "ZeRO-1": strip(4, optimizer=2048, gathered=99)}),
    "strips-named": lambda: plot_memory_strips({"FSDP, 4 texts": strip(4), "2 × 2, 4 texts": strip(4)}),
    "strips-many": lambda: plot_memory_strips({f"way {n}": strip(9, gradients=10**n) for n in range(5)}),
    **{f"kept-{stage}": lambda stage=stage: plot_kept(stage) for stage in range(4)},
    "units": lambda: plot_units({"in turn": step_of(6)}, 6),
    "units-many": lambda: plot_units({"a": step_of(12), "b": step_of(12, again=False), "c": step_of(12)}, 12),
    "wrapping": lambda: wrapped(by_block=by_block, groups=by_block_group(2), size=size_based(500)),
}


DRAWINGS = {
    "states": lambda: plot_states(states(), memory_bytes=80e9),
    "states-one": lambda: plot_states({"each GPU": states()["ZeRO-0"]}, subtitle="one"),
    "states-large": lambda: plot_states(states(10**13)),
    "zero": lambda: zero_explorer().first,
    "zero-large": lambda: clicked(zero_explorer(), "405B on 1,024 ranks"),
}


def clicked(explorer, name):
    """The picture after a button, with the outline of the one before."""
    before = explorer._drawn
    explorer.presets[name].click()
    return explorer._panel.draw(before=before, **explorer._drawn)


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_s_text_is_large_within_the_margins_and_does_not_overlap(name):
    svg = DRAWINGS[name]().svg
    assert len(moving_svg.drawn_texts(svg)) >= 3
    assert moving_svg.flaws(svg) == []


@pytest.mark.parametrize("name", FIGURES)
def test_the_text_is_large_within_the_margins_and_does_not_overlap(name):
    figure = FIGURES[name]().figure
    assert len(drawn_texts(figure)) >= 3
    assert list(flaws(figure)) == []


@pytest.mark.parametrize("name", ["kept-1", "states", "units", "wrapping"])
def test_the_svg_speaks_and_is_the_same_in_every_call(name):
    make = {**FIGURES, **DRAWINGS}[name]
    picture = make()
    assert picture.svg == make().svg
    root = ElementTree.fromstring(picture.svg)
    assert (root[0].text, root[1].text) == (picture.title, picture.description)


@pytest.mark.parametrize(("stage", "kept"), [*enumerate((152, 114, 95, 76))])
def test_each_stage_leaves_fewer_numbers_in_the_ranks_own_colours(stage, kept):
    picture = plot_kept(stage)
    texts = [text for text, _, _ in drawn_texts(picture.figure)]
    assert texts.count(f"{kept} of 152") == 2 and picture.description.count(f"has {kept} numbers of 152") == 2
    fills = [to_hex(box.get_facecolor()).lower() for box in boxes_of(picture)]
    own = 19 * {0: 0, 1: 2, 2: 3, 3: 4}[stage]
    both = 38 * {0: 4, 1: 1, 2: 1, 3: 0}[stage]
    assert ("only this rank has it" in texts, "both ranks have the same" in texts) == (own > 0, both > 0)
    assert ("not there" in texts) == (FAINT[:7].lower() in fills) == (kept < 152)
    badge, key = 1, 1
    assert [fills.count(rank_hue(rank).lower()) for rank in (0, 1)] == [own + key * (own > 0) + badge] * 2
    assert fills.count(SOFT.lower()) == 2 * both + key * (both > 0)


def test_every_number_is_drawn_as_wide_as_the_others():
    for stage in range(4):
        boxes = boxes_of(plot_kept(stage))
        tall = mode(box.get_height() for box in boxes)
        widths = {round(box.get_width(), 6) for box in boxes if box.get_height() == tall}
        assert len(widths) == 1


def test_gradients_that_are_not_yet_summed_are_striped_and_no_others():
    """ZeRO-1 sums them up after backward: until then each rank's are of its own samples."""
    for stage in range(4):
        picture = plot_kept(stage)
        hues = [to_hex(one.get_edgecolor()).lower() for one in drawn_as(PathPatch, picture)]
        in_key = 1 if stage == 1 else 0
        assert [hues.count(rank_hue(rank).lower()) for rank in (0, 1)] == [(38 + 1) * in_key] * 2
        assert ("of its own samples" in picture.description) == (stage == 1)


@pytest.mark.parametrize(("stage", "rows"), [(0, 0), (1, 0), (2, 1), (3, 2)])
def test_what_was_there_for_a_moment_is_dashed(stage, rows):
    """From stage 2 on gradients of a layer, and in stage 3 its weights, are whole while backward is in it."""
    picture = plot_kept(stage)
    dashed = [box for box in boxes_of(picture) if box.get_linestyle() not in ("solid", "-")]
    assert {(box.get_facecolor()[3], to_hex(box.get_edgecolor())) for box in dashed} <= {(0.0, SOFT.lower())}
    assert len(dashed) == 2 * 19 * rows + (rows > 0)  # and one in the key
    assert picture.description.count("for a moment more, layer by layer") == 2 * rows


def test_from_stage_2_on_each_layer_is_cut():
    """Else a rank would have no piece of the layer that is summed up first."""
    starts = {}
    for stage in (1, 2, 3):
        boxes = boxes_of(plot_kept(stage))
        tall = mode(box.get_height() for box in boxes)
        boxes = [box for box in boxes if box.get_height() == tall]
        row = boxes[3 * 38 : 4 * 38]  # Adam's v of rank 0
        starts[stage] = [n for n, box in enumerate(row) if to_hex(box.get_facecolor()) == rank_hue(0).lower()]
    assert starts == {1: [*range(19)], 2: [*range(14), *range(28, 33)], 3: [*range(14), *range(28, 33)]}


def test_the_states_are_those_of_the_paper():
    texts = moving_svg.Film(plot_states(states(), memory_bytes=80e9).svg).words()
    assert [text for text in texts if text.endswith("GB")] == [
        "one GPU has 80 GB",
        "120 GB",
        "31.4 GB",
        "16.6 GB",
        "1.88 GB",
    ]


def bars(svg):
    """By colour, the widths of what is drawn in it."""
    rectangles = [part.element for part in moving_svg.Film(svg).parts("rect") if part.element.get("height") == "34"]
    return {hue: [float(one.get("width")) for one in rectangles if one.get("fill") == hue] for _, hue in PARTS.values()}


def test_the_explorer_s_axis_stays_a_longer_bar_is_cut_and_the_bars_before_are_outlined():
    explorer = zero_explorer()
    first = bars(explorer.first.svg)[PARTS["weights"][1]]
    large = clicked(explorer, "70B on 64 ranks")
    (device, *_), *_ = [[one for one in texts(p) if one[0].startswith("one GPU has")] for p in (explorer.first, large)]
    assert device in texts(large)  # at the same place
    assert bars(large.svg)[PARTS["weights"][1]][3] == pytest.approx(70.6 / 7.5 * first[3], rel=0.02)
    gaps, outlines = (
        [one for one in paths(large.svg) if test(one)]
        for test in (lambda one: one.get("fill") == PAPER, lambda one: one.get("stroke-dasharray") == "4 3")
    )
    assert (len(gaps), len(outlines)) == (2, 4)
    assert "1,130 GB" in moving_svg.Film(large.svg).words()


def texts(picture):
    return [(words, place) for words, _, place in moving_svg.drawn_texts(picture.svg)]


def paths(svg):
    return [part.element for part in moving_svg.Film(svg).parts("path")]


def test_the_explorer_starts_with_the_model_and_ranks_that_it_is_given():
    assert "ZeRO-2: 66.6 GB" in zero_explorer(30, 64).text and "ZeRO-2: 16.6 GB" in zero_explorer().text
    assert "FSDP (ZeRO-3): 60 GB" in zero_explorer(30, 8).text


def test_the_explorer_counts_as_it_is_told_and_says_what_is_not_possible():
    explorer = zero_explorer()
    assert "FSDP (ZeRO-3): 1.88 GB" in explorer.text and "one GPU has 80 GB" in explorer.text
    explorer.controls["ranks"].value = 8
    assert "FSDP (ZeRO-3): 15 GB" in explorer.text
    explorer.controls["convention"].value = "megatron"
    assert "FSDP (ZeRO-3): 16.9 GB" in explorer.text and "2 + 4 + 12 bytes a parameter" in explorer.text
    explorer.controls["ranks"].value = 0
    assert explorer.text.startswith("state_bytes: shards=0; ")
    explorer.controls["billions"].value = 0
    assert explorer.text.startswith("zero_explorer: 0 billion parameters; ")


def test_the_line_at_the_end_of_a_step_stands_beside_its_last_bar():
    lanes = plot_units({"in turn": step_of(6)}, 6).figure.axes[-1]
    (line,) = {line.get_xdata()[0] for line in lanes.lines if len({*line.get_xdata()}) == 1}
    half = line_width(lanes) / 2
    assert line - half >= 30.0 and line - 2 * half < 30.0  # 30 ms: it touches the bar and covers none of it


def line_width(lanes):
    """Of the line that ends a step, in the axis' units."""
    (line,) = (line for line in lanes.lines if len({*line.get_xdata()}) == 1)
    inches = lanes.get_position().width * lanes.figure.get_figwidth()
    return line.get_linewidth() / 72 * (lanes.get_xlim()[1] - lanes.get_xlim()[0]) / inches


def test_the_end_of_a_step_has_three_digits():
    texts = [text for text, _, _ in drawn_texts(plot_units({"run": step_of(2)}, 2).figure)]
    assert "10.0 ms" in texts


def test_a_bar_has_the_number_of_its_unit():
    words = plot_units({"run": step_of(2)}, 2).description
    assert "forward: 0 until 2 ms, 1 until 4 ms" in words
    assert "backward: 1 until 6 ms, 0 until 9 ms" in words
    assert "gather weights: 0 until 1 ms, 1 until 3 ms, 1 until 5 ms, 0 until 8 ms" in words
    assert "reduce gradients: 1 until 7 ms, 0 until 10 ms" in words


def test_units_within_blocks_are_taken_out_of_them():
    words = wrapped(nested=by_name("layers.0", "layers.0.ffn")).description
    block = sum(p.numel() for p in Decoder(MODEL).layers[0].parameters())
    ffn = sum(p.numel() for p in Decoder(MODEL).layers[0].ffn.parameters())
    whole = sum(p.numel() for p in Decoder(MODEL).parameters())
    assert f"the largest has {max(block - ffn, ffn, whole - block):,} parameters" in words


def test_a_strip_adds_up_all_that_belongs_to_gradients():
    words = plot_memory_strips({"run": strip(1, gradients=1024, reducing=512, gradient_pieces=512)}).description
    assert "start: weights 4 KiB, optimizer 8 KiB, gradients 2 KiB" in words
    assert "run: at most 17 KiB, at end" in words and "activations 2 KiB" in words


def test_a_strip_has_heights_and_every_column_a_name():
    names = ["start", "forward layers.0", "loss", "backward layers.0", "gradients", "end"]
    steps = [SimpleNamespace(**vars(strip(0)[0]) | {"name": name}) for name in names]
    texts = [text for text, _, _ in drawn_texts(plot_memory_strips({"run": steps}).figure)]
    assert {"0", "5 KiB", "10 KiB", "15 KiB", "peak 12.0 KiB"} <= set(texts)  # the uppermost line is above every column
    assert {"start", "forward of block", "loss", "backward of block", "update", "end", "at start"} <= set(texts)


def test_the_name_of_an_instant_stands_under_its_own_column():
    names = ["start", *(f"{way} layers.{n}" for way in ("forward", "backward") for n in range(8)), "gradients", "end"]
    steps = [SimpleNamespace(**vars(strip(0)[0]) | {"name": name}) for name in names]
    picture = plot_memory_strips({"run": steps})
    middles = {text: (box[0] + box[2]) / 2 for text, _, box in drawn_texts(picture.figure)}
    boxes = boxes_of(picture)
    wide = mode(box.get_width() for box in boxes)
    columns = sorted({box.get_x() + wide / 2 for box in boxes if box.get_width() == wide})
    assert [middles[name] for name in ("start", "update", "end")] == pytest.approx(
        [columns[0], columns[-2], columns[-1]], abs=0.02
    )


def test_a_strip_names_the_update_in_words_too_and_a_long_name_of_the_peak_fits():
    names = ["start", *(f"{way} layers.{n}" for way in ("forward", "backward") for n in range(8)), "gradients", "end"]
    steps = [SimpleNamespace(**vars(strip(0)[0]) | {"name": name}) for name in names]
    steps[9].activations += 7 * 2**20
    picture = plot_memory_strips({"run": steps})
    assert "    update: " in picture.description and "    gradients: " not in picture.description
    assert "at backward 0" in [text for text, _, _ in drawn_texts(picture.figure)]
    assert list(flaws(picture.figure)) == []


def test_the_largest_unit_is_named_if_it_is_the_roots():
    words = wrapped(one=by_name("layers.0"), each=by_block).description
    assert "largest has 5,712 parameters, the root's" in words and words.endswith("largest has 2,336 parameters")


def test_the_column_of_the_largest_units_says_what_it_counts():
    assert {"parameters in", "the largest unit"} <= {words for words, *_ in drawn_texts(wrapped(one=by_block).figure)}


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="^plot_memory_strips: 0 steps of no instants; "):
        plot_memory_strips({})
    with pytest.raises(ValueError, match="^plot_memory_strips: 2 steps of 4, 6 instants; "):
        plot_memory_strips({"one": strip(1), "two": strip(2)})
    with pytest.raises(ValueError, match="^plot_kept: stage=4; ZeRO has the stages 1 to 3; choose 0"):
        plot_kept(4)
    with pytest.raises(ValueError, match="^plot_states: 0 rows; "):
        plot_states({})
    with pytest.raises(ValueError, match="^plot_states: row 'a name that is far too long'; "):
        plot_states({"a name that is far too long": states()["ZeRO-0"]})
    with pytest.raises(ValueError, match="^plot_units: 0 runs; "):
        plot_units({}, 2)
    with pytest.raises(ValueError, match="^plot_units: run 'a' has 2 of forward; this is no step of 3 units; "):
        plot_units({"a": step_of(2)}, 3)
    with pytest.raises(ValueError, match="^plot_wrapping: 6 parts, 0 policies; room is for 12 and 8; "):
        wrapped()
