"""Which way to train: the best policy for a cluster, the layers of each stage, and how often to write a checkpoint.

`planner.goodput`, or `from course_lib.planner import goodput`: every public name of the files below is found here.
"""

from __future__ import annotations

from course_lib.door import all_names

__getattr__, __dir__ = all_names(__name__, "*.py")
