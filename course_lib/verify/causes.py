"""What gives a wrong ratio: one table for gradients, read by the ladder and the exercises, and those of exercises."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from course_lib.verify.ratios import agrees

Meaning = tuple[Callable[[int], float], str]  # a ratio, of the number of ranks, and what gives it
Causes = Sequence[tuple[float, str]]  # a ratio, and what gives just that

VALUES: tuple[Meaning, ...] = (
    (lambda p: -1, "the sign is turned round: a subtraction where an addition belongs?"),
    (lambda p: p, "a sum that was taken {p} times, once per rank too often?"),
    (lambda p: 1 / p, "an average: was the sum divided by the number of ranks ({p})?"),
    (lambda p: 2, "everything is counted twice"),
    (lambda p: 0.5, "half of it: divided by 2, or half of the ranks are missing"),
    (lambda p: 0, "all zeros: nothing was written into the result"),
)

AVERAGES: tuple[Meaning, ...] = (
    VALUES[0],
    (lambda p: p, "the sum itself: is it divided by the number of ranks ({p})?"),
    (lambda p: 1 / p, "is it divided by the number of ranks ({p}) twice?"),
    *VALUES[3:],
)

BYTES: tuple[Meaning, ...] = (
    (lambda p: p, "you send the whole tensor at each step, where one chunk (1/{p} of it) is enough"),
    (lambda p: 2, "each number travels twice"),
    (lambda p: p / 2, "whole tensors travel in {p} - 1 steps, where chunks (1/{p}) are enough"),
    (lambda p: p - 1, "one rank does the work of {p} - 1: let the others pass the data on"),
)

MESSAGES: tuple[Meaning, ...] = (
    (lambda p: 2, "is there one phase too many?"),
    (lambda p: p / (p - 1), "a loop makes one step too many: {p} - 1 are enough"),
)

STEPS: tuple[Meaning, ...] = (
    (lambda p: (p - 1) / math.ceil(math.log2(p)), "one rank after the other; in a tree, receivers help to send"),
)

GUESSES: tuple[Meaning, ...] = (
    (lambda p: p / (2 * (p - 1)), "the whole tensor once: a ring all-reduce sends 2(p-1)/p of it"),
    (lambda p: p / (p - 1), "p parts instead of p-1: a rank does not send to itself"),
    (lambda p: (p - 1) / p, "p-1 parts instead of p"),
    (lambda p: 0.5, "half of it: all-reduce has two phases, reduce-scatter and all-gather"),
    (lambda p: p / 2, "p/2 times too much: the whole tensor in each of p-1 steps"),
    (lambda p: 2, "twice as much: is one phase or one direction enough here?"),
    (lambda p: p, "p times too much: counted for all ranks together, or the whole tensor in every step"),
    (lambda p: 1 / p, "1/p of it: counted for one chunk or for one rank only"),
    (lambda p: p - 1, "p-1 times too much: counted for every partner"),
    (lambda p: 1 / (p - 1), "1/(p-1) of it: counted for one partner or one step only"),
    (lambda p: p * p / (2 * (p - 1)), "p whole tensors: a rank sends chunks, and only its own part of the traffic"),
    (lambda p: 8, "bits instead of bytes? One byte is 8 bits"),
    (lambda p: 1 / 8, "divided by 8? One byte is 8 bits, not the other way round"),
    (lambda p: 1 / 4, "elements instead of bytes? One float32 is 4 bytes"),
    (lambda p: 2**20 / 10**6, "MiB (2**20 bytes) where MB (10**6 bytes) is asked"),
    (lambda p: 10**6 / 2**20, "MB (10**6 bytes) where MiB (2**20 bytes) is asked"),
)


def explain(ratio: float, world_size: int, meanings: tuple[Meaning, ...], most: int = 2) -> str | None:
    """The meanings whose ratio this is, the likeliest first, `most` at most; None if there are none.

    >>> explain(0.25, 4, VALUES)
    'an average: was the sum divided by the number of ranks (4)?'
    """
    if world_size < 2:
        return None
    fitting = [text for of, text in meanings if math.isclose(ratio, of(world_size), rel_tol=1e-4, abs_tol=1e-9)]
    return "; or ".join(fitting[:most]).format(p=world_size) or None


def in_large_units(ratio: float) -> str:
    """What is said of an answer that is the right one in millions or billions, if it is; rounded as one says it.

    >>> in_large_units(8.03e9 / 8_030_261_248 / 1e9)
    'in billions? The number itself is asked'
    """
    for unit, name in ((1e-6, "millions"), (1e-9, "billions")):
        if math.isclose(ratio, unit, rel_tol=0.01):
            return f"in {name}? The number itself is asked"
    return ""


class Cause(NamedTuple):
    """What gives a ratio of gradients: as the exercises ask it, and as the ladder's way out."""

    name: str
    ratio: Callable[[int, int], float]  # over p ranks and m micro-batches
    question: str
    way_out: str


OF_GRADIENTS = (
    Cause(
        "sign",
        lambda p, m: -1,
        "a subtraction where an addition belongs?",
        "its sign is turned round: a subtraction where an addition belongs",
    ),
    Cause("nothing", lambda p, m: 0, "nothing wrote into it", "nothing wrote into it"),
    Cause(
        "summed", lambda p, m: p, "was the sum divided by world_size?", "divide the sum over the ranks by their number"
    ),
    Cause(
        "averaged twice",
        lambda p, m: 1 / p,
        "was it divided by world_size twice?",
        "the average was divided by the number of ranks once more",
    ),
    Cause(
        "not divided by micro-batches",
        lambda p, m: m,
        "was each loss divided by the number of micro-batches?",
        "divide each micro-batch's loss by their number",
    ),
    Cause(
        "divided by micro-batches twice",
        lambda p, m: 1 / m,
        "does only one micro-batch count, or was the loss divided twice?",
        "the loss was divided by the number of micro-batches once more, or only one of them counts",
    ),
)


def because(ratio: float, causes: Causes) -> str:
    """What usually gives this ratio, behind a colon; empty if nothing is known to."""
    texts = [text for expected, text in causes if agrees(ratio, expected)]
    return f": {texts[0]}" if texts else ""
