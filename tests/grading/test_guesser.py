"""A program that knows nothing and reads feedback: it earns nothing on a graded copy, and may in a learner's own."""

from __future__ import annotations

import re

import pytest
from test_sheets import SHEETS

from course_lib.checks import check
from course_lib.checks.kit.registry import find
from course_lib.checks.kit.sheet import judge_numbers

CHECKS = 8
RATIO = re.compile(r"(?P<below>1/)?(?P<ratio>[\d.]+) (?:x|of) the answer")
PERCENT = re.compile(r"(?P<percent>[\d.e-]+) % too (?P<side>small|large)")
UNITS = {"in millions?": 1e6, "in billions?": 1e9}


def better(guess, said):
    """The next guess, by what was said of this one."""
    if found := RATIO.search(said):
        return guess * float(found["ratio"]) if found["below"] else guess / float(found["ratio"])
    if found := PERCENT.search(said):
        sign = 1 if found["side"] == "large" else -1
        return guess / (1 + sign * float(found["percent"]) / 100)
    return next((guess * unit for words, unit in UNITS.items() if words in said), guess)


def said_of(result):
    """By name, what was said of a number."""
    lines = "; ".join(level.detail for level in result.levels if not level.passed)
    return dict(re.findall(r"(\w+) = \S+[^:]*: (.*?)(?=; \w+ = |$)", lines))


def earned(key, seed):
    """Points for the last of so many checks."""
    names = [ask.name for group in find(key).levels.values() for ask in group.asks]
    guesses = dict.fromkeys(names, 7.0)
    for _ in range(CHECKS):
        result = check(key, guesses, seed=seed)
        told = said_of(result)
        guesses = {name: rounded(better(guess, told.get(name, ""))) for name, guess in guesses.items()}
    return result.points


def rounded(guess):
    """A number that is nearly whole is meant to be whole."""
    return float(round(guess)) if abs(guess - round(guess)) < 1e-3 * abs(guess) else guess


@pytest.mark.parametrize("seed", [7, 12345])
def test_on_a_graded_copy_it_earns_nothing(seed):
    possible = sum(group.points for spec in SHEETS.values() for group in spec.levels.values())
    points = {key: earned(key, seed) for key in SHEETS}
    assert sum(points.values()) <= 0.01 * possible, points


def test_a_learner_s_own_notebook_stays_kind():
    assert sum(earned(key, 0) for key in SHEETS) > 50


@pytest.mark.parametrize("key", SHEETS)
def test_no_ratio_and_no_direction_is_told_on_a_graded_copy(key):
    spec = SHEETS[key]
    for level, group in spec.levels.items():
        for guess in (1e-3, 7.0, 1.07e3, 3.3e9, 1.9e13):
            answers = dict.fromkeys((ask.name for ask in group.asks), guess)
            (result,) = judge_numbers(spec, answers, [level], seed=7, kind=False)
            assert not re.search(r"\d x the answer|of the answer|% too", result.detail), result.detail
