"""The bank of computed questions: what is asked has an answer, and another seed is another exam."""

from __future__ import annotations

import math
import re

import pytest

from tools.exam.__main__ import main
from tools.exam.bank import BANK, paper, placement

SEEDS = range(40)
BY_KEY = {question.key: question for question in BANK}
BY_HAND = {  # what one computes on paper
    "01a": ({"billions": 7}, 7 * 16),
    "01c": ({"gigabytes": 914, "each": 80}, 12),
    "01d": ({"gpus": 512, "tflops": 312, "percent": 40, "billions": 70, "trillions": 2}, 8.4e23 / 6.389760e16 / 86400),
    "02a": ({"ranks": 4, "mebibytes": 256}, 2 * 3 / 4 * 256),
    "02d": ({"latency_us": 50, "gigabytes_per_s": 50, "ranks": 4, "megabytes": 16}, 6 * (0.05 + 0.08)),
    "03b": ({"ranks": 2, "lonely": 1, "many": 7}, 4),
    "04a": ({"ranks": 4, "microbatches": 9}, 3 / 12),
    "05a": ({"ranks": 4, "tokens": 4096, "wide": 4096}, 4 * 1.5 * 32),
    "06b": ({"ranks": 64, "billions": 16}, 2 * 16 + 14 * 16 / 64),
    "09a": ({"length": 4, "ranks": 2}, (3 + 4) / (1 + 2)),
    "11b": ({"millions": 64}, 64 * (0.5 + 4 / 64)),
}


def test_the_bank_has_forty_questions_and_each_lesson_from_01_on_has_some():
    assert len(BY_KEY) == len(BANK) == 40
    assert {question.lesson for question in BANK} == {f"{number:02}" for number in range(1, 13)}


@pytest.mark.parametrize("key", BY_KEY)
def test_a_question_is_another_one_with_another_seed(key):
    question = BY_KEY[key]
    answers = {question.right(seed) for seed in SEEDS}
    assert len(answers) > 2 and all(math.isfinite(one) and one > 0 for one in answers)
    assert len({question.asked(seed) for seed in SEEDS}) >= len(answers)
    assert all(f"{{{name}}}" in question.text for name in question.given)  # whatever is drawn is also said


@pytest.mark.parametrize("key", BY_HAND)
def test_an_answer_is_what_one_computes_on_paper(key):
    given, answer = BY_HAND[key]
    assert BY_KEY[key].answer(**given) == pytest.approx(answer)


def test_a_paper_takes_many_lessons_and_each_question_once():
    chosen = paper(7, 10)
    assert len({question.lesson for question in chosen}) == 10 and chosen == paper(7, 10) != paper(8, 10)
    assert len(paper(7, 40)) == len({question.key for question in paper(7, 40)}) == 40
    with pytest.raises(ValueError, match="exam: COUNT=41; the bank has 40 questions, .*; choose COUNT in 1..40"):
        paper(7, 41)


def test_the_placement_test_asks_ten_lessons():
    assert len({question.lesson for question in placement()}) == 10


def test_make_exam_writes_a_paper_without_answers_and_a_key(tmp_path, capsys):
    assert main("--seed=7", "--count=5", f"--out={tmp_path}") == 0
    asked, key = (tmp_path / "paper-7.md").read_text(), (tmp_path / "key-7.md").read_text()
    assert re.findall(r"^(\d+)\. ", asked, re.MULTILINE) == re.findall(r"^\| (\d+) \|", key, re.MULTILINE) == [*"12345"]
    assert all(question.asked(7) in asked for question in paper(7, 5))
    assert main("--count=0", f"--out={tmp_path}") == 1
    assert "make exam: exam: COUNT=0; " in capsys.readouterr().err
