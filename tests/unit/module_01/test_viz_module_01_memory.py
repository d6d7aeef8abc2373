"""What fills a GPU, as bars and under its controls: read back from the SVG, they are as long as the formula says."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import pytest

from course_lib import viz
from course_lib.config import ParallelConfig, load_model
from course_lib.costs import GpuMemory, Work, find_convention, tensor_memory
from course_lib.hardware import load_device
from course_lib.units import GB, GiB
from course_lib.viz.ink import style
from course_lib.viz.ink.style import WRONG
from course_lib.viz.memory.parts import MEMORY_PARTS
from tests.unit import moving_svg
from tests.unit.module_01.test_viz_module_01 import shown

H100 = load_device("h100_sxm_80")
ALONE, SHARDED = ParallelConfig(), ParallelConfig(dp=8, tp=8, zero_stage=3, sequence_parallel=True)


def held(parallel, model="llama3_1_70b", sequence=4096):
    return tensor_memory(load_model(model), parallel, Work(sequence=sequence, microbatch=1), find_convention("zero"))


def of_size(gib):
    nothing = dict.fromkeys(("gradients", "optimizer", "gathered", "activations", "head"), 0)
    return GpuMemory(weights=int(gib * GiB), **nothing)


FIGURES = {
    "memory": lambda: viz.plot_gpu_memory({"alone": held(ALONE), "on 64 GPUs": held(SHARDED)}, H100),
    "memory-explorer": lambda: viz.memory_explorer().first,
    "memory-small": lambda: viz.plot_gpu_memory({"small": held(SHARDED, "olmo_1b")}, H100),
    "memory-many": lambda: viz.plot_gpu_memory({f"{gib} GiB": of_size(gib) for gib in (74, 74.6, 75)}, H100),
    "memory-huge": lambda: viz.plot_gpu_memory({"huge": held(ALONE, "megatron_1008b", 2048)}, H100),
}


@pytest.mark.parametrize("name", FIGURES)
def test_the_text_of_memory_is_large_within_the_margins_and_does_not_overlap(name):
    svg = FIGURES[name]().svg
    assert len(moving_svg.drawn_texts(svg)) >= 3
    assert moving_svg.flaws(svg) == []


def test_the_bars_are_as_long_as_what_the_gpu_holds():
    memory = replace(held(SHARDED), other=int(1.4 * GiB))
    svg = viz.plot_gpu_memory({"on 64 GPUs": memory}, H100).svg
    wide = {hue: float(wide) for hue, wide in bars(svg)}
    zero, twenty = (middle_of(svg, words) for words in ("0", "20"))
    gib = (twenty - zero) / 20
    for part, (_, hue) in MEMORY_PARTS.items():
        assert wide[hue] == pytest.approx(getattr(memory, part) / GiB * gib, abs=0.02)
    line = next(one for one in moving_svg.Film(svg).parts("path") if one.element.get("stroke") == WRONG)
    x = float(re.match(r"M([\d.]+) ", line.element.get("d"))[1])
    assert x == pytest.approx(zero + H100.memory_bytes() / GiB * gib, abs=0.1)


def bars(svg):
    """(hue, width) of all parts of bars, which are as tall as no swatch."""
    found = [part.element for part in moving_svg.Film(svg).parts("rect")]
    return [(one.get("fill"), one.get("width")) for one in found if one.get("height") == "38"]


def middle_of(svg, words):
    place = next(place for text, _, place in moving_svg.drawn_texts(svg) if text == words)
    return (place[0] + place[2]) / 2


def test_a_bar_beyond_the_axis_ends_with_it_in_two_gaps():
    rows = {"much": of_size(900), "little": of_size(10)}
    svg = viz.plot_gpu_memory(rows, H100, reach_bytes=150 * GiB).svg
    much, little = (float(wide) for _, wide in bars(svg))
    zero, hundred = (middle_of(svg, words) for words in ("0", "100"))
    assert much == pytest.approx(150 * (hundred - zero) / 100, abs=0.1)
    assert little == pytest.approx(10 * (hundred - zero) / 100, abs=0.1)
    gaps = [boxes for part in moving_svg.Film(svg).parts("path") if (boxes := moving_svg.boxes(part.element.get("d")))]
    assert [len(boxes) for boxes in gaps if all(box[3] == 38 for box in boxes)] == [2]


def test_the_bars_say_what_they_hold_and_whether_it_fits():
    text = viz.plot_gpu_memory({"alone": held(ALONE), "on 64 GPUs": held(SHARDED)}, H100).text
    assert "memory: H100 SXM 80 GB = 74.5 GiB" in text
    assert "  alone: weights 131, gradients 131, optimizer 788, activations 102, head and loss 1.10; together" in text
    assert "; together 1,154 GiB, too much, 15.5 × what it has\n" in text
    assert "  on 64 GPUs: weights 2.05, gradients 2.05, optimizer 12.3, gathered weights" in text
    assert "GiB, fits, " in text.splitlines()[-1]


def test_in_gb_the_bars_are_those_of_the_states_and_the_device_is_called_as_printed():
    memory = held(SHARDED)
    drawing = viz.plot_gpu_memory({"on 64 GPUs": memory}, H100, unit="GB")
    assert "memory: H100 SXM 80 GB\n" in drawing.text
    assert f"together {memory.total / GB:.1f} GB, fits, {memory.total / (80 * GB):.0%} of what it has" in drawing.text
    wide, line = dict(bars(drawing.svg)), re.search(rf'd="M([\d.]+) [^"]*" [^>]*stroke="{WRONG}"', drawing.svg)
    zero, eighty = (middle_of(drawing.svg, words) for words in ("0", "80"))
    assert float(wide[MEMORY_PARTS["optimizer"][1]]) == pytest.approx(
        memory.optimizer / GB / 80 * (eighty - zero), abs=0.02
    )
    assert line is not None and float(line[1]) == pytest.approx(eighty, abs=0.1)


def test_what_misses_by_a_little_does_not_fit():
    rows = {name: of_size(gib) for name, gib in {"below": 74.5, "above": 74.51}.items()}
    *_, below, above = viz.plot_gpu_memory(rows, H100).text.splitlines()
    assert below.endswith("74.5 GiB, fits, 100% of what it has")
    assert above.endswith("74.5 GiB, too much, just over 1 × what it has")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({}, r"plot_gpu_memory: 0 rows; this picture holds 1 to 8 bars; draw fewer"),
        (dict.fromkeys(map(str, range(9)), of_size(1)), r"plot_gpu_memory: 9 rows; this picture holds 1 to 8 bars"),
        ({"long " * 30: of_size(1)}, r"plot_gpu_memory: row 'long .*; a bar's name fits on one line; shorten it"),
    ],
)
def test_bad_rows_are_refused_in_four_parts(rows, message):
    with pytest.raises(ValueError, match=message):
        viz.plot_gpu_memory(rows, H100)


def test_the_memory_explorer_draws_what_its_controls_say():
    explorer = viz.memory_explorer()
    assert explorer.text.startswith("Llama 3.1 70B on 32 GPUs (formula)\ndp 16, tp 2, pp 1, ZeRO-3; ")
    assert "too much, 1.16 × what it has" in explorer.text
    before = shown(explorer)
    for name, value in {"model": "llama3_1_8b", "dp": 2, "tp": 4, "pp": 2, "zero_stage": 1, "sequence": 2048}.items():
        explorer.controls[name].value = value
    assert shown(explorer) != before
    parallel = ParallelConfig(dp=2, tp=4, pp=2, zero_stage=1, sequence_parallel=True)
    work = Work(sequence=2048, microbatch=1, n_microbatches=2)
    stages = [
        tensor_memory(load_model("llama3_1_8b"), parallel, work, find_convention("zero"), stage=stage)
        for stage in (0, 1)
    ]
    assert explorer.text.startswith(
        "Llama 3.1 8B on 16 GPUs (formula)\ndp 2, tp 4, pp 2, ZeRO-1; sequence 2,048, "
        "micro-batch 1, recompute none; 16 B a parameter\n"
    )
    for number, memory in enumerate(stages, start=1):
        weights, total = f"weights {memory.weights / GB:.2f}", f"together {memory.total / GB:.1f} GB"
        line = next(line for line in explorer.text.splitlines() if f"stage {number} of 2: {weights}" in line)
        assert total in line or f"together {memory.total / GB:.2f} GB" in line


def test_recompute_and_micro_batch_reach_the_bar():
    explorer = viz.memory_explorer()
    texts = {explorer.text}
    for name, value in {"recompute": "layers", "microbatch": 4, "device": "h200_sxm_141"}.items():
        explorer.controls[name].value = value
        texts.add(explorer.text)
    assert len(texts) == 4
    assert "recompute layers; " in explorer.text and "memory: H200 SXM 141 GB\n" in explorer.text


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"pp": 32}, "ParallelConfig: pp=32; pp divides n_layers=80; choose pp in [1, 2, 4, 5, 8, 10, 16, 20, 40, 80]"),
        (
            {"model": "gpt3_175b"},
            "ModelConfig 'GPT-3 175B': sequence=4096; its table of learned positions has 2048 rows; "
            "give sequence <= 2048",
        ),
    ],
)
def test_an_illegal_spread_is_said_below_the_last_picture_which_stays(wrong, message):
    explorer = viz.memory_explorer()
    good, legal = shown(explorer), {name: explorer.controls[name].value for name in wrong}
    explorer._choose(wrong, None)
    assert explorer.text == repr(explorer)
    assert explorer.text.split(";")[:2] == message.split(";")[:2]
    assert shown(explorer) == good
    assert explorer._refused.value.startswith('<p role="alert" ')
    assert explorer._refused.value.endswith(f"<b>{html.escape(explorer.text)}</b></p>")
    explorer._choose(legal, None)
    assert explorer._refused.value == "" and explorer.text.startswith("Llama 3.1 70B on 32 GPUs (formula)")


def test_every_preset_is_legal_and_outlines_the_picture_before_on_the_same_axis():
    explorer = viz.memory_explorer()
    for button in explorer.presets.values():
        button.click()
        assert " GPUs (formula)" in explorer.text and explorer._refused.value == ""
    many, few = explorer._drawn, {**explorer._drawn, "dp": 2}
    pictures = [explorer._panel.draw(before=before, **now) for before, now in ((None, many), (few, many), (many, few))]
    assert len({(middle_of(picture.svg, "0"), middle_of(picture.svg, "140")) for picture in pictures}) == 1
    drawn = [[words for words, _, _ in moving_svg.drawn_texts(picture.svg)] for picture in pictures]
    assert [sum(words.startswith("before: ") for words in texts) for texts in drawn] == [0, 2, 2]
    assert [picture.svg.count("stroke-dasharray") for picture in pictures] == [1, 3, 3]  # the device's line, outlines
    for picture in pictures:
        assert moving_svg.flaws(picture.svg) == []


def test_no_line_passes_through_a_name_which_stands_on_no_plate():
    rows = {"short": of_size(20), "a name as long as the bar below it, and longer than that": of_size(60)}
    svg = viz.plot_gpu_memory(rows, H100).svg
    names = [place for words, _, place in moving_svg.drawn_texts(svg) if words in rows]
    film = moving_svg.Film(svg)
    grid = next(one.element for one in film.parts("path") if one.element.get("fill") == style.GRID)
    lines = [(x, y, y + tall) for x, y, _, tall in moving_svg.boxes(grid.get("d"))]
    dashed = next(one.element for one in film.parts("path") if one.element.get("stroke-dasharray"))
    lines += [tuple(map(float, one)) for one in re.findall(r"M([\d.]+) ([\d.]+)V([\d.]+)", dashed.get("d"))]
    crossed = [
        line
        for line in lines
        for left, up, right, down in names
        if left < line[0] < right and line[1] < down and up < line[2]
    ]
    assert len(names) == 2 and len(lines) > 8 and crossed == []
    white = [one.element for one in film.parts("rect") if one.element.get("fill") == style.PAPER]
    assert [one.get("fill-opacity") for one in white] == [str(style.CARD)]  # the card alone


def test_what_is_too_much_is_said_in_the_colour_of_the_device_s_line():
    rows = {"below": of_size(74.5), "above": of_size(75)}
    svg = viz.plot_gpu_memory(rows, H100).svg
    hues = {part.element.text: part.element.get("fill") for part in moving_svg.Film(svg).parts("text")}
    assert hues["75.0 GiB, too much"] == WRONG and f'stroke="{WRONG}"' in svg
    assert hues["74.5 GiB, fits"] != WRONG
