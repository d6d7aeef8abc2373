"""The last of what the fork server imports, and it alone: from here on it forks ranks."""

from __future__ import annotations

import atexit

from course_lib.ranks import tether
from course_lib.ranks.warm import warm

warm()
atexit.register(tether.leave)  # now, to come before what torch has to do at the end
