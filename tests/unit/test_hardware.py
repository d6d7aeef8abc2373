"""Links are sourced, and a message takes alpha + beta n."""

from __future__ import annotations

import pytest

from course_lib.hardware import ETHERNET, INFINIBAND, LINKS, NVLINK, Link


def test_a_message_takes_alpha_and_its_bytes():
    link = Link(name="test", alpha_s=2.0, bandwidth_bytes_per_s=4.0, source="made up", date="2026-11")
    assert link.beta_s_per_byte == 0.25
    assert link.time_s(0) == 2.0
    assert link.time_s(12) == 5.0


def test_bandwidths_are_one_way():
    assert NVLINK.bandwidth_bytes_per_s == 150e9  # 900 GB/s is all 18 links, both ways
    assert INFINIBAND.bandwidth_bytes_per_s == 400e9 / 8
    assert ETHERNET.bandwidth_bytes_per_s == 25e9 / 8


def test_every_link_is_found_by_name_and_has_a_source_and_a_date():
    assert list(LINKS) == ["nvlink", "infiniband", "ethernet"]
    for link in LINKS.values():
        assert "bandwidth" in link.source and "alpha" in link.source and "20" in link.date


def test_inside_a_node_is_faster_at_every_size():
    for nbytes in (0, 10**3, 10**9):
        assert NVLINK.time_s(nbytes) < INFINIBAND.time_s(nbytes) < ETHERNET.time_s(nbytes)


@pytest.mark.parametrize(("alpha_s", "bandwidth"), [(-1e-6, 1e9), (1e-6, 0)])
def test_impossible_links_are_refused(alpha_s, bandwidth):
    with pytest.raises(ValueError, match=r"^Link: alpha_s=.*; a latency is not negative .*; give seconds and bytes"):
        Link(name="bad", alpha_s=alpha_s, bandwidth_bytes_per_s=bandwidth, source="-", date="-")
