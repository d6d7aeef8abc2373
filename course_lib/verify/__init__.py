"""Proof that a parallel run equals one device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from course_lib.door import listed_names

if TYPE_CHECKING:
    from course_lib.verify.diagnosis import NotEqual
    from course_lib.verify.held import held_parts
    from course_lib.verify.ladder import Report, assert_parallel_equals
    from course_lib.verify.outputs import compare_outputs
    from course_lib.verify.pairs import RUNGS
    from course_lib.verify.precision import compare_logits
    from course_lib.verify.rounding import SOUND, compare_rounding
    from course_lib.verify.trainable import Trainable
else:
    __getattr__, __dir__ = listed_names(__name__)
