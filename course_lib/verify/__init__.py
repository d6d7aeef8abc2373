"""Proof that a parallel run equals one device."""

from course_lib.verify.equality import NotEqual, Report, assert_parallel_equals
from course_lib.verify.trace import Experiment, Technique

__all__ = ["Experiment", "NotEqual", "Report", "Technique", "assert_parallel_equals"]
