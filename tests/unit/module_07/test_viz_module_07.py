"""The pictures of module 07: agreement of tokens, and what rounding explains."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from course_lib.verify.rounding import SOUND
from course_lib.viz import plot_agreement, plot_rounding
from tests.unit.test_viz_pictures import drawn_texts, flaws


def report(shift=0.0):
    ks = range(1, 51)
    return SimpleNamespace(agreement={k: 1 - shift / k for k in ks}, errors={k: shift + k / 1000 for k in ks})


def row(name, alone, ranks):
    return SimpleNamespace(name=name, alone=alone, ranks=ranks, is_sound=ranks <= SOUND * alone)


def test_agreement_is_drawn_and_said():
    picture = plot_agreement({"FSDP × TP": report(0.1), "one device, bf16": report()}, reference="one device")
    assert list(flaws(picture.figure)) == []
    assert "  FSDP × TP: 90.0% at k = 1, 99.8% at k = 50; mean error 0.1 and 0.15" in picture.description
    upper, lower = picture.figure.axes[1:3]
    assert [len(chart.lines[0].get_xdata()) for chart in (upper, lower)] == [50, 50]
    assert upper.lines[0].get_ydata()[0] == pytest.approx(0.9) and upper.get_ylim()[1] > 1
    assert "100%" in [text for text, _, _ in drawn_texts(picture.figure)]
    with pytest.raises(ValueError, match=r"^plot_agreement: 0 runs, 0 choices of k; "):
        plot_agreement({}, reference="one device")


def test_what_rounding_does_not_explain_is_above_the_line_and_named():
    sound = [row("w", 0.01, 0.012), row("b", 0.002, 0.0)]
    wrong = [row("w", 0.01, 0.01), row("norm", 0.002, 0.5)]
    picture = plot_rounding({"sound": sound, "norms not summed": wrong}, sound=SOUND)
    assert list(flaws(picture.figure)) == []
    assert "  sound: all explained; the worst is w, 1.2 times as far off as one device" in picture.description
    assert "  norms not summed: not explained: norm; the worst is norm, 2.5e+02 times" in picture.description
    texts = [text for text, _, _ in drawn_texts(picture.figure)]
    assert {"all explained", "1 of 2 not explained", "dashed: 4 times the"} <= set(texts)
    with pytest.raises(ValueError, match=r"^plot_rounding: 1 runs; .*, each with parameters; give fewer runs$"):
        plot_rounding({"none": []}, sound=SOUND)
