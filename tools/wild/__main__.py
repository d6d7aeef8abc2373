"""Run the exhibits, old release and mended, one after the other; the exit status is 1 if one is not as it says."""

from __future__ import annotations

import argparse
import os
import sys
from datetime import UTC, datetime

from tools.pip import SetupError
from tools.wild import exhibits, scripts, table
from tools.wild.exhibits import Exhibit
from tools.wild.runs import BROKE, Outcome, climb
from tools.wild.scripts import Script


def main() -> int:
    """Keep the table after each exhibit; say loudly what is otherwise than expected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="the name of one exhibit")
    os.nice(19)
    only = parser.parse_args().only
    alone = [script for script in scripts.all_scripts() if only in ("", script.name)]
    try:
        wanted = [] if only and alone else exhibits.all_exhibits(only)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    wrong = [exhibit.name for exhibit in wanted if show(exhibit) != table.CAUGHT]
    wrong += [script.name for script in alone if not show_alone(script)]
    if wrong:
        print(f"\nNOT AS THEY SHOULD BE: {', '.join(wrong)}", file=sys.stderr)
    return bool(wrong)


def show(exhibit: Exhibit) -> str:
    """Run both releases, write the table, and return the verdict."""
    old, mended = attempt(exhibit, mended=False), attempt(exhibit, mended=True)
    rows = table.keep({exhibit.name: table.row(exhibit, old, mended, f"{datetime.now(UTC):%Y-%m-%d}")})
    table.write_page(exhibits.all_exhibits(), rows)
    found = table.verdict(exhibit, old, mended)
    print(f"{exhibit.name}: {found} ({old.seconds} + {mended.seconds} s)", flush=True)
    return found


def show_alone(script: Script) -> bool:
    """Run a script both ways, write the table, and say whether it is as told."""
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    try:
        kept = scripts.row(*(scripts.run(script, way) for way in scripts.WAYS), today)
    except SetupError as error:
        print(f"{script.name}: {error}", file=sys.stderr)
        return False
    scripts.keep({script.name: kept})
    table.write_page(exhibits.all_exhibits(), table.keep({}))
    seconds = " + ".join(str(kept[way]["seconds"]) for way in scripts.WAYS)
    print(f"{script.name}: {kept['released']['said']}; mended: {kept['mended']['said']} ({seconds} s)", flush=True)
    return scripts.is_as_told(kept)


def attempt(exhibit: Exhibit, *, mended: bool) -> Outcome:
    """A release that cannot be installed is a row of the table too."""
    try:
        return climb(exhibit, mended=mended)
    except SetupError as error:
        return Outcome(version=exhibit.release(exhibit.mended if mended else exhibit.old), ended=BROKE, said=str(error))


if __name__ == "__main__":
    sys.exit(main())
