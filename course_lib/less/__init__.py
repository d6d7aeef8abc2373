"""Ways to send fewer bytes of a gradient, or to fewer others, and a laboratory that shows what each one loses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from course_lib.door import listed_names

if TYPE_CHECKING:
    from course_lib.less.compressor import Compressor, compressed
    from course_lib.less.largest_values import top_k
    from course_lib.less.low_rank import first_directions, from_factors, left_factor, orthonormal, right_factor
    from course_lib.less.random_rounding import qsgd
    from course_lib.less.random_values import rand_k
    from course_lib.less.scaled_sign import sign
    from course_lib.less.topologies import TOPOLOGIES, mixing, neighbours, spectral_gap
else:
    __getattr__, __dir__ = listed_names(__name__)
