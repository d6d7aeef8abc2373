"""Frames are copied while they run."""

from __future__ import annotations

from types import SimpleNamespace

from course_lib.ranks.introspection import from_frame


def entered():
    pass


def test_a_frame_that_is_just_being_entered_has_its_function_s_line():
    code = entered.__code__
    found = from_frame(SimpleNamespace(f_code=code, f_lineno=None, f_locals={}))
    assert (found.line, found.source) == (code.co_firstlineno, "def entered():")
