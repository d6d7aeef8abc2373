"""Every message about a caller's mistake has one form."""

from __future__ import annotations

from course_lib import errors


def test_four_parts_make_one_line():
    message = errors.four_parts("all_reduce", "length=0", "the tensor is not empty", "give at least one element")
    assert message == "all_reduce: length=0; the tensor is not empty; give at least one element"
