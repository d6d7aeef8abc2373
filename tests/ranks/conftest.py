"""What the ranks of these tests import by way of a test's own file is imported once for all of them."""

from __future__ import annotations

from course_lib.ranks import server

server.preload("pytest", "course_lib.training.sharded_checkpoint", "course_lib.training.torch_techniques")
