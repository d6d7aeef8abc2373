"""Companion package of the course; `%load_ext course_lib` adds the `%%ranks` cell magic.

What nearly every page uses is found here: `from course_lib import comm, costs, predict, run_ranks, viz`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from course_lib.door import listed_names

if TYPE_CHECKING:
    from course_lib.checks.predict import predict, score
    from course_lib.ranks import ledger, run_ranks
else:
    __getattr__, __dir__ = listed_names(__name__)

__version__ = "0.1.0"


def load_ipython_extension(shell: Any) -> None:
    """Register `%%ranks` in the shell that runs `%load_ext course_lib`, and keep logs as quiet as the ranks do.

    What the cell imports after that is imported faster.
    """
    import os

    from course_lib.garbage import overlook_in_this_cell
    from course_lib.ranks.magic import register
    from course_lib.ranks.server import QUIET

    overlook_in_this_cell(shell)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    register(shell)
