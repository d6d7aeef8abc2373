"""Wrong answers to the toy's exercise: all of them are slips of its sheet."""

from __future__ import annotations

WRONG = {}
HANGS = {}
