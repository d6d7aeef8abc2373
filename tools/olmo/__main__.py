"""Install OLMo's packages, train and read with them, and write what came out; the exit status says if all is equal."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import yaml

from tools.olmo import page, runs
from tools.pip import SetupError


def main() -> int:
    """Train first, then read; keep the rows and the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--yaml", default="", help="the workshop's own files, if you have them")
    files = [str(Path(file).resolve()) for file in parser.parse_args().yaml.split()]
    os.nice(19)
    with tempfile.TemporaryDirectory() as folder:
        try:
            trained = [runs.train(run, Path(folder)) for run in runs.RUNS]
            read = runs.read(files, Path(folder))
        except SetupError as error:
            print(f"make olmo: {error}", file=sys.stderr)
            return 1
    rows = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "trained": trained, "read": read}
    page.KEPT.write_text(yaml.safe_dump(rows, sort_keys=False, width=120))
    page.PAGE.write_text(page.page(rows))
    wrong = page.unequal(rows)
    print("\n".join([str(page.PAGE.relative_to(page.ROOT)), *(f"NOT EQUAL: {line}" for line in wrong)]))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
