"""Install the peers, compare, and write what came out; the exit status says if all is as it should be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import yaml

from tools.paths import ROOT, python_of
from tools.peers import page
from tools.pip import SetupError
from tools.wild.environments import environment_for
from tools.wild.runs import variables

HERE = Path(__file__).parent
LIMIT_S = 600


def main() -> int:
    """Keep the rows and the page."""
    os.nice(19)
    pins = (HERE / "pins.txt").read_text().split()
    begin = time.monotonic()
    try:
        rows = compared(pins)
    except SetupError as error:
        print(f"make peers: {error}", file=sys.stderr)
        return 1
    seconds = round(time.monotonic() - begin)
    kept = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "seconds": seconds, "pins": pins, "rows": rows}
    page.KEPT.write_text(yaml.safe_dump(kept, sort_keys=False, width=120))
    page.PAGE.write_text(page.page(kept))
    wrong = page.unequal(kept)
    print("\n".join([str(page.PAGE.relative_to(ROOT)), *(f"NOT EQUAL: {line}" for line in wrong)]))
    return bool(wrong)


def compared(pins: list[str]) -> list[dict[str, object]]:
    """The rows of `compare.py`, run where the peers are.

    Raises: SetupError if pip cannot install them, or the comparison breaks.
    """
    command = [str(python_of(environment_for(pins))), "-m", "tools.peers.compare"]
    run = subprocess.run(command, cwd=ROOT, env=variables(), capture_output=True, text=True, timeout=LIMIT_S)
    if run.returncode:
        raise SetupError((run.stderr or run.stdout).strip().splitlines()[-1])
    rows: list[dict[str, object]] = json.loads(run.stdout.strip().splitlines()[-1])
    return rows


if __name__ == "__main__":
    sys.exit(main())
