"""Numbers become text in one way, and GB never means GiB."""

from __future__ import annotations

import pytest

from course_lib.units import GB, TB, GiB, KiB, MiB, TiB, format_bytes, format_count, format_seconds


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (KiB, "1 KiB"),
        (1.5 * MiB, "1.5 MiB"),
        (MiB - 1, "1 MiB"),  # rounds up into the next unit, not to 1024 KiB
        (1023 * KiB, "1023 KiB"),
        (80 * GiB, "80 GiB"),
        (5000 * TiB, "5000 TiB"),
        (-3 * KiB, "-3 KiB"),
    ],
)
def test_binary_bytes(n, text):
    assert format_bytes(n) == text


def test_decimal_bytes_are_another_unit():
    assert format_bytes(80 * GB, binary=False) == "80 GB"
    assert format_bytes(80 * GB) == "74.51 GiB"
    assert format_bytes(7.5 * TB, binary=False) == "7.5 TB"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (3e-10, "0.3 ns"),
        (1.23e-5, "12.3 us"),
        (0.0045, "4.5 ms"),
        (0.9999, "1 s"),
        (59, "59 s"),
        (90, "1.5 min"),
        (86_400 * 21, "21 d"),
    ],
)
def test_seconds(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("n", "text"), [(0, "0"), (38, "38"), (999_999, "1 M"), (65_288_471_656, "65.3 B"), (1.4e12, "1.4 T")]
)
def test_counts(n, text):
    assert format_count(n) == text
