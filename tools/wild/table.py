"""The committed table: a file that lessons read, and `wild/RESULTS.md` for readers, written from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from tools.paths import ROOT
from tools.wild import scripts
from tools.wild.exhibits import FOLDER, Exhibit
from tools.wild.runs import BROKE, EQUAL, FELL, Outcome
from tools.wild.scripts import Script

RESULTS = ROOT / "course_lib/presets/wild/results.yaml"
PAGE, NOT_HERE = "RESULTS.md", "not_here.yaml"
CAUGHT = "caught"
HEAD = """# The wild wing

Each row is a bug that a release had: the ladder caught it, and it lets the mended release pass. Where no release has
mended it yet, it lets a workaround by hand pass. `make wild` installs them into environments of their own, runs them
anew and writes this page; `make wild ONLY=NAME` runs one of them. What is off is off on that rung by its largest
difference over the largest number; all that was said stands in `course_lib/presets/wild/results.yaml`.
"""
COLUMNS = "| bug | release | rung | cause | off by | loss curve off by | s | mended in | off by | s | run on |"
UNSEEN = """## Bugs that no ladder sees

Here a run dies, hangs, or reads other rows than it should. Each is a script in `wild/scripts`, run as the release does
it and mended by hand. What happens may depend on timing: the words are those of the last time.
"""
RULE = "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"


def verdict(exhibit: Exhibit, old: Outcome, mended: Outcome) -> str:
    """`caught`, or what is otherwise than the exhibit says."""
    wrong = [f"the {name} release broke: {one.said}" for name, one in _both(old, mended) if one.ended == BROKE]
    if old.ended == EQUAL:
        wrong.append(f"the old release passed, {old.deviation:.0e} apart")
    if old.ended == FELL and old.rung != exhibit.rung:
        wrong.append(f"the old release fell on {old.rung}, not on {exhibit.rung}")
    if old.ended == FELL and exhibit.cause not in old.causes:
        wrong.append(f"the ladder did not name {exhibit.cause!r}: {old.said}")
    if mended.ended == FELL:
        wrong.append(f"the mended release fell on {mended.rung}: {mended.said}")
    return "; ".join(wrong) or CAUGHT


def row(exhibit: Exhibit, old: Outcome, mended: Outcome, today: str) -> dict[str, Any]:
    """One exhibit's outcomes as they are kept, without this machine's folders."""
    return {
        "date": today,
        "open": exhibit.open,
        **{
            name: {**asdict(one), "causes": list(one.causes), "said": one.said.replace(f"{ROOT}/", "")}
            for name, one in _both(old, mended)
        },
    }


def keep(rows: Mapping[str, Any], file: Path = RESULTS) -> dict[str, Any]:
    """Write new rows beside those that are there, and return all of them."""
    kept = {**(yaml.safe_load(file.read_text()) if file.exists() else {}), **rows}
    file.write_text("# Written by `make wild`.\n" + yaml.safe_dump(kept, width=100))
    return kept


def page(
    exhibits: Sequence[Exhibit],
    rows: Mapping[str, Any],
    not_here: Sequence[Mapping[str, str]],
    alone: Sequence[Script] = (),
    ended: Mapping[str, Any] | None = None,
) -> str:
    """The page, with the exhibits that have a row, the scripts, their stories, and what does not show on CPUs."""
    shown = [exhibit for exhibit in exhibits if exhibit.name in rows]
    lines = [HEAD, COLUMNS, RULE, *(_line(exhibit, rows[exhibit.name]) for exhibit in shown)]
    if ended:
        lines += ["", *UNSEEN.splitlines(), "", *scripts.lines(alone, ended)]
    lines += ["", "## What happened", ""]
    told = [*shown, *(script for script in alone if ended and script.name in ended)]
    lines += [f"- **{one.name}** ({_links(one.links)}): {one.story}" for one in told]
    lines += ["", "## Looked for, and not shown here", ""]
    lines += [f"- {_links([one['link']])}, {one['what']}: {one['why']}" for one in not_here]
    return "\n".join(lines) + "\n"


def write_page(exhibits: Sequence[Exhibit], rows: Mapping[str, Any], folder: Path = FOLDER) -> None:
    """Write it where readers look."""
    not_here = yaml.safe_load((folder / NOT_HERE).read_text())
    (folder / PAGE).write_text(page(exhibits, rows, not_here, scripts.all_scripts(), scripts.keep({})))


def _line(exhibit: Exhibit, row: Mapping[str, Any]) -> str:
    old, mended = outcomes(row)
    release, found = f"{exhibit.library} {old.version}", verdict(exhibit, old, mended)
    if found != CAUGHT:
        return f"| {exhibit.name} | {release} | **{found}** | | | | | {mended.version} | | | {row['date']} |"
    cells = [
        exhibit.name,
        release,
        old.rung,
        ", ".join(old.causes),
        _share(old.deviation),
        _share(old.loss_apart),
        str(old.seconds),
        mended.version,
        f"{mended.deviation:.0e}",
        str(mended.seconds),
        row["date"],
    ]
    return f"| {' | '.join(cells)} |"


def outcomes(row: Mapping[str, Any]) -> tuple[Outcome, Outcome]:
    """What was kept of the old release and the mended one."""
    old, mended = (Outcome(**{**row[name], "causes": tuple(row[name]["causes"])}) for name in ("old", "mended"))
    return old, mended


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _links(links: Sequence[str]) -> str:
    """The public threads, each by its number."""
    found = []
    for link in links:
        repository, number = link.split("#")
        found.append(f"[{link}](https://github.com/{repository}/issues/{number})")
    return ", ".join(found)


def _both(old: Outcome, mended: Outcome) -> list[tuple[str, Outcome]]:
    return [("old", old), ("mended", mended)]
