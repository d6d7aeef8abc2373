"""Writes the sources of the site and lets Sphinx make pages of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.paths import ROOT
from tools.site import exercises, explorers, home, lessons, library, scripts, texts
from tools.site.card import draw_card
from tools.site.finish import finish
from tools.site.links import page_of
from tools.site.places import PAGES, SITE, SOURCES

LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))
EXERCISES = sorted((ROOT / "exercises/release").glob("*.ipynb"))
SLIDES = ROOT / "build/slides"


def build() -> None:
    """Write `build/site` anew.

    Raises: RuntimeError with Sphinx's words if it warned of anything, such as a link that leads nowhere.
    """
    shutil.rmtree(SOURCES, ignore_errors=True)
    shutil.rmtree(PAGES, ignore_errors=True)
    (SOURCES / "_extra").mkdir(parents=True)
    write_sources()
    command = [sys.executable, "-m", "sphinx", "-q", "-E", "-b", "html", "-c", str(SITE)]
    command += ["-d", str(SOURCES / ".doctrees"), str(SOURCES), str(PAGES)]
    told = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}  # the theme is of last year
    done = subprocess.run(command, cwd=ROOT, env=told, capture_output=True, text=True)
    if done.returncode or done.stderr:
        raise RuntimeError(f"site: Sphinx found\n{done.stderr}")
    finish()
    draw_card()


def write_sources() -> None:
    """Write a source for each page, and copy what is no page."""
    behind = library.library_files()
    files = [
        *LESSONS,
        *EXERCISES,
        *scripts.SCRIPTS.glob("*.py"),
        *(file for found in behind.values() for file in found),
    ]
    repository = [*(file.relative_to(ROOT).as_posix() for file in files), *texts.TEXTS, "README.md"]
    there = {str(page_of(file)) for file in repository} | copy_slides()
    for notebook in LESSONS:
        lessons.write_lesson(notebook, there)
    for notebook in EXERCISES:
        exercises.write_exercises(notebook, there)
    scripts.write_scripts()
    texts.write_texts(there)
    library.write_library(behind)
    explorers.write_explorers()
    home.write_home()


def copy_slides() -> set[str]:
    """Copy the decks that `make slides` has built, if it has; return their pages."""
    decks = sorted(SLIDES.glob("[0-9][0-9]*.html"))
    for deck in decks:
        for file in (deck, deck.with_suffix(".pdf")):
            _copy(file, SOURCES / "_extra/slides" / file.name)
    return {f"slides/{deck.stem}" for deck in decks}


def _copy(file: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, target)
