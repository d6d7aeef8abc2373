"""The pictures of module 01: they look like the others, and say what the formulas say."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest
import torch

from course_lib import viz
from course_lib.config import ModelConfig, load_model
from course_lib.costs import (
    StateBytes,
    layer_activations,
    model_parameters,
    parameters_by_part,
)
from course_lib.hardware import load_device
from course_lib.viz.ink.canvas import WIDE, WIDE_EDGE
from course_lib.viz.ink.image import as_image
from course_lib.viz.models.bits import as_formats, parse_number
from tests.unit import moving_svg
from tests.unit.test_viz_pictures import drawn_texts, flaws

TINY = ModelConfig(
    name="tiny", hidden_size=8, n_layers=1, n_heads=2, n_kv_heads=2, ffn_size=16, vocab_size=32, tied=True
)
H100 = load_device("h100_sxm_80")
NUMBERS = (65504 + 16, 3.14159265358979, -1e-7, -1.2345678901234e-40, 1e39, 0.0, math.nan, -math.inf)
MODELS = ("llama3_1_8b", "llama3_1_405b", "grok_1", "mixtral_8x7b", "gpt3_175b", "olmo_1b", "olmo_70b_workshop")


FIGURES = {
    **{f"anatomy-{name}": lambda name=name: viz.plot_anatomy(load_model(name)) for name in MODELS},
    "anatomy-tiny": lambda: viz.plot_anatomy(TINY),
    "saved": lambda: viz.plot_saved(layer_activations(load_model("llama3_1_70b"), batch=1, sequence=4096, itemsize=2)),
    "saved-small": lambda: viz.plot_saved(layer_activations(TINY, batch=1, sequence=4, itemsize=4)),
}


DRAWINGS = {
    **{f"bits-{number}": lambda number=number: viz.float_bits(number) for number in NUMBERS},
    "bits-explorer": lambda: viz.float_bits_explorer().first,
    "states-clear-of-the-line": lambda: viz.plot_states(
        {"GPU 0": StateBytes(weights=71 * 10**9, gradients=0, optimizer=0)}, memory_bytes=H100.memory_bytes()
    ),
}


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


@pytest.mark.parametrize("make", [FIGURES["anatomy-llama3_1_8b"], DRAWINGS["bits-65520"]])
def test_the_svg_speaks_and_is_the_same_in_every_call(make):
    picture = make()
    assert picture.svg == make().svg
    root = ElementTree.fromstring(picture.svg)
    assert (root[0].text, root[1].text) == (picture.title, picture.description)


@pytest.mark.parametrize("name", MODELS)
def test_the_anatomy_draws_and_says_the_exact_count_of_every_part(name):
    model = load_model(name)
    picture = viz.plot_anatomy(model)
    drawn = [words for words, _, _ in drawn_texts(picture.figure)]
    for count in parameters_by_part(model).values():
        assert drawn.count(f"{count:,}") >= 1
        assert f": {count:,} parameters" in picture.text
    assert f"together exactly {model_parameters(model):,}" in picture.text


def test_the_anatomy_of_llama():
    text = viz.plot_anatomy(load_model("llama3_1_8b")).text
    assert "32 × layer, residual around each block: norm, attention (32 heads, 8 of keys) | norm, feed-forward" in text
    assert "  feed-forward: 5,637,144,576 parameters, 70.2%\n" in text
    assert "  norms, 65 together: 266,240 parameters, < 0.1%\n" in text


def test_the_anatomy_shows_what_is_used_twice_and_what_is_chosen():
    grok = viz.plot_anatomy(load_model("grok_1")).text
    assert "norm, head (the embedding again), logits" in grok
    assert "router (2 of 8 experts), feed-forward (8 × inner 32,768), norm\n" in grok
    assert "norm (no weights), attention (16 heads)" in viz.plot_anatomy(load_model("olmo_1b")).text


DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8 e4m3": torch.float8_e4m3fn,
    "fp8 e5m2": torch.float8_e5m2,
}


def test_65504_plus_16_is_too_much_for_fp16():
    text = viz.float_bits(65504 + 16).text
    assert "fp32: sign 0, exponent 10001110, mantissa 11111111111000000000000; 65520 = 2^15 × 1.99951172; exact" in text
    assert "bf16: sign 0, exponent 10001111, mantissa 0000000; 65536 = 2^16 × 1; relative error 0.00024" in text
    assert "fp16: sign 0, exponent 11111, mantissa 0000000000; inf; overflow: the largest is 65504" in text
    assert "fp8 e5m2: sign 0, exponent 11111, mantissa 00; inf; overflow: the largest is 57344" in text
    below = {row.name: row for row in as_formats(65504 + 15.9)}
    assert below["fp16"].value == 65504  # less than half of the step of 32: rounded down


@pytest.mark.parametrize("number", [1.0, 0.1, -3.14159, 65519.0, 448.0, 1e-5, 6e-8, 2.0**-9, -1e-40, 3e38])
def test_the_bits_mean_the_rounded_number(number):
    for row in as_formats(number):
        dtype = DTYPES[row.name]
        assert row.value == torch.tensor(number).to(dtype).double().item()
        assert len(row.bits) == 8 * dtype.itemsize
        if not row.formula:
            assert row.value in (0, math.inf)
            continue
        power, factor = row.formula.removeprefix("-").removeprefix("2^").split(" × ")
        sign = (-1) ** int(row.fields["sign"])
        assert sign * 2.0 ** int(power) * float(factor) == pytest.approx(row.value, rel=1e-8)


def test_relative_errors_and_remarks():
    remarks = {row.name: row.remark for row in as_formats(0.1)}
    assert remarks["fp32"] == "relative error 1.5e-08"
    assert remarks["bf16"] == f"relative error {abs(float(torch.tensor(0.1).bfloat16()) - 0.1) / 0.1:.2g}"
    assert {row.remark for row in as_formats(0.5)} == {"exact"}
    assert {row.remark for row in as_formats(math.nan)} == {"not a number"}
    assert as_formats(1e-30)[2].remark == "underflow to 0, relative error 1"


def test_the_formats_never_beat_their_precision():
    for number in (1.1, 7.7, 100.3):
        for row in as_formats(number):
            assert row.relative_error <= torch.finfo(DTYPES[row.name]).eps / 2


def shown(explorer):
    return explorer._shown.value


@pytest.mark.parametrize("make", [viz.memory_explorer, viz.float_bits_explorer])
def test_an_explorer_shows_its_first_picture_where_no_widget_runs(make):
    explorer = make()
    bundle = explorer._repr_mimebundle_()
    assert bundle["text/html"] == as_image(explorer.first.svg, explorer.first.text, explorer.first.style)
    assert bundle["text/plain"] == explorer.first.text == repr(explorer)
    assert "application/vnd.jupyter.widget-view+json" in bundle
    boxes = [list(box.children) for box in explorer._widget.children[:-2]]
    assert boxes == [row for row in (list(explorer.presets.values()), list(explorer.controls.values())) if row]
    assert shown(explorer) == explorer.first.live


def test_the_bits_explorer_reads_arithmetic():
    explorer = viz.float_bits_explorer()
    assert explorer.first.text == viz.float_bits(65504 + 16).text
    explorer.controls["text"].value = "-0.1"
    assert explorer.text == viz.float_bits(-0.1).text
    numbers = {
        "2**-14 / 3": 2**-14 / 3,
        " 65504 - -16 ": 65520.0,
        "+1e3*2": 2000.0,
        "-inf": -math.inf,
        "1e999": math.inf,
    }
    assert {text: parse_number(text) for text in numbers} == numbers
    assert math.isnan(parse_number("nan"))


@pytest.mark.parametrize(
    "text", ["", "x", "True", "'1'", "1/0", "(-8)**0.5", "10.0**400", "1 2", "f(1)", "1j", "9" * 400]
)
def test_what_is_no_number_is_said_in_four_parts(text):
    with pytest.raises(ValueError, match=r"^float_bits_explorer: .*; a number, or arithmetic .*; type 0.1 or 65504"):
        parse_number(text)
    explorer = viz.float_bits_explorer()
    explorer.controls["text"].value = text
    assert explorer.text.startswith("float_bits_explorer: ")
    assert "<svg " in shown(explorer) and "<img" not in shown(explorer)


def test_the_widest_row_of_bits_ends_where_the_remarks_do_and_powers_are_raised():
    film = moving_svg.Film(viz.float_bits(0.1).svg)
    places = [part.element for part in film.parts("rect") if part.element.get("height") == "29"]
    assert len(places) == 32 + 16 + 16 + 8 + 8
    assert max(float(one.get("x")) + float(one.get("width")) for one in places) == pytest.approx(WIDE - WIDE_EDGE)
    assert "2⁻⁴ × 1.60000002 = 0.100000001" in film.words()


def test_every_byte_that_a_layer_keeps_is_in_the_picture():
    layer = layer_activations(load_model("llama3_1_70b"), batch=1, sequence=4096, itemsize=2, fused_norms=True)
    told = viz.plot_saved(layer).description
    drawn = [int(line.split(": ")[-1].split()[0].replace(",", "")) for line in told.splitlines()]
    assert sum(drawn) == sum(tensor.nbytes for tensor in layer)
    assert drawn[:4] == [28672 * 4096 * 2] * 4 and "small ones" in told
    assert "feed-forward input" in told and "ffn" not in told


def test_a_kept_tensor_names_its_format_only_beside_others():
    for itemsize, told in ((4, "  attention norm: input: "), (2, "  attention norm: input in fp32: ")):
        assert told in viz.plot_saved(layer_activations(TINY, batch=1, sequence=4, itemsize=itemsize)).description


def test_a_sum_behind_the_line_says_that_its_bar_ends_before_it():
    rows = {
        name: StateBytes(weights=size * 10**8, gradients=0, optimizer=0) for name, size in (("all", 9000), ("few", 176))
    }
    words = moving_svg.Film(viz.plot_states(rows, memory_bytes=H100.memory_bytes()).svg).words()
    assert "17.6 GB, fits" in words and "900 GB" in words


def test_a_picture_of_no_tensors_is_refused():
    with pytest.raises(ValueError, match="plot_saved: 0 tensors; .*; draw one layer"):
        viz.plot_saved([])
