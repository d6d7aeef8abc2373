"""The pictures of module 03: they look like the others, and say what the runs and the formulas say."""

from __future__ import annotations

import math
from functools import cache
from xml.etree import ElementTree

import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import FancyBboxPatch, Rectangle

from course_lib import viz
from course_lib.models.mlp import MLP
from course_lib.parallel.data.buckets import fill
from course_lib.training.psgd import Quadratic, psgd_alone, transient_steps
from course_lib.units import MiB
from course_lib.viz.ink import style
from tests.unit.test_viz_pictures import drawn_texts, flaws

REFERENCE = [3.5 * math.exp(-i / 30) + 1.2 for i in range(80)]
NORMS = [2 * math.exp(-i / 60) + 0.3 for i in range(80)]
RUNS = {"one device": REFERENCE, "averaged": REFERENCE, "summed": [loss + 0.01 for loss in REFERENCE]}
RUN_NORMS = {"one device": NORMS, "averaged": NORMS, "summed": [4 * norm for norm in NORMS]}


def efficiency(cost, counts=(1, 2, 4, 8, 16, 32, 64)):
    return {n: 1 / (1 + cost * 2 * (n - 1) / n) for n in counts}


LINKS = {"NVLink": efficiency(0.01), "InfiniBand": efficiency(0.05), "Ethernet": efficiency(0.9)}
MEASURED = {"NVLink": {1: 1.0, 2: 0.98, 4: 0.97}, "this machine": {1: 1.0, 2: 0.5, 4: 0.22}}


PERCEPTRON = [(name, parameter.nbytes) for name, parameter in MLP().named_parameters()]
BLOCKS = [(f"blocks.{number}.attention.weight", (number % 3 + 1) * 256 * 1024) for number in range(16)]
DECODER = [("embedding", 32 * MiB), *((f"layers.{n}.ffn", (n + 1) * MiB) for n in range(6)), ("head", 32 * MiB)]


def dealt(parameters, bucket_bytes):
    """The names in each bucket, as data parallelism deals them out."""
    tensors = {name: torch.empty(nbytes, dtype=torch.uint8, device="meta") for name, nbytes in parameters}
    names = {tensor: name for name, tensor in tensors.items()}
    return [[names[one] for one in bucket] for bucket in fill(reversed(tensors.values()), bucket_bytes)]


def buckets_picture(parameters, bucket_bytes):
    return viz.plot_buckets(parameters, dealt(parameters, bucket_bytes), bucket_bytes)


@cache
def speedup_facts(workers, steps):
    problem = Quadratic(size=4)
    errors = {t: {n: psgd_alone(problem, n, t) for n in workers} for t in steps}
    return errors, {n: transient_steps(problem, n) for n in workers}


def speedup_picture(workers, steps):
    return viz.plot_speedup(*speedup_facts(workers, steps))


def small_speedup():
    return speedup_picture((1, 4, 16), (20, 200))


def gradients(ranks, dtype=torch.float64, scale=1.0):
    """Of each rank's equal share of a batch, and of the whole batch."""
    torch.manual_seed(0)
    model, inputs = MLP(gelu=True).to(dtype), torch.randn(12, 6, dtype=dtype)
    shares = []
    for share in (*inputs.chunk(ranks), inputs):
        model.zero_grad()
        (scale * model(share).square().mean()).backward()
        shares.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    return shares[:-1], shares[-1]


def wrong_gradients():
    """One number of one rank is off by 0.1."""
    per_rank, whole = gradients(2)
    per_rank[1]["layer2.weight"][1, 2] += 0.1
    return per_rank, whole


FIGURES = {
    **{f"gradients-{p}": lambda p=p: viz.plot_gradients(*gradients(p)) for p in (1, 2, 3, 4)},
    "gradients-small": lambda: viz.plot_gradients(*gradients(2, torch.float32, 1e-7)),
    "gradients-wrong": lambda: viz.plot_gradients(*wrong_gradients()),
    "buckets": lambda: buckets_picture(PERCEPTRON, 40),
    "buckets-one": lambda: buckets_picture(PERCEPTRON[:1], 25 * MiB),
    "buckets-many": lambda: buckets_picture(BLOCKS, 2 * MiB),
    "buckets-decoder": lambda: buckets_picture(DECODER, 8 * MiB),
    "scaling": lambda: viz.plot_scaling(LINKS, MEASURED),
    "scaling-one": lambda: viz.plot_scaling({"NVLink": efficiency(0.02)}),
    "scaling-measured": lambda: viz.plot_scaling({}, {"this machine": {1: 1.0, 3: 1.4}}),
    "loss": lambda: viz.plot_loss_curves(RUNS),
    "loss-norms": lambda: viz.plot_loss_curves(RUNS, RUN_NORMS, title="Two of three are right"),
    "loss-one": lambda: viz.plot_loss_curves({"one device": [1.0]}, {"one device": [0.5]}),
    "loss-six": lambda: viz.plot_loss_curves({f"run {k}": [loss + k for loss in REFERENCE] for k in range(6)}),
    "loss-broken": lambda: viz.plot_loss_curves({"one device": REFERENCE, "broken": [4.0, 9.0, math.nan]}),
    "speedup": small_speedup,
    "speedup-one": lambda: speedup_picture((1, 2, 3, 4), (10,)),
}


