"""Proof that a parallel run equals one device."""

from course_lib.verify.diagnosis import NotEqual
from course_lib.verify.ladder import Report, assert_parallel_equals
from course_lib.verify.pairs import RUNGS
from course_lib.verify.precision import compare_logits
from course_lib.verify.trainable import Trainable
