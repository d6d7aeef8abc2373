"""What a wrong ratio says: each table, with the numbers written out for six ranks."""

from __future__ import annotations

import pytest

from course_lib.verify.causes import BYTES, GUESSES, MESSAGES, STEPS, VALUES, explain

ON_SIX = {  # of each table the ratios in its order, and the first words of what they mean
    "values": (
        VALUES,
        [-1, 6, 1 / 6, 2, 0.5, 0],
        ["the sign", "a sum", "an average", "everything", "half", "all"],
    ),
    "bytes": (BYTES, [6, 2, 3, 5], ["you send the whole", "each number", "whole tensors travel in 6 - 1", "one rank"]),
    "messages": (MESSAGES, [2, 1.2], ["is there one phase", "a loop makes one step too many"]),
    "steps": (STEPS, [5 / 3], ["one rank after the other"]),
    "guesses": (
        GUESSES,
        [0.6, 1.2, 5 / 6, 0.5, 3, 2, 6, 1 / 6, 5, 0.2, 3.6, 8, 0.125, 0.25, 1.048576, 0.95367431640625],
        [
            *("the whole tensor once", "p parts instead", "p-1 parts", "half of it", "p/2 times", "twice as much"),
            *("p times too much", "1/p of it", "p-1 times", "1/(p-1) of it", "p whole tensors", "bits instead"),
            *("divided by 8", "elements instead", "MiB (2**20 bytes) where", "MB (10**6 bytes) where"),
        ],
    ),
}


@pytest.mark.parametrize("name", ON_SIX)
def test_each_ratio_has_its_meaning(name):
    table, ratios, beginnings = ON_SIX[name]
    assert len(table) == len(ratios)
    for ratio, beginning in zip(ratios, beginnings, strict=True):
        assert explain(ratio, 6, table, most=1).startswith(beginning)
        assert explain(ratio * 1.001 + 0.002, 6, table, most=1) is None


def test_one_rank_has_no_ratios_and_two_meanings_are_enough():
    assert explain(0.5, 1, GUESSES) is None
    assert explain(2, 2, VALUES) == (
        "a sum that was taken 2 times, once per rank too often?; or everything is counted twice"
    )
    assert explain(2, 2, VALUES, most=1).endswith("too often?")