@pytest.mark.parametrize("name", FIGURES)
def test_the_text_is_large_within_the_margins_and_does_not_overlap(name):
    figure = FIGURES[name]().figure
    assert len(drawn_texts(figure)) >= 3
    assert list(flaws(figure)) == []


@pytest.mark.parametrize("name", FIGURES)
def test_the_svg_speaks_and_is_the_same_in_every_call(name):
    picture = FIGURES[name]()
    assert picture.svg == FIGURES[name]().svg
    root = ElementTree.fromstring(picture.svg)
    assert (root[0].text, root[1].text) == (picture.title, picture.description)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_average_of_the_ranks_gradients_is_the_whole_batch_s(dtype):
    picture = viz.plot_gradients(*gradients(4, dtype))
    assert picture.title == "The average is the whole batch's gradient (measured)"
    assert picture.text.endswith("average =   all 38 numbers are equal, up to rounding")
    words = [text for text, _, _ in drawn_texts(picture.figure)]
    assert words.count("4 out × 6 in") == words.count("2 out × 4 in") == 1
    numbers = [text for text in words if text.lstrip("−").isdigit()]
    assert len(numbers) == 38 * 6
    average, one = picture.text.split("average:\n")[1].split("\none device:\n")
    assert one.startswith(average) and len(average.splitlines()) == 4


def test_every_cell_has_its_number_in_the_unit_that_is_named():
    per_rank, whole = gradients(2, scale=1e-3)
    picture = viz.plot_gradients(per_rank, whole)
    unit = float(picture.text.splitlines()[1].removeprefix("numbers in units of "))
    largest = max(tensor.abs().max().item() for block in (*per_rank, whole) for tensor in block.values())
    assert 9.95 <= largest / unit < 100
    rows = picture.text.split("rank 1:\n")[1].splitlines()[0].split(": ")[1].split("; ")
    read = torch.tensor([[float(number.replace("−", "-")) for number in row.split()] for row in rows])
    assert read * unit == pytest.approx(per_rank[1]["layer1.weight"].float(), abs=0.51 * unit)


def test_what_the_average_misses_is_framed_and_said():
    picture = viz.plot_gradients(*wrong_gradients())
    assert picture.title == "The average is not the whole batch's gradient (measured)"
    assert picture.text.endswith("average ≠   1 of 38 numbers differs")
    frames = [box for box in picture.figure.findobj(FancyBboxPatch) if to_hex(box.get_edgecolor()) == "#b84a5e"]
    assert len(frames) == 1
    nan = gradients(2)
    nan[0][0]["layer2.bias"][0] = math.nan
    assert viz.plot_gradients(*nan).text.endswith("1 of 38 numbers differs")


@pytest.mark.parametrize("bucket_bytes", [1, 40, 100, 25 * MiB])
def test_every_bucket_says_what_lies_in_it_and_when_it_is_ready(bucket_bytes):
    buckets = dealt(PERCEPTRON, bucket_bytes)
    lines = buckets_picture(PERCEPTRON, bucket_bytes).text.splitlines()[2:]
    assert [[part.split()[0] for part in line.split(": ")[-1].split(", ")] for line in lines] == buckets
    ready = [sum(map(len, buckets[: place + 1])) for place in range(len(buckets))]
    assert [line.split("gradient ")[1].split(" of 4")[0] for line in lines] == [str(count) for count in ready]


def test_gradients_lie_in_their_bucket_to_scale():
    page = buckets_picture(PERCEPTRON, 40).figure.axes[0]
    parts = [patch for patch in page.patches if isinstance(patch, Rectangle)]
    scale = parts[0].get_width() / 8
    assert [part.get_width() for part in parts] == pytest.approx([8 * scale, 32 * scale, 16 * scale, 96 * scale])
    assert parts[1].get_x() == pytest.approx(parts[0].get_x() + 8 * scale)
    assert [line.get_xdata()[0] - parts[0].get_x() for line in page.lines] == pytest.approx([40 * scale] * 2)


