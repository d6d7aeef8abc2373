"""What an exercise whose answer is a formula tells: the numeric signature, and that a bad answer harms nobody."""

from __future__ import annotations

import math
import os
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
import torch

from course_lib.checks import check
from course_lib.checks.kit import runner
from course_lib.checks.kit.formula import Call, Formula, formula_exercise, miscounted
from course_lib.checks.kit.probe import why_probe_fails
from course_lib.checks.kit.spec import Level
from course_lib.checks.module_01 import bits, counting, needs, zero_ranks
from course_lib.comm.ledger import Ledger
from course_lib.config import load_model
from course_lib.costs import model_parameters


class Two(NamedTuple):
    a: int
    b: int


TWICE = Call(text="twice", arguments=lambda seed: Two(10 + seed, 6))
PRODUCT = formula_exercise(
    key="00.0",
    title="a product",
    formulas=(
        Formula(
            name="product",
            answer=lambda g: g.a * g.b if g.a < 100 else None,
            show=lambda g: f"{g.a} and {g.b}",
            slips={"that is the sum": lambda g: g.a + g.b},
            amounts=lambda g: {"the first": g.a, "nothing": 0},
        ),
    ),
    levels={"all": Level(points=1, cases=(TWICE,), praise="right")},
    hints=("multiply",),
)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda a, b: a * b, None),
        (lambda a, b: float(a * b), None),
        (lambda a, b: a + b, "twice (11 and 6): your product is 0.258 x the reference: that is the sum"),
        (lambda a, b: 7 * a * b, "your product is exactly 7.0 x the reference"),
        (lambda a, b: a * b / 3, "your product is exactly 1/3 of the reference"),
        (lambda a, b: a * b - a, "your product is 0.833 x the reference: 11 too few, exactly the first"),
        (lambda a, b: a * b + 2 * a, "your product is 1.33 x the reference: 22 too many, exactly 2 x the first"),
        (lambda a, b: a * b + 1e-4, "your product is 1.00000152 x the reference"),
        (lambda a, b: 0, "your product is 0, not the reference"),
        (lambda a, b: math.inf, "your product is inf, not the reference"),
        (lambda a, b: None, "twice (11 and 6): returned None, the reference 66"),
        (lambda a, b: True, "returned bool, not a number"),
        (lambda a, b: a / 0, "twice: an error: it failed at line"),
        (lambda a, b: os._exit(1), "twice: a crash: its process ended"),
    ],
)  # fmt: skip
def test_a_wrong_number_tells_what_it_is(answer, text):
    found = why_probe_fails(PRODUCT, answer, TWICE, seed=1, timeout=100)
    assert found is None if text is None else text in found


@pytest.mark.parametrize(
    "kind", [np.int64, np.float64, np.array, torch.tensor, Fraction], ids=lambda kind: kind.__name__
)
def test_a_right_number_passes_whatever_holds_it(kind):
    assert why_probe_fails(PRODUCT, lambda a, b: kind(a * b), TWICE, seed=1, timeout=100) is None


def test_a_right_answer_to_01_3_may_be_numpy_s(answers):
    count = answers("solutions", "01_why_distributed")["count_parameters"]
    assert check("01.3", lambda config: np.int64(count(config))).passed


def test_none_is_an_answer_where_the_reference_is_none():
    beyond = Call(text="beyond", arguments=lambda seed: Two(200, 6))
    assert why_probe_fails(PRODUCT, lambda a, b: None, beyond, seed=0, timeout=100) is None
    found = why_probe_fails(PRODUCT, lambda a, b: a * b, beyond, seed=0, timeout=100)
    assert found == "beyond (200 and 6): returned 1,200, the reference None"


def test_a_nan_is_no_crash_of_the_check():
    assert "your product is nan" in why_probe_fails(PRODUCT, lambda a, b: math.nan, TWICE, seed=0, timeout=100)


def test_one_rank_is_enough_for_formulas(answers):
    runner.shutdown()
    assert check("01.3", answers("solutions", "01_why_distributed")["count_parameters"]).passed
    assert list(runner.POOLS) == [1]


def test_the_library_s_own_formula_is_no_answer():
    found = check("01.3", lambda c: model_parameters(c)).reason
    assert found.endswith("right, but by course_lib.costs.model_parameters: this exercise asks you to write it")


@pytest.mark.parametrize("name", bits.FORMATS)
def test_patterns_are_read_as_pytorch_reads_them(name):
    form = bits.FORMATS[name]
    one = bits.Number(0, 2 ** (form.exponent_bits - 1) - 1, 0, form.exponent_bits, form.mantissa_bits)
    largest = bits.Number(1, 2**form.exponent_bits - 2, 2**form.mantissa_bits - 1, *one[3:])
    assert bits.by_torch(name, [one, largest]) == [1.0, -torch.finfo(form.dtype).max]


@pytest.mark.parametrize(("kind", "says"), [(kind, says) for kind, slips in bits.SLIPS.items() for says in slips])
def test_a_misread_pattern_is_told_its_own_sentence(kind, says):
    """In the first format that shows it: the bias of fp16 is 15, and who knows that one alone reads it right."""
    for case in bits.VALUE_OF_BITS.levels[kind].cases:
        numbers = bits.draw(case, 0)
        read = [bits.SLIPS[kind][says](n) for n in numbers]
        right = says.startswith("exactly 2**112") and case.format.startswith("fp16")
        told = bits.verdict(case, numbers, (bits.by_torch(case.format, numbers) if right else read,), Ledger((), 1))
        if told:
            assert told.endswith(f": {says}")
            return
    pytest.fail("right everywhere")


def test_zero_1_s_reference_moves_weights_that_bf16_alone_would_not():
    run = zero_ranks.draw(zero_ranks.Training(world_size=2, length=12), seed=0)
    one_step = zero_ranks.trained(run._replace(gradients=run.gradients[:1]))
    assert torch.equal(one_step.bfloat16(), run.weights)
    assert not torch.equal(zero_ranks.trained(run).bfloat16(), run.weights)


@pytest.mark.parametrize("given", needs.SHAPES)
def test_the_shapes_of_01_4_tell_its_ways_to_count_apart(given):
    for memory in (needs.A100.memory_bytes(), needs.H100.memory_bytes()):
        assert len({given.gpus(memory, states) for states in ("workshop", "zero", "megatron")}) == 3
    assert len({int(given.room), math.ceil(given.room), needs.H100.memory_bytes() // given.sequence}) == 3


@pytest.mark.parametrize("level", ["kept", "recompute"])
@pytest.mark.parametrize("seed", range(6))
def test_a_term_that_is_missing_in_01_7_s_first_shape_is_named(level, seed):
    amounts = counting.tensors_of(counting.ACTIVATIONS.levels[level].cases[0].arguments(seed))
    for name, amount in amounts.items():
        assert miscounted(-amount, amounts).endswith(f"too few, exactly {name}")


def test_the_presets_of_01_3_are_the_published_sizes():
    assert model_parameters(load_model("llama3_1_8b")) == 8_030_261_248
