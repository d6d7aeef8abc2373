"""Figures and widgets of the course: each is one call that returns a `Picture` with a text alternative,
or one that moves.

`viz.plot_ranks(4)`: every public function of the files below that returns something to look at is found here, so
that a new figure touches its own file alone. Each draws the facts it is given; none computes or trains.
"""

from __future__ import annotations

from course_lib.door import all_that_return

__getattr__, __dir__ = all_that_return(__name__, {"Picture", "Drawing", "Explorer", "Stepper", "Source", "Watched"})