def test_parameters_are_numbered_in_the_order_in_which_backward_reaches_them():
    texts = [text for text, *_ in drawn_texts(buckets_picture(PERCEPTRON, 40).figure)]
    names = [name for name, _ in PERCEPTRON]
    listed = {texts[n + 1]: text for n, text in enumerate(texts[:-1]) if texts[n + 1] in names}
    assert [listed[name] for name in names] == ["4", "3", "2", "1"]
    assert "4  layer1.weight" in texts


def test_each_bucket_s_squares_say_when_it_is_ready():
    figure = buckets_picture(PERCEPTRON, 40).figure
    backward = style.COMPUTE["backward"]
    hues = {backward.lower(): "own", style.FAINT[:7].lower(): "other"}
    boxes = [box for box in figure.findobj(FancyBboxPatch) if box.get_height() == pytest.approx(0.16)]
    squares = [hues[to_hex(box.get_facecolor())] for box in boxes]
    assert squares == ["own", "own", "other", "other", "other", "other", "own", "own"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: viz.plot_gradients([{}] * 5, {}), r"plot_gradients: world_size=5; this picture holds 1 to 4 ranks"),
        (
            lambda: viz.plot_gradients([{"w": torch.ones(2)}], {"w": torch.ones(3)}),
            r"plot_gradients: rank 0 has \{'w': \(2,\)\}; one device has \{'w': \(3,\)\}; give gradients of the same",
        ),
        (
            lambda: viz.plot_gradients([{"w": torch.ones(())}], {"w": torch.ones(())}),
            r"plot_gradients: \{'w': \(\)\}; a matrix or a vector for each parameter, none of them empty; draw only",
        ),
        (
            lambda: viz.plot_gradients([{"w": torch.ones(2, 30)}], {"w": torch.ones(2, 30)}),
            r"plot_gradients: w \(2, 30\); they fit on one line; draw the gradients of fewer parameters",
        ),
        (
            lambda: viz.plot_buckets([], [], 40),
            r"plot_buckets: 0 parameters of no bytes; this picture holds 1 to 16 par.*; dr",
        ),
        (
            lambda: viz.plot_buckets([("w", 0)], [["w"]], 40),
            r"plot_buckets: 1 parameters of 0 bytes; .* none of them empty; draw",
        ),
        (
            lambda: buckets_picture(BLOCKS, 1),
            r"plot_buckets: 16 buckets; this picture holds 1 to 6; raise bucket_bytes",
        ),
        (
            lambda: buckets_picture([("w" * 60, 4)], 1),
            r"plot_buckets: parameter 'w+'; the names leave room .*; shorten",
        ),
        (
            lambda: viz.plot_buckets(PERCEPTRON, dealt(PERCEPTRON[1:], 40), 40),
            r"plot_buckets: the buckets hold layer1.bias, layer2.bias, layer2.weight; each .* one bucket; deal out la",
        ),
        (lambda: viz.plot_scaling({}), r"plot_scaling: 0 lines of no points; this picture holds 1 to 5 lines.*; leave"),
        (lambda: viz.plot_scaling({"a": {}}), r"plot_scaling: 1 lines of 0 points; .*, each with points; leave"),
        (lambda: viz.plot_scaling({"a": {2: -0.1}}), r"plot_scaling: efficiency -0.1 on 2 GPUs; both are positive; gi"),
        (lambda: viz.plot_loss_curves({}), r"plot_loss_curves: 0 curves; this picture holds 1 to 6; leave some out"),
        (
            lambda: viz.plot_loss_curves({"a": [1.0]}, {"b": [1.0]}),
            r"plot_loss_curves: norms of b; the curves are a; give norms of the runs that are drawn",
        ),
        (
            lambda: viz.plot_loss_curves({"a": [math.nan]}),
            r"plot_loss_curves: 'a' has 1 values, none of them finite; a line needs one; leave it out",
        ),
        (
            lambda: viz.plot_loss_curves({"a": [1.0]}, {"a": [0.0]}),
            r"plot_loss_curves: 'a' begins with a norm that is not positive; the others .*; give the norms before",
        ),
        (
            lambda: viz.plot_speedup(dict.fromkeys((1, 2, 3, 4), {1: 1.0}), {1: 1}),
            r"plot_speedup: 4 numbers of steps; this picture holds 1 to 3 lines; give fewer",
        ),
        (
            lambda: viz.plot_speedup({30: {1: 1.0, 2: 0.5}}, {1: 1}),
            r"plot_speedup: T = 30 with N = 1, 2; each line has points, and each N a transient; give transients for",
        ),
    ],
)
def test_bad_input_is_refused_in_four_parts(call, message):
    with pytest.raises(ValueError, match=message):
        call()
