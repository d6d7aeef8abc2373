"""The table of the letters' widths is that of the fonts, and a line of text is as long as its letters."""

from __future__ import annotations

import subprocess
import sys

import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from course_lib.viz.ink import sheet
from course_lib.viz.ink.letters import WIDTHS, width_in_ems
from tools.letter_widths import table, written
from tools.paths import ROOT


def test_the_table_follows_the_fonts():
    assert WIDTHS.read_text(encoding="utf-8") == written(), "run: python -m tools.letter_widths"
    assert len(table()["400"][0]) > 300


def test_a_line_is_as_long_as_its_letters_and_an_unknown_one_takes_the_standard():
    advances, em, standard = table()["600"]
    assert width_in_ems("GPU", 600) == pytest.approx(sum(advances[letter] for letter in "GPU") / em)
    assert width_in_ems("\N{SNOWMAN}", 600) == standard / em


def test_text_is_measured_where_no_font_can_be_read():
    code = "import sys; sys.modules['fontTools'] = None; from course_lib.viz.ink import canvas; canvas.text_width('a')"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize("weight", [400, 600])
def test_what_is_drawn_reaches_from_its_first_outline_to_its_last(weight):
    letters = sorted(table()[str(weight)][0])
    font = FontProperties(family="Course Sans", weight=weight)
    for text in (*filter(str.strip, letters), "(So 8 GPUs: 2×4)", "Ω · ☃", "l", "."):
        reach = TextPath((0, 0), text, size=9, prop=font).get_extents().width
        assert sheet.text_width(text, 9, weight) == pytest.approx(reach / 72, rel=1e-12, abs=1e-15)
    assert sheet.text_width(" ") == 0
