"""Routes name sections and slides that are there, leave out no cell that others need, and fit into their time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tools.lesson import core_minutes
from tools.lesson_sections import OPENING, missing_names, most_ranks, sections
from tools.paths import ROOT
from tools.plans import plans
from tools.routes import Part, joined, routes, split_deck

LESSONS = sorted((ROOT / "notebooks/src").glob("[0-9]*.py"))


@pytest.mark.parametrize("name", routes())
def test_a_route_is_whole_and_fits_into_its_time(name):
    route = routes()[name]
    assert route.problems() == []
    assert all(part.chosen for part in route.parts if not part.rest)
    assert route.minutes > 0.7 * 60 * route.hours  # a room is not booked for nothing


@pytest.mark.parametrize("source", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_s_sections_are_its_core_path(source):
    found = sections(source)
    assert found[0].name == OPENING and sum(one.minutes for one in found) == pytest.approx(core_minutes(source))
    assert len({one.name for one in found}) == len(found)  # a route can name each of them
    assert missing_names(found, found) == []


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (Part(lesson="02", sections=["Prove it", "A section that was"]), "02: no section 'A section that was'"),
        (Part(lesson="03", sections="core", slides=("Gone",)), "03_mlp_ddp.md: no slide 'Gone'"),
        (
            Part(lesson="02", sections=["Which chunk, when?"]),
            "02: 'Which chunk, when?' uses gradients of the skipped 'First attempt: a circle'",
        ),
    ],
)
def test_a_route_is_refused_whose_cells_are_gone(part, said):
    route = replace(routes()["day"], parts=(part,))
    assert any(said in line for line in route.problems())


def test_a_route_is_refused_that_leaves_no_time_for_questions():
    route = routes()["hours"]
    full = replace(route, parts=(*route.parts, Part(rest=60, title="Lunch")))
    assert any("leave no tenth of 3 hours" in line for line in full.problems())


def test_a_seat_has_as_many_ranks_as_the_largest_cell():
    class Cell:
        cell_type, source = "code", "x = run_ranks(lambda: f(1), 3)\n"

    section = replace(sections(LESSONS[0])[0], cells=(Cell(),))
    assert most_ranks([section]) == 3
    assert [route.ranks for route in routes().values()] == [4, 4]


def test_a_deck_comes_apart_and_together_again():
    for deck in sorted((ROOT / "slides").glob("[0-9]*.md")):
        front, slides = split_deck(deck)
        assert joined(front, slides) == deck.read_text() and "```python setup" in front and len(slides) > 10


def test_plans_name_lessons_that_are_there_and_a_term_has_them_all():
    assert [line for plan in plans().values() for line in plan.problems()] == []
    term = plans()["university"]
    assert len(term.steps) == 12
    assert [lesson for step in term.steps for lesson in step.lessons] == [
        path.stem.partition("_")[0] for path in LESSONS
    ]
    lost = replace(term, steps=(replace(term.steps[0], lessons=("99",)),))
    assert [*lost.problems()] == ["university, Week 1: no lesson 99"]
    weekends = plans()["self"]
    assert len(weekends.steps) == 4 and len(plans()["weeks"].steps) == 8
    assert weekends.minutes(weekends.steps[0]) == sum(
        (weekends.steps[0].reading, weekends.steps[0].practising(("core",)))
    )
