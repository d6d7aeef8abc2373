"""Numbers with a unit are computed: the checker on good and bad sentences, then all prose of the course."""

from __future__ import annotations

import re

import pytest

from tools.typed_numbers import Names, all_problems, problems_in, problems_of

KNOWN = Names(GB=10**9, MiB=2**20, share=0.3333, link=150e9, told=lambda: "1.5 MiB")

GOOD = [
    "Four ranks, 4 ranks, 38 parameters, module 02, in 45 minutes, on 8 GPUs.",
    "Llama 3.1 8B and 405B, OLMo 1B; fp16 and bf16; H100 and A100-80; the 1990s.",
    "It sends 150 GB/s <!-- =link / GB --> one way.",
    "It sends **150 GB/s** <!-- =link / GB --> one way.",
    "A third: 33 % <!-- =100 * share --> or 33.3% <!-- =100 * share --> of it.",
    "The text says 1.5 MiB <!-- =told() --> exactly.",
    "Grouped digits: 1,048,576 bytes <!-- =MiB -->.",
    "A count may be computed as well: 12 <!-- =6 * 2 --> messages.",
    "| 1 MiB <!-- =MiB / MiB --> | 2 s <!-- =1 + 1 --> |",
    "Code such as `--timeout 10 s` and formulas such as $64\\ \\text{KiB} = 2^{16}$ B are exempt.",
    "```\n3 GB\n```\nand a comment <!-- 5 GB --> and a [link](http://x/5MB) too",
]
BAD = [
    ("It sends 150 GB/s one way.", r"'150 GB/s' is typed; put <!-- =expression --> behind it"),
    ("It takes 30 s.", "'30 s' is typed"),
    ("It takes 30 ms, and 5µs.", "'30 ms' is typed"),
    ("Memory of 16 bytes per parameter", "'16 bytes' is typed"),
    ("About 33 % of it", "'33 %' is typed"),
    ("About 33% of it", "'33%' is typed"),
    ("Peak of 989 TFLOP/s", "'989 TFLOP/s' is typed"),
    ("Weights take 140GB", "'140GB' is typed"),
    ("The text of 8 B", "'8 B' is typed"),
    ("It sends 151 GB/s <!-- =link / GB --> one way.", r"'151 GB/s': link / GB gives 150.0"),
    ("A third: 33.4 % <!-- =100 * share -->", r"'33.4 %': 100 \* share gives 33.3"),
    ("The text says 1.6 MiB <!-- =told() -->.", r"'1.6 MiB': told\(\) gives 1.5 MiB"),
    ("The text says 1.5 MB <!-- =told() -->.", r"'1.5 MB': told\(\) gives 1.5 MiB"),
    ("Twice 3 GB <!-- =nothing -->", "'3 GB': nothing raises NameError"),
    ("No number here <!-- =link -->", "an <!-- =expression --> stands behind no number"),
    ("Two: 1 s and 2 s <!-- =2 -->", "'1 s' is typed"),
]


@pytest.mark.parametrize("text", GOOD)
def test_good_sentences_pass(text):
    assert problems_in(text, KNOWN) == []


@pytest.mark.parametrize(("text", "expected"), BAD)
def test_bad_sentences_are_named(text, expected):
    found = problems_in(text, KNOWN)
    assert found and re.search(expected, found[0])


def test_prose_computes_with_what_its_notebook_imports(tmp_path):
    source = tmp_path / "90_probe.py"
    text = "# %%\nfrom course_lib.units import (\n    MiB as M,\n    KiB,\n)\nfrom course_lib import units\n"
    claims = "1024 KiB <!-- =M / KiB -->, 5 KiB <!-- =sum(units.KiB for _ in 'abc') / KiB -->"
    source.write_text(f"{text}\n# %% [markdown]\n# {claims}\n")
    assert problems_of(source) == ["90_probe.py cell 1: '5 KiB': sum(units.KiB for _ in 'abc') / KiB gives 3.0"]


def test_a_function_in_an_expression_sees_the_package_and_the_notebook_s_imports_too(tmp_path):
    source = tmp_path / "90_probe.py"
    claims = "1 KiB <!-- =(lambda: split.divisors(M)[1] / 2)() -->, 2 s <!-- =(lambda: nothing)() -->"
    source.write_text(f"# %%\nfrom course_lib.units import MiB as M\n\n# %% [markdown]\n# {claims}\n")
    (said,) = problems_of(source)
    assert said.endswith("'2 s': (lambda: nothing)() raises NameError: name 'nothing' is not defined")


def test_the_course_has_no_typed_numbers():
    assert all_problems() == []
