"""A promised time, on a machine that may do other things as well."""

from __future__ import annotations

import os


def at_most(seconds):
    """The seconds by which a promise is kept, slack included, if so many programs want each core as do now."""
    return seconds * max(1.0, os.getloadavg()[0] / os.cpu_count())
