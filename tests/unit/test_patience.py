"""Limits of honest work are generous where no person waits; those that a cell shows are what they say."""

from __future__ import annotations

import pytest

from course_lib.ranks.patience import Limit
from tools.paths import unhurried


@pytest.mark.parametrize(("given", "limit"), [(30.0, 300.0), (55.0, 550.0), (2.0, 2.0), (29.0, 29.0)])
def test_a_limit_that_is_not_there_to_be_met_is_ten_times_as_long(given, limit, monkeypatch):
    (name,) = unhurried()
    monkeypatch.setenv(name, "1")
    one = Limit(given)
    assert one.seconds == limit and limit - 5 < one.left_s <= limit
    one.renew(given)
    assert str(one) == f"no progress for {limit:g} s"
    monkeypatch.delenv(name)
    assert Limit(given).seconds == given
