"""`make exam SEED=2027 COUNT=10`: draws a paper from the bank, and writes it with its key into build/exam."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.exam.bank import BANK, paper
from tools.exam.question import Question, in_words
from tools.paths import ROOT

_RULES = """No computer and no notes; a calculator is allowed. An answer within one percent is right. MiB and GiB are
powers of 1024, MB and GB of 1000."""


def main(*words: str) -> int:
    """Write the paper and the key."""
    parser = argparse.ArgumentParser(prog="tools.exam", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="which numbers and questions; those of 0 are public")
    parser.add_argument("--count", type=int, default=10, help=f"how many of the {len(BANK)} questions")
    parser.add_argument("--out", type=Path, default=ROOT / "build/exam")
    asked = parser.parse_args(words)
    try:
        chosen = paper(asked.seed, asked.count)
    except ValueError as error:
        print(f"make exam: {error}", file=sys.stderr)
        return 1
    asked.out.mkdir(parents=True, exist_ok=True)
    for name, text in (("paper", paper_text(chosen, asked.seed)), ("key", key_text(chosen, asked.seed))):
        path = asked.out / f"{name}-{asked.seed}.md"
        path.write_text(text, encoding="utf-8")
        print(path)
    return 0


def paper_text(chosen: list[Question], seed: int) -> str:
    """What students get: the rules, and a place for each answer."""
    asked = [f"{number}. {question.asked(seed)}\n\n   ________" for number, question in enumerate(chosen, 1)]
    return "\n\n".join([f"# Exam {seed}", "Name: ________", _RULES, *asked]) + "\n"


def key_text(chosen: list[Question], seed: int) -> str:
    """The answers, each with the lesson that has it."""
    rows = [
        f"| {number} | {question.key} | {question.lesson} | {in_words(question.right(seed), question.unit)} |"
        for number, question in enumerate(chosen, 1)
    ]
    head = ["| | question of the bank | lesson | answer |", "| --- | --- | --- | --- |"]
    return "\n".join([f"# Key of exam {seed}", "", *head, *rows]) + "\n"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
