"""The table of the letters' widths is that of the fonts, and a line of text is as long as its letters."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
