"""Builds the slides as HTML and PDF in build/slides; `--check` also looks at every slide in a headless browser."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from slides import blocks, deck_check, marp, measured, template
from tools.paths import ROOT, unhurried

SLIDES = ROOT / "slides"
OUTPUT = ROOT / "build" / "slides"


def main() -> int:
    """Build the decks whose names start with the given text; the exit status says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="?", default="", help="start of a name, for instance 02")
    parser.add_argument("--check", action="store_true", help="build the HTML only, and check each slide")
    parser.add_argument("--measure", action="store_true", help="first measure all-reduce on this machine (a minute)")
    parser.add_argument("--images", type=Path, metavar="DIR", help="also write each slide as a picture into DIR")
    arguments = parser.parse_args()
    os.environ.update(unhurried())
    if arguments.measure:
        measured.measure()
    sources = decks(arguments.only)
    problems = [] if sources else [f"no deck's name starts with {arguments.only!r}"]
    for source in sources:
        started = time.monotonic()
        kinds = (".html",) if arguments.check else (".html", ".pdf")
        page = build(source, OUTPUT, kinds)
        if arguments.images:
            arguments.images.mkdir(parents=True, exist_ok=True)
            pictures = arguments.images.resolve() / f"{source.stem}.png"
            marp.convert(page.with_suffix(".md"), OUTPUT / "theme.css", pictures)
        print(f"{source.stem}: {', '.join(kinds)} in {time.monotonic() - started:.1f} s", flush=True)
    if arguments.check:
        problems += checked(sources)
    print("\n".join(problems), end="\n" if problems else "", file=sys.stderr)
    return int(bool(problems))


def checked(sources: list[Path]) -> list[str]:
    """Look at the built decks in one browser; return a line for each thing wrong."""
    with deck_check.opened() as browser:
        found = {source: deck_check.problems(browser, source, OUTPUT / f"{source.stem}.html") for source in sources}
    return [f"{source.name}, {line}" for source, lines in found.items() for line in lines]


def decks(start: str = "") -> list[Path]:
    """The decks whose names start so, in order."""
    return sorted(path for path in SLIDES.glob("[0-9][0-9]_*.md") if path.name.startswith(start))


def build(source: Path, output: Path, kinds: tuple[str, ...]) -> Path:
    """Fill one deck, draw its figures, write it in each of `kinds` (file endings); return the HTML's path."""
    output.mkdir(parents=True, exist_ok=True)
    folder = output / "figures" / source.stem
    shutil.rmtree(folder, ignore_errors=True)
    figures = template.Figures(folder, relative_to=output)
    filled = output / source.name
    names = {"picture": figures.picture, "sweep": measured.load, **{name: getattr(blocks, name) for name in blocks.ALL}}
    filled.write_text(template.with_clock(template.fill(source.read_text(), names)))
    theme = marp.theme(SLIDES / "theme.css", output)
    marp.convert(filled, theme, *(output / (source.stem + kind) for kind in kinds))
    return filled.with_suffix(".html")


if __name__ == "__main__":
    sys.exit(main())
