"""What a master leaves to the exercises themselves: titles, points, the table at its head, and the graded cells."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import ceil
from typing import Any

import nbformat

from course_lib.checks.kit.registry import Exercise, find
from course_lib.checks.kit.sheet import NumberExercise

HEAD = re.compile(
    r"^## (?P<key>\d\d\.\d+)\n\n\*(?P<kind>[^·*]+) · (?P<difficulty>easy|medium|hard) · "
    r"(?P<importance>core|useful|extra) · (?P<minutes>\d+) minutes\.\*"
)
SHEET = re.compile(r"^(?P<name>\w+) = \.\.\.$", re.MULTILINE)
CHECK = re.compile(r'^check\("(?P<key>\d\d\.\d+)", (?P<answer>\w+)', re.MULTILINE)
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
TABLE = (
    "| | kind | exercise | difficulty | importance | minutes | points |",
    "| --- | --- | --- | --- | --- | --- | --- |",
)


def completed(cells: list[Any]) -> list[Any]:
    """A master's cells with the table in the first one, titles and points in the heads, graded cells behind answers.

    Where an answer is `name = ...`, it becomes the dict of the sheet's numbers by their names.
    """
    heads = [match for cell in cells if cell.cell_type == "markdown" and (match := HEAD.match(cell.source))]
    cells[0].source = "\n\n".join([cells[0].source.rstrip(), totals(heads), table(heads)])
    found = []
    for cell in cells:
        if cell.cell_type == "markdown":
            cell.source = HEAD.sub(head, cell.source)
        elif (asked := CHECK.search(cell.source)) and isinstance(spec := find(asked["key"]), NumberExercise):
            cell.source = SHEET.sub(lambda answer, spec=spec: by_name(answer["name"], spec), cell.source)
        found += [cell, *graded_cells(cell)]
    return found


def totals(heads: list[re.Match[str]]) -> str:
    """How many exercises, how many points, and how long."""
    sum_of_points = sum(points(find(one["key"])) for one in heads)
    core = [one for one in heads if one["importance"] == "core"]
    return (
        f"{counted(len(heads)).capitalize()} exercises, {sum_of_points} points, about {duration(heads)}. The "
        f"{counted(len(core))} that are *core* take {duration(core)}, and later modules build on them. *Useful* ones "
        "deepen them, *extra* ones can wait."
    )


def table(heads: list[re.Match[str]]) -> str:
    """A row for each exercise; its kind has a column of its own."""
    rows = [
        f"| {one['key']} | {kind} | {spec.title.removeprefix(f'{kind}: ')} | {one['difficulty']} "
        f"| {one['importance']} | {one['minutes']} "
        f"| {points(spec)} |"
        for one in heads
        for kind, spec in [(one["kind"].lower(), find(one["key"]))]
    ]
    return "\n".join([*TABLE, *rows])


def head(found: re.Match[str]) -> str:
    """The first lines of an exercise, with its title and its points."""
    spec = find(found["key"])
    marks = " · ".join(found[name] for name in ("kind", "difficulty", "importance"))
    facts = f"*{marks} · {found['minutes']} minutes · {points(spec)} points.*"
    return f"## {spec.key} {spec.title[0].upper()}{spec.title[1:]}\n\n{facts}"


def graded_cells(cell: Any) -> Iterator[Any]:
    """Behind an answer: a cell for each level of its exercise, which fails unless the level passes."""
    mark = cell.metadata.get("nbgrader", {})
    if mark.get("solution") and (found := CHECK.search(cell.source)):
        spec = find(found["key"])
        for name, level in spec.levels.items():
            graded = {**mark, "grade": True, "locked": True, "solution": False, "points": level.points}
            graded["grade_id"] = f"{mark['grade_id']}-{name}"
            source = graded_source(spec, name, found["answer"])
            yield nbformat.v4.new_code_cell(source, metadata={"nbgrader": dict(sorted(graded.items()))})


def graded_source(spec: Exercise, level: str, answer: str) -> str:
    """What a graded cell runs; a function is asked once more with other inputs, where its level says so.

    Its first line is what JupyterLab shows of a folded cell.
    """

    def graded(seed: str) -> str:
        return f'grade("{spec.key}", {answer}, "{level}"{seed})'

    lines = [f"# Graded: {spec.key} {level}", "from course_lib.checks import grade", ""]
    if isinstance(spec, NumberExercise):
        return "\n".join([*lines, graded(", seed=GRADE_SEED")])
    lines.append(graded(""))
    if spec.levels[level].again:
        lines += ["### BEGIN HIDDEN TESTS", graded(", seed=GRADE_SEED + 1"), "### END HIDDEN TESTS"]
    return "\n".join(lines)


def by_name(answer: str, spec: NumberExercise) -> str:
    """The lines that put all numbers of a sheet into a dict."""
    names = [ask.name for group in spec.levels.values() for ask in group.asks]
    return "\n".join([f"{answer} = {{", *(f'    "{name}": {name},' for name in names), "}"])


def points(spec: Exercise) -> int:
    """Of all levels."""
    return sum(level.points for level in spec.levels.values())


def counted(number: int) -> str:
    """A small number as a word.

    >>> counted(10), counted(13)
    ('ten', '13')
    """
    return NUMBERS[number] if number < len(NUMBERS) else str(number)


def duration(heads: list[re.Match[str]]) -> str:
    """The sum of the minutes, to the next ten of them, in words."""
    return in_hours(sum(int(one["minutes"]) for one in heads))


def in_hours(minutes: int) -> str:
    """Minutes as one says them.

    >>> in_hours(150), in_hours(60), in_hours(195)
    ('two and a half hours', 'one hour', 'three hours and 20 minutes')
    """
    hours, rest = divmod(10 * ceil(minutes / 10), 60)
    if rest == 30:
        return f"{counted(hours)} and a half hours"
    unit = "hour" if hours == 1 else "hours"
    return f"{counted(hours)} {unit}{f' and {rest} minutes' if rest else ''}"
