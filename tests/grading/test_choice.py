"""02.10 without ranks: its times are the library's, and each slip's choices are told that slip's sentence."""

from __future__ import annotations

import pytest

from course_lib.checks.kit.registry import find
from course_lib.checks.module_02 import choice
from course_lib.comm.ledger import Ledger
from course_lib.costs import comm_time
from course_lib.hardware import Link, Wires
from course_lib.units import format_seconds

LEVELS = {name: level.cases[0] for name, level in find("02.10").levels.items()}
SEEDS = range(5)
FEW = 96  # ranks; the library lists what each of them does in each step


def told(case, networks, names):
    return choice.verdict(case, networks, ([(name, "") for name in names],), Ledger((), 1))


def link(wire):
    return Link(name="", alpha_s=wire.alpha, bandwidth_bytes_per_s=1 / wire.beta, source="", date="")


def in_nodes(n):
    """Each rank has a card of its own."""
    inside = n.inside if n.node_size > 1 else n.between
    return Wires(
        domain=n.node_size,
        pair=link(inside),
        inside_bytes_per_s=1 / inside.beta,
        cards=n.node_size,
        card=link(n.between),
    )


@pytest.mark.parametrize("level", LEVELS)
def test_the_library_s_formula_makes_the_same_choices(level):
    """With every step as long as its slowest message; though some steps of the doublings stay inside a node there."""
    for n in choice.draw(LEVELS[level], 0):
        if n.p <= FEW:
            seconds = {name: in_lockstep(name, n) for name in choice.times(n)}
            assert choice.fastest(seconds)[0] in choice.fastest(choice.times(n))


def in_lockstep(name, n):
    """Seconds on the library's wires, if all ranks wait in each step for the network's latency."""
    cost = comm_time("all_reduce", name, world_size=n.p, length=n.M, itemsize=1, node_size=n.node_size)
    return sum(in_nodes(n).message_s(step.nbytes, step.leaving) for step in cost.path)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("seed", SEEDS)
def test_one_way_is_clearly_the_fastest(level, seed):
    for n in choice.draw(LEVELS[level], seed):
        first, second, *_ = sorted(choice.times(n).values())
        assert second > 1.0001 * first


SLIPS = [(says, number) for says, slips in choice.SLIPS.items() for number in range(len(slips))]


@pytest.mark.parametrize(("says", "number"), SLIPS)
def test_a_slip_is_told_its_own_sentence(says, number):
    """In the first level that shows it, with every seed."""
    slip = choice.SLIPS[says][number]
    for case in LEVELS.values():
        drawn = [choice.draw(case, seed) for seed in SEEDS]
        found = [told(case, networks, [choice.fastest(slip(n))[-1] for n in networks]) for networks in drawn]
        if any(found):
            assert all(reason.endswith(f"choices are not the fastest: {says}") for reason in found)
            return
    pytest.fail("right everywhere")


@pytest.mark.parametrize("name", choice.NAMES)
def test_who_always_takes_the_same_way_fails(name):
    assert all(told(case, networks := choice.draw(case, 0), [name] * len(networks)) for case in LEVELS.values())


def test_what_no_slip_explains_is_told_with_both_times():
    drawn = choice.draw(LEVELS["powers"], 0)
    names = ["ring" if n.p == 8 else choice.fastest(choice.times(n))[0] for n in drawn]
    ring, best = (format_seconds(choice.times(drawn[5])[name]) for name in ("ring", "recursive_doubling"))
    assert told(LEVELS["powers"], drawn, names) == (
        "ranks alike, 2, 4, 8, ... of them: 2 of 7 choices are not the fastest: "
        f"for {drawn[5]} you chose ring, {ring}; recursive_doubling takes {best}"
    )


def test_two_times_that_print_alike_are_told_by_their_difference():
    drawn = choice.draw(LEVELS["powers"], 0)
    names = [choice.fastest(choice.times(n))[0] for n in drawn]
    names[4:6] = "halving_doubling", "ring"
    seconds = choice.times(drawn[4])
    by = format_seconds(seconds["halving_doubling"] - seconds["recursive_doubling"])
    assert told(LEVELS["powers"], drawn, names) == (
        "ranks alike, 2, 4, 8, ... of them: 2 of 7 choices are not the fastest: "
        f"for {drawn[4]} you chose halving_doubling; recursive_doubling is faster by {by}"
    )


def test_a_cause_that_an_earlier_part_rules_out_is_not_told():
    """Whoever forgets alpha fails before there are nodes."""
    forgets = next(slips[0] for says, slips in choice.SLIPS.items() if says.startswith("a single number"))
    drawn = choice.draw(LEVELS["nodes"], 0)
    reason = told(LEVELS["nodes"], drawn, [choice.fastest(forgets(n))[-1] for n in drawn])
    assert "choices are not the fastest: for p = 64, M = 4" in reason
