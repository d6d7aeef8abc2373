"""Which commands there are; what stops one is said in a line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from course_lib.cli.tour import tour


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status: 0 good, 1 a proof failed, 2 not possible as asked."""
    parser = argparse.ArgumentParser(prog="python -m course_lib", description="the course without its notebooks")
    commands = parser.add_subparsers(required=True, metavar="command")
    command = commands.add_parser("tour", help="run every technique on real ranks and print one proof table")
    command.add_argument("--ranks", type=int, default=4, help="number of processes (default 4)")
    chosen = parser.parse_args(arguments)
    try:
        return tour(chosen.ranks)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
