"""Turns a filled deck into one self-contained HTML file and a PDF, by Marp on the Node that PyPI ships."""

from __future__ import annotations

import base64
import re
import shlex
import subprocess
from pathlib import Path

from tools import outside
from tools.paths import ROOT

FONTS = ROOT / "course_lib" / "viz" / "ink" / "fonts"
CHROMIUM_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
URL_IN_CSS = re.compile(r"url\(\"([^\":]+\.ttf)\"\)")
SOURCE_IN_HTML = re.compile(r'src="(figures/[^"]+\.svg)"')


def wrapper(folder: Path) -> Path:
    """Write the script that starts Chromium as root too, and return its path; Marp takes a program, not flags."""
    chromium = outside.find_chromium()
    if chromium is None:
        raise FileNotFoundError("slides: no Chromium on this machine; apt install chromium, or set CHROME_PATH")
    script = folder / "chromium.sh"
    flags = " ".join(CHROMIUM_FLAGS)
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(chromium)} {flags} "$@"\n')
    script.chmod(0o755)
    return script


def theme(source: Path, folder: Path) -> Path:
    """Write the theme with the course's fonts inside, so that a slide breaks its lines alike on every machine."""
    filled = folder / source.name
    filled.write_text(URL_IN_CSS.sub(lambda hit: f'url("{_data_url(FONTS / hit[1], "font/ttf")}")', source.read_text()))
    return filled


def convert(deck: Path, theme_css: Path, *targets: Path) -> None:
    """Write `deck` in the format that each target's ending names: html, pdf, or png (one file a slide)."""
    marp = ROOT / "slides" / "node_modules" / "@marp-team" / "marp-cli" / "marp-cli.js"
    for target in targets:
        command = [
            *(str(outside.node_folder() / "node"), str(marp), str(deck), "--output", str(target)),
            *("--theme-set", str(theme_css), "--html", "--allow-local-files", "--no-stdin"),
            *("--browser", "chrome", "--browser-path", str(wrapper(deck.parent))),
            *(("--images", "png") if target.suffix == ".png" else ()),
            *(("--pdf-outlines",) if target.suffix == ".pdf" else ()),
        ]
        done = subprocess.run(command, cwd=deck.parent, env=outside.with_tools(), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"slides: Marp could not write {target.name}:\n{done.stdout}{done.stderr}")
        if target.suffix == ".html":
            inline(target)


def inline(page: Path) -> None:
    """Put the figures into the HTML file itself, so that the lecturer carries one file."""

    def embedded(hit: re.Match[str]) -> str:
        return f'src="{_data_url(page.parent / hit[1], "image/svg+xml")}"'

    page.write_text(SOURCE_IN_HTML.sub(embedded, page.read_text()))


def _data_url(path: Path, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
