"""Writes what people read of the routes: `notebooks/ROUTES.md`, the placement test, and the rows of the contents."""

from __future__ import annotations

import re
from math import ceil

from tools.exam.bank import placement
from tools.exam.question import Question, in_words
from tools.exercise_facts import in_hours
from tools.lesson import title as title_of_lesson
from tools.lesson_sections import OPENING
from tools.paths import ROOT
from tools.plans import Plan, Step, plans
from tools.routes import Part, Route, routes

ROUTES, PLACEMENT = ROOT / "notebooks/ROUTES.md", ROOT / "notebooks/PLACEMENT.md"
PUBLIC_SEED = 0
_OPENING = """# Ways through the course

All minutes follow from the lessons, the slides and the exercises as they are today. For reading we count 150 words a
minute, for running a code cell one minute, and for a prediction two more."""
_TEST = """# Where do you begin?

Ten questions, one for each of ten lessons. Take paper and half an hour, and look nothing up. If your answer is within
one percent of ours, you may leave that lesson out; read its last page all the same, because the next lesson begins
there. If you are wrong, or would have to guess, read it. Nobody sees your answers."""


def summary() -> str:
    """The section of the table of contents: one row for each way."""
    rows = [f"| {_link(one)} | {one.needs} | {in_hours(told(one.minutes))} |" for one in routes().values()]
    rows += [f"| {_link(one)} | {one.needs} | {_hours_of_plan(one)} |" for one in plans().values()]
    head = ["## Ways through", "", "| way | what it needs | how long |", "| --- | --- | --- |"]
    return "\n".join([*head, *rows])


def page() -> str:
    """The whole page of routes."""
    return "\n\n".join([_OPENING, *map(_of_route, routes().values()), *map(_of_plan, plans().values())]) + "\n"


def placement_page() -> str:
    """The placement test, its answers folded."""
    return "\n\n".join([_TEST, *(_asked(number, one) for number, one in enumerate(placement(), 1))]) + "\n"


def told(minutes: float) -> int:
    """Minutes as one tells them: the next five."""
    return 5 * ceil(minutes / 5)


def _link(one: Route | Plan) -> str:
    place = re.sub(r"[^\w -]", "", one.title.lower()).replace(" ", "-")
    return f"[{one.title}](ROUTES.md#{place})"


def _hours_of_plan(plan: Plan) -> str:
    return in_hours(sum(map(plan.minutes, plan.steps)))


def _of_route(route: Route) -> str:
    rows = [_row(part) for part in route.parts]
    head = ["| part | what | minutes |", "| --- | --- | --- |"]
    room = f"{in_hours(told(route.minutes)).capitalize()} with its breaks; book the room for {route.hours:g} hours."
    kit = f"`make workshop ROUTE={route.name} SEATS=20` writes what its teacher needs."
    return "\n\n".join([f"## {route.title}", f"{route.says} {room} {kit}", "\n".join([*head, *rows])])


def _row(part: Part) -> str:
    if part.rest:
        return f"| | {part.title} | {part.rest} |"
    named = [one.name for one in part.chosen if one.name != OPENING]
    what = "the core path" if part.sections == "core" else ", ".join(f"*{name}*" for name in named)
    slides = f"; {len(part.shown)} slide{'s' * (len(part.shown) > 1)}" if part.shown else ""
    return f"| [{part.lesson}]({part.source.stem}.ipynb) | {what}{slides} | {part.minutes:.0f} |"


def _of_plan(plan: Plan) -> str:
    marks = " and ".join(f"*{mark}*" for mark in plan.exercises)
    heads = [
        "",
        "lessons",
        *(["lecture"] if plan.lectures else []),
        "reading and running",
        f"exercises marked {marks}",
        "minutes",
    ]
    rows = [_step(plan, step) for step in plan.steps]
    table = "\n".join([f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}", *rows])
    return "\n\n".join([f"## {plan.title}", f"{plan.says} Altogether {_hours_of_plan(plan)}.", table, *plan.after])


def _step(plan: Plan, step: Step) -> str:
    lessons = ", ".join(f"[{lesson}]({_source(lesson)}.ipynb)" for lesson in step.lessons)
    if step.says:
        lessons = f"{lessons}; {step.says}"
    lecture = [step.lecture] if plan.lectures else []
    minutes = [*lecture, step.reading, step.practising(plan.exercises), plan.minutes(step)]
    return f"| {' | '.join([step.title, lessons, *(str(one or '–') for one in minutes)])} |"


def _source(lesson: str) -> str:
    return next((ROOT / "notebooks/src").glob(f"{lesson}_*.py")).stem


def _asked(number: int, question: Question) -> str:
    source = next((ROOT / "notebooks/src").glob(f"{question.lesson}_*.py"))
    answer = in_words(question.right(PUBLIC_SEED), question.unit)
    link = f'<a href="{source.stem}.ipynb">lesson {question.lesson}, {title_of_lesson(source)}</a>'
    return (
        f"**{number}.** {question.asked(PUBLIC_SEED)}\n\n"
        f"<details><summary>The answer, and its lesson</summary>{answer}: {link}.</details>"
    )


def write() -> None:
    """Write both pages."""
    ROUTES.write_text(page(), encoding="utf-8")
    PLACEMENT.write_text(placement_page(), encoding="utf-8")
