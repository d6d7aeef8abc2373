"""Ways to send fewer bytes of a gradient, or to fewer others, and a laboratory that shows what each one loses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from course_lib.door import listed_names

if TYPE_CHECKING:
    from course_lib.less.averaging import gossip, local
    from course_lib.less.both_ends import double_squeeze, in_rounds, neolithic
    from course_lib.less.bowls import Bowls
    from course_lib.less.byzantine import ATTACKS, RULES, aggregate, attacked
    from course_lib.less.compressor import Compressor, compressed
    from course_lib.less.consensus import disagreement, opinions
    from course_lib.less.descent import descend
    from course_lib.less.error_memory import error_feedback, follow_number, merged
    from course_lib.less.gradient_models import ef21
    from course_lib.less.largest_values import top_k
    from course_lib.less.low_rank import first_directions, from_factors, left_factor, orthonormal, right_factor
    from course_lib.less.methods import Memory, Method, alone, psgd
    from course_lib.less.quadratics import three_gradients, three_quadratics
    from course_lib.less.random_rounding import qsgd
    from course_lib.less.random_values import rand_k
    from course_lib.less.run import LabRun, steps_to
    from course_lib.less.scaled_sign import sign
    from course_lib.less.staleness import largest_rate, stale, stale_quadratic
    from course_lib.less.thin_factors import power_sgd
    from course_lib.less.topologies import TOPOLOGIES, mixing, neighbours, spectral_gap
    from course_lib.less.two_bowls import drift
    from course_lib.less.workers import Workers
else:
    __getattr__, __dir__ = listed_names(__name__)
