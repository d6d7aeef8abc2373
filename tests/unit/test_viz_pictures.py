"""Every figure: the same bytes twice, a text alternative, large letters, nothing clipped, nothing overlapping."""

from __future__ import annotations

import html
import os
import subprocess
import sys
from itertools import combinations
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from course_lib import viz
from course_lib.config import LLAMA_3_1_8B
from course_lib.costs import SweepPoint, comm_time
from course_lib.costs.comm.fit import fit_alpha_beta
from course_lib.costs.comm.less import one_synchronisation
from course_lib.hardware import ETHERNET, INFINIBAND, NVLINK
from course_lib.less.two_bowls import drift
from course_lib.viz.ink.image import as_image
from course_lib.viz.ink.style import CARD, MARGIN, PAGE_WIDTH, SHOWN_WIDTH
from course_lib.viz.wires.holdings import OPERATIONS
from tests.unit.viz_ledgers import one_message, ring_ledger
from tools.paths import ROOT

SIZES = (1, 2, 3, 4, 8)
SLACK = 0.02  # inches


def sweep(algorithms):
    points = []
    for algorithm in algorithms:
        formula = "ring" if algorithm == "native" else algorithm
        for nbytes in (2**k for k in range(10, 25, 2)):
            cost = comm_time("all_reduce", formula, world_size=4, length=nbytes // 4, itemsize=4)
            seconds = (cost.time_s(ETHERNET)) * (1.3 if nbytes % 3 == 1 else 0.8)
            points.append(SweepPoint(algorithm, 4, nbytes, seconds))
    return points


def fitted(points):
    own = [point for point in points if point.algorithm != "native"]
    return fit_alpha_beta([(point.steps, point.critical_bytes, point.seconds) for point in own])


MANY = ("naive", "ring", "tree", "recursive_doubling", "halving_doubling", "native")
FIGURES = {
    "overview": viz.primitives_overview,
    **{f"{op}-{p}": lambda op=op, p=p: viz.who_holds_what(op, p) for op in OPERATIONS for p in SIZES},
    **{
        f"ring-{p}-{step}": lambda p=p, step=step: viz.ring_all_reduce_step(p, step)
        for p in SIZES
        for step in sorted({0, min(1, 2 * (p - 1)), p - 1, 2 * (p - 1)})
    },
    **{f"ring-story-{p}": lambda p=p: viz.ring_all_reduce_story(p) for p in (1, 2, 3, 4)},
    **{f"ranks-{p}": lambda p=p: viz.plot_ranks(p) for p in SIZES},
    **{f"timeline-{p}": lambda p=p: viz.plot_timeline(ring_ledger(p)) for p in SIZES},
    "timeline-training": lambda: viz.plot_timeline(ring_ledger(4, calls=3, compute=True), title="Three steps"),
    "timeline-many": lambda: viz.plot_timeline(ring_ledger(8, calls=12, compute=True)),
    "timeline-nodes": lambda: viz.plot_timeline(ring_ledger(4), node_size=2),
    "starts": lambda: viz.plot_starts({"32 MiB": ring_ledger(4), "1 KiB": ring_ledger(4)}, NVLINK),
    "halves": viz.all_reduce_halves,
    "disagreement": lambda: viz.plot_disagreement(
        {"ring A": [[1.0] * 1001, [2.0] * 1001], "ring B": [[1.0] * 1001] * 2}
    ),
    "timeline-one": lambda: viz.plot_timeline(one_message()),
    **{f"matrix-{p}": lambda p=p: viz.plot_bytes_matrix(ring_ledger(p)) for p in SIZES},
    "all-to-all": lambda: viz.plot_all_to_all([[512, 1024, 0], [256, 768, 512], [0, 7, 1536]]),
    "bandwidth": lambda: viz.plot_bandwidth(sweep(MANY)),
    "calibration": viz.plot_calibration,
    "bandwidth-one": lambda: viz.plot_bandwidth(sweep(["ring"])),
    "fit": lambda: viz.plot_fit(sweep(MANY), fitted(sweep(MANY))),
    "fit-two": lambda: viz.plot_fit(sweep(["ring", "native"]), fitted(sweep(["ring", "native"]))),
    "cost-lines": lambda: viz.plot_cost_lines(["naive", "tree", "ring"], world_size=16, link=INFINIBAND),
    "cost-lines-all": lambda: viz.plot_cost_lines(MANY[:5], world_size=64, link=INFINIBAND),
    **{
        f"messages-{p}": lambda p=p: viz.plot_messages(
            ["naive", "ring", "tree"] + ["recursive_doubling"] * (p != 3), world_size=p
        )
        for p in SIZES
    },
    **{
        f"bars-{op}-{p}": lambda op=op, p=p: viz.plot_cost_bars(op, p)
        for op, p in (("all_reduce", 1), ("all_reduce", 3), ("all_reduce", 4), ("all_reduce", 8), ("all_to_all", 2))
    },
    **{
        f"topology-{size}-{nodes}": lambda size=size, nodes=nodes: viz.plot_topology(size, nodes, NVLINK, INFINIBAND)
        for size, nodes in ((1, 4), (2, 2), (3, 3), (4, 1), (4, 2), (8, 1), (8, 4))
    },
    "wires": lambda: viz.plot_wires(one_synchronisation(LLAMA_3_1_8B, ranks=8), [NVLINK, INFINIBAND], computing_s=1),
    "bowls": lambda: viz.plot_drift([drift(every, steps=64) for every in (1, 8, 64)]),
}


ONE_OF_EACH = [
    *(
        "overview",
        "all_reduce-4",
        "ring-4-3",
        "ring-story-4",
        "ranks-4",
        "timeline-training",
        "matrix-4",
        "bandwidth",
        "all-to-all",
    ),
    *("fit", "cost-lines", "messages-4", "bars-all_reduce-4", "topology-4-2", "wires", "bowls"),
]


@pytest.fixture(params=FIGURES)
def picture(request):
    return FIGURES[request.param]()


def drawn_texts(figure):
    """(words, place in inches) of all that is written, tick labels outside the axes left out."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw_without_rendering()  # places are asked for, not colours, which take two thirds of the time
    hidden = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not low - 1e-9 <= tick.get_loc() <= high + 1e-9 or not axes.axison:
                    hidden |= {tick.label1, tick.label2}
    found = []
    for text in figure.findobj(Text):
        if text not in hidden and text.get_visible() and text.get_text().strip():
            found.append((text, text.get_window_extent(renderer).padded(-1), renderer.dpi))
    return [(t.get_text(), t.get_fontsize(), [v / dpi for v in (b.x0, b.y0, b.x1, b.y1)]) for t, b, dpi in found]


def overlap(one, other):
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def flaws(figure):
    """What a reader at the back of the room would complain about."""
    width, height = figure.get_size_inches()
    texts = drawn_texts(figure)
    yield from (f"small: {words}" for words, size, _ in texts if size * SHOWN_WIDTH / PAGE_WIDTH < 12)
    for words, _, (x0, y0, x1, y1) in texts:
        if x0 < MARGIN - SLACK or x1 > width - 0.2 or y0 < 0.15 or y1 > height - 0.15:
            yield f"outside: {words}"
    yield from (f"overlap: {a[0]}, {b[0]}" for a, b in combinations(texts, 2) if overlap(a[2], b[2]))


def test_the_text_is_large_within_the_margins_and_does_not_overlap(picture):
    assert len(drawn_texts(picture.figure)) >= 3
    assert list(flaws(picture.figure)) == []


def test_flaws_are_found():
    figure = viz.plot_ranks(1).figure
    page = figure.axes[0]
    page.text(0.1, 0.5, "left", size=12)
    page.text(5, 0.55, "tiny", size=11)
    page.text(1, 0.5, "One", size=12)
    assert {flaw.split(":")[0] for flaw in flaws(figure)} == {"small", "outside", "overlap"}


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_the_svg_speaks_and_is_the_same_in_every_call(name):
    picture = FIGURES[name]()
    assert picture.svg == FIGURES[name]().svg
    root = ElementTree.fromstring(picture.svg)
    title, description = root[0], root[1]
    assert root.get("role") == "img"
    assert (title.tag.split("}")[1], description.tag.split("}")[1]) == ("title", "desc")
    assert title.text == picture.title
    assert description.text == picture.description
    assert len(picture.description) > 30
    bundle = picture._repr_mimebundle_()
    assert bundle == {"text/html": as_image(picture.svg, picture.text), "text/plain": picture.text}
    assert bundle["text/html"].startswith(f"<img alt={quoteattr(picture.title)} src=")
    assert html.unescape(bundle["text/html"]).endswith(f">{picture.text}</pre></details>")


def test_another_process_gives_the_same_bytes():
    code = "from course_lib.viz import ring_all_reduce_step; print(ring_all_reduce_step(4, 2).svg)"
    svgs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        ).stdout
        for seed in ("1", "2")
    ]
    assert svgs[0].startswith("<svg")
    assert svgs[0] == svgs[1]


def test_the_svg_fits_a_notebook_s_output_beside_the_file_browser():
    assert 'width="630pt"' in viz.plot_ranks(4).svg.split(">")[0]


def test_nothing_in_the_svg_depends_on_the_date_or_the_machine_s_fonts():
    svg = viz.who_holds_what("broadcast").svg
    assert "<dc:date>" not in svg
    assert "<text" not in svg
    assert "font-family" not in svg
    assert 'id="CSR' in svg and 'id="CSSB' in svg  # Course Sans, regular and semibold


def test_the_card_is_round_and_its_white_does_not_glare_on_a_dark_page():
    picture = viz.who_holds_what("broadcast")
    canvas = FigureCanvasAgg(picture.figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())
    assert pixels[0, 0, 3] == 0
    assert pixels[30, 30].tolist() == [255, 255, 255, round(255 * CARD)]


def test_the_learner_s_own_plots_keep_their_look():
    with mpl.rc_context({"font.size": 31.0, "svg.hashsalt": "mine"}):
        assert viz.who_holds_what("broadcast").svg
        assert mpl.rcParams["font.size"] == 31.0
        assert mpl.rcParams["svg.hashsalt"] == "mine"


def test_no_figure_is_left_in_pyplot():
    code = (
        "import sys; from course_lib import viz; viz.primitives_overview().svg; "
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_save_writes_what_the_suffix_says(tmp_path, suffix):
    path = viz.plot_ranks(2).save(tmp_path / f"ranks{suffix}")
    start = path.read_bytes()[:8]
    assert start.startswith(b"<svg" if suffix == ".svg" else b"\x89PNG")


def test_save_refuses_other_suffixes(tmp_path):
    with pytest.raises(ValueError, match=r"Picture.save: path='x.pdf'; the suffix must be .svg or .png; choose one"):
        viz.plot_ranks(2).save(tmp_path / "x.pdf")
