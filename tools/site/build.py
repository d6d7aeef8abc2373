"""Writes the sources of the site and lets Sphinx make pages of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from tools.paths import ROOT
from tools.site import decks, exercises, explorers, home, lessons, library, plans, scripts, texts
from tools.site.card import draw_card
from tools.site.finish import finish
from tools.site.links import page_of
from tools.site.places import PAGES, SITE, SOURCES

LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))
EXERCISES = sorted((ROOT / "exercises/release").glob("*.ipynb"))


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
    there = {str(page_of(file)) for file in repository} | {decks.INDEX}
    slides = decks.copy_decks()
    for notebook in LESSONS:
        lessons.write_lesson(notebook, there, slides.get(notebook.stem, []))
    for notebook in EXERCISES:
        exercises.write_exercises(notebook, there)
    decks.write_decks(slides)
    scripts.write_scripts()
    texts.write_texts(there)
    library.write_library(behind)
    explorers.write_explorers()
    plans.write_plans()
    home.write_home()
