"""What is shown of very much text."""

from __future__ import annotations

import sys

import pytest

from course_lib.ranks.transcript import LiveView, Transcript

MEGABYTE = 10**6


def test_a_short_text_is_whole_and_in_rank_order():
    transcript = Transcript(2)
    for rank in (1, 0):
        transcript.add(rank, "a\nb")
    transcript.show_value(1, "c\nd")
    assert transcript.text().splitlines() == [
        *("rank 0 │ a", "rank 0 │ b", "rank 1 │ a", "rank 1 │ b", "rank 1 → c", "rank 1   d")
    ]


@pytest.mark.parametrize("piece", [1, 1_000, MEGABYTE])
def test_of_a_long_text_both_ends_are_kept_and_the_rest_is_counted(piece):
    transcript = Transcript(4)
    text = "begin " + "x" * MEGABYTE + "\n" + "y" * 49 * MEGABYTE + " end" if piece > 1 else "begin " + "x" * MEGABYTE
    for start in range(0, len(text), piece):
        transcript.add(2, text[start : start + piece])
    first, cut, last = transcript.text().splitlines()
    assert first.startswith("rank 2 │ begin x") and last.endswith(text[-4:])
    assert cut == f"rank 2 │ … {len(text) - 100_000:,} characters are left out here …"
    assert len(first) + len(last) == 100_000 + 2 * len("rank 2 │ ")
    assert sum(map(len, transcript._printed[2]._tail)) < 50_000 + piece  # no memory for what is not shown


def test_a_text_that_just_fits_is_whole():
    transcript = Transcript(4)
    transcript.add(0, "x" * 100_000)
    assert transcript.text() == f"rank 0 │ {'x' * 100_000}\n"
    transcript.add(0, "y")
    assert "\nrank 0 │ … 1 characters are left out here …\n" in transcript.text()


def test_a_long_value_is_cut_too():
    transcript = Transcript(1)
    transcript.show_value(0, "z" * MEGABYTE)
    assert "600,000 characters are left out" in transcript.text()


def test_the_live_view_sends_the_latest_lines_only(monkeypatch):
    sent = []

    class Handle:
        def display(self, data, raw):
            sent.append(data["text/plain"])

        update = display

    monkeypatch.setattr(sys.modules["course_lib.ranks.transcript"], "_REFRESH_S", 0.0)
    monkeypatch.setattr("IPython.core.display_functions.DisplayHandle", Handle)
    live = LiveView(Transcript(2))
    for number in range(50):
        live.add(0, f"{number} " + "x" * MEGABYTE)
    live.add(1, "short\n")
    assert max(map(len, sent)) < 10_000
    assert sent[-1].splitlines()[0] == "rank 0 │ … 49,996,140 characters before this …"
    assert sent[-1].splitlines()[-1] == "rank 1 │ short"
