"""`make workshop ROUTE=day SEATS=20 CLUSTER=kempner_h100`: all that one needs who teaches a route, in one folder."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template

from course_lib.errors import four_parts
from course_lib.hardware import load_cluster
from tools.lesson import title
from tools.lesson_sections import OPENING
from tools.paths import ROOT
from tools.routes import Part, Route, routes
from tools.workshop.decks import build_slides
from tools.workshop.handout import write_handout
from tools.workshop.run_sheet import run_sheet
from tools.workshop.seats import TEXTS, Seats

_FILLED = {
    "seat.sbatch": "seat.sbatch",
    "preflight.sbatch": "preflight.sbatch",
    "jupyterhub.txt": "jupyterhub_config.txt",
    "ondemand_form.yml": "ondemand/form.yml",
    "ondemand_submit.yml.erb": "ondemand/submit.yml.erb",
}


def main(*words: str) -> int:
    """Write the kit, and say what lies where."""
    parser = argparse.ArgumentParser(prog="tools.workshop", description=__doc__)
    parser.add_argument("--route", default="", help="a workshop of notebooks/routes.yaml")
    parser.add_argument("--seats", type=int, default=20)
    parser.add_argument("--cluster", default="", help="a preset, as kempner_h100; without one the seats are laptops")
    parser.add_argument("--out", type=Path, default=ROOT / "build/workshop")
    asked = parser.parse_args(words)
    try:
        seats = seats_for(asked.route, asked.seats, asked.cluster)
    except ValueError as error:
        print(f"make workshop: {error}", file=sys.stderr)
        return 1
    folder = asked.out / seats.route.name
    shutil.rmtree(folder, ignore_errors=True)  # what another cluster or route left there would look like a part of it
    folder.mkdir(parents=True)
    print("make workshop: builds the slides, which takes minutes the first time …", file=sys.stderr, flush=True)
    titles = build_slides(seats.route.parts, folder / "slides")
    for name, says in write(seats, folder, titles).items():
        print(f"{folder / name}: {says}")
    return 0


def seats_for(route: str, number: int, cluster: str) -> Seats:
    """What was asked for. Raises: ValueError for a route that is unknown or not whole, and as `Seats`."""
    if route not in routes():
        values, rule = f"ROUTE={route}", "a workshop is one of the routes"
        raise ValueError(four_parts("workshop", values, rule, f"choose one of {', '.join(routes())}"))
    if lines := routes()[route].problems():
        raise ValueError(four_parts("workshop", f"ROUTE={route}", lines[0], "mend notebooks/routes.yaml"))
    return Seats(route=routes()[route], number=number, cluster=load_cluster(cluster) if cluster else None)


def write(seats: Seats, folder: Path, titles: Mapping[str, list[str]]) -> dict[str, str]:
    """Write all but the slides, which have these `titles` by deck; return what each file is for."""
    route = seats.route
    start = Template((TEXTS / "START.md").read_text(encoding="utf-8"))
    pages = {
        "START.md": start.substitute(route=route.title, parts=parts_of(route)),
        "README.md": f"# {route.title}\n\nBegin with [the first page](START.md).\n",
        "seat.sbatch": seats.filled("seat.sbatch"),
    }
    zipped = write_handout(folder / "handout", pages)
    texts = {
        "run_sheet.md": run_sheet(route, titles),
        "seats.md": seats.filled("seats.md"),
        **{target: seats.filled(name) for name, target in _FILLED.items()},
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    shutil.copy(TEXTS / "troubles.md", folder / "troubles.md")
    files = {
        "seats.md": "what a seat takes, and what to do a week and an evening before: begin here",
        "run_sheet.md": "what happens when, for you",
        "slides": "the route's slides with your notes, as HTML and PDF",
        zipped.name: "for the learners, without answers; `handout` is the same as a folder",
        "troubles.md": "what goes wrong, and what to type: print it",
        "seat.sbatch": "a seat on a cluster with Slurm; the handout has it too",
        "preflight.sbatch": "the evening before, a line for each seat",
        "jupyterhub_config.txt": "the same seat in JupyterHub's configuration",
        "ondemand": "the same seat as an app of Open OnDemand",
    }
    rows = [f"- [{name}]({name}): {says}" for name, says in files.items()]
    (folder / "README.md").write_text(
        "\n".join([f"# {route.title}: for who teaches it", "", *rows, ""]), encoding="utf-8"
    )
    return files


def parts_of(route: Route) -> str:
    """The lessons of a route as a list, with the sections that belong to it."""
    return "\n".join(f"- {_named(part)}" for part in route.parts if not part.rest)


def _named(part: Part) -> str:
    link = f"[{part.lesson} · {title(part.source)}](notebooks/{part.source.stem}.ipynb)"
    if part.sections == "core":
        return f"{link}, up to *Going deeper*"
    return f"{link}: " + ", ".join(f"*{one.name}*" for one in part.chosen if one.name != OPENING)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
