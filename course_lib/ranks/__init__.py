"""Real processes behind a notebook: `%%ranks 4` for cells, `run_ranks` for functions."""

from course_lib.ranks.api import attach, detach, ledger, run_ranks, shutdown
from course_lib.ranks.report import RankError, RankTimeout
