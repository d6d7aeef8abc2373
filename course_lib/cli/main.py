"""`course`, or `python -m course_lib`: which command is meant; what stops one is said in a line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import course_lib
from course_lib.cli.command_help import help_of, overview
from course_lib.cli.commands import COMMANDS
from course_lib.cli.compose import did_you_mean, refuse
from course_lib.garbage import overlooked

_HELP = ("-h", "--help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status: 0 good, 1 a proof failed or a run would, 2 not possible as asked."""
    try:
        return _run(*(sys.argv[1:] if arguments is None else arguments))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print(f"interrupted{interrupt}", file=sys.stderr)
        return 130


def _run(first: str = "", *rest: str) -> int:
    """Run the command that comes first with what comes after it."""
    if first == "--version":
        print(f"course {course_lib.__version__}")
    elif first in _HELP:
        print(overview())
    elif first not in COMMANDS:
        said = f"'{' '.join(first.split())}'" if first else "no command"
        way_out = f"choose from {', '.join(COMMANDS)}{did_you_mean(first, COMMANDS)}"
        refuse("course", said, "a command comes first", way_out)
    elif any(word in _HELP for word in rest):
        print(help_of(first))
    else:
        with overlooked():
            command = COMMANDS[first].function()
        return command(rest)
    return 0
