"""The bug museum: silent errors that happened to others, as patches on this library.

Each passes for training when one looks at its loss curve, and each is caught by the verification ladder.
`BUGS` are those of data parallelism, `PIPELINE_BUGS` those of pipeline parallelism.
"""

from course_lib.verify.data_order import DATA_ORDER
from course_lib.verify.museum.bug import Bug, Issue
from course_lib.verify.museum.curve import Curve, curve_alone, curve_on_ranks, loss_curve_looks_right
from course_lib.verify.museum.data_parallel import BUGS
from course_lib.verify.museum.pipeline import PIPELINE_BUGS

__all__ = [
    "BUGS",
    "DATA_ORDER",
    "PIPELINE_BUGS",
    "Bug",
    "Curve",
    "Issue",
    "curve_alone",
    "curve_on_ranks",
    "loss_curve_looks_right",
]
