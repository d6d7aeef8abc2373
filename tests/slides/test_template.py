"""The decks' templates: values and pictures come from code, and what goes wrong is told by line."""

from __future__ import annotations

import re

import pytest

from course_lib import viz
from slides import template
from slides.blocks import size, source, time

DECK = """---
marp: true
---

```python setup
answer = 6 * 7


def twice(x):
    return 2 * x
```

# The answer is {{ answer }}

{{ twice(answer) }} and {{ f"{answer / 5:.1f}" }}
"""


class Drawing:
    text = 'A ring\nrank 0 says "hello"'
    kinds = ("measured",)

    still = '<svg width="720pt" height="360pt" viewBox="0 0 720 360">'


def test_expressions_become_their_values_and_the_setup_block_goes():
    filled = template.fill(DECK, {})
    assert "# The answer is 42" in filled and "84 and 8.4" in filled
    assert "setup" not in filled and "{{" not in filled
    assert filled.startswith("---\nmarp: true\n---\n")


def test_a_failing_expression_names_its_line():
    with pytest.raises(ValueError, match=r"slides, line 2: \{\{ gone \}\} raises NameError: .*; .*; define the name"):
        template.fill("# Title\n{{ gone }}\n", {})


def test_a_failing_setup_block_names_its_line():
    with pytest.raises(ZeroDivisionError) as caught:
        template.fill("```python setup\nx = 1\ny = x / 0\n```\n", {})
    assert caught.traceback[-1].lineno == 1  # counted from 0


def test_a_function_of_the_setup_block_can_be_shown():
    deck = "```python setup\ndef twice(x):\n    return 2 * x\n```\n{{ source(twice) }}\n"
    assert template.fill(deck, {"source": source}) == "```python\ndef twice(x):\n    return 2 * x\n```\n"


@pytest.mark.parametrize("text", ["436 MB in bf16", "takes 17.4 ms", "at 50 GB/s", "8 times", "95 % of it", "14 µs"])
def test_a_typed_number_with_a_unit_is_found(text):
    found = template.typed_numbers(f"# Title\n\nThe layer: {text}\n")
    assert len(found) == 1 and found[0].startswith("line 3: ")


@pytest.mark.parametrize(
    "text", ["{{ size(gradient) }}", "8 GPUs", "$2\\frac{p-1}{p}M$", "Minutes: 4", "![w:300](a.svg)"]
)
def test_a_computed_number_or_a_count_is_not_found(text):
    assert template.typed_numbers(f"```python setup\nx = '5 MB'\n```\n{text}\n") == []


def test_a_picture_is_saved_without_its_headline_and_says_itself(tmp_path):
    figures = template.Figures(tmp_path / "figures", relative_to=tmp_path)
    image = figures.picture(Drawing(), "tall")
    assert 'src="figures/01.svg"' in image and 'class="tall"' in image
    assert 'alt="A ring rank 0 says &quot;hello&quot;"' in image
    assert image.endswith(
        '"><span class="kinds"><span class="kind measured">measured</span></span>'
    )  # its badge is cut off with its headline
    saved = (tmp_path / "figures" / "01.svg").read_text()
    assert 'viewBox="7.2 72 705.6 280.8"' in saved and 'height="280.8pt"' in saved


def test_a_picture_may_keep_its_headline(tmp_path):
    image = template.Figures(tmp_path, relative_to=tmp_path).picture(Drawing(), headline=True)
    assert "kind" not in image
    assert 'viewBox="7.2 7.2 705.6 345.6"' in (tmp_path / "01.svg").read_text()


def test_what_moves_stands_still_on_a_slide_without_its_headline(tmp_path):
    ring = viz.animate_ring(4)
    template.Figures(tmp_path, relative_to=tmp_path).picture(ring)
    saved = (tmp_path / "01.svg").read_text()
    assert "@keyframes" in ring.svg and "@keyframes" not in saved
    assert re.search(r'viewBox="8 80 624 [\d.]+"', saved)


def test_bytes_and_times_are_written_for_a_lecture():
    written = [size(436_224_000), size(1_875_000_000), size(1000), time(1.4e-5), time(17.4)]
    assert [text.split() for text in written] == [
        ["436", "MB"],
        ["1.88", "GB"],
        ["1", "KB"],
        ["14", "µs"],
        ["17.4", "s"],
    ]
    assert all("\N{NO-BREAK SPACE}" in text for text in written)


def test_the_notes_say_when_a_slide_begins():
    deck = "Minutes: 3\n\nSay: a.\n\nMinutes: 4\n\nMinutes: 10\n"
    clocked = template.with_clock(deck)
    assert "Minutes: 3 (from 0 of 17)\n" in clocked and "Minutes: 4 (from 3 of 17)\n" in clocked
    assert "Minutes: 10 (from 7 of 17)\n" in clocked and "Say: a." in clocked
