"""What communication costs, by formula: torch-free, and independent of the code that communicates."""

from __future__ import annotations

from course_lib.costs.comm_time import ALGORITHMS, comm_time
from course_lib.costs.traffic import CommTime, Step, split_sizes

__all__ = ["ALGORITHMS", "CommTime", "Step", "comm_time", "split_sizes"]
