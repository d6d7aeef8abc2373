"""Which mistakes are made on purpose, and which tests are asked about one."""

from __future__ import annotations

import ast
import random

from tools.mutate import PACKAGES, mutations, ordered, sample
from tools.paths import ROOT

SOURCE = b'''
@frozen(eq=True)
def size(x: Shape[1], flag: bool = True) -> Tuple[2]:
    """At most 3 and 4."""
    if x not in (f"{5}",) and flag:
        push(x, 2 ** 3)
    total -= x
    raise ValueError(6 - 7)
'''
MADE = {
    'x not in (f"{5}",) and flag -> (not (x not in (f"{5}",) and flag))',
    "and -> or",
    "not in -> in",
    "True -> False",
    "push(x, 2 ** 3) -> pass",
    "x, 2 ** 3 -> 2 ** 3, x",
    "** -> *",
    "2 -> 3",
    "3 -> 4",
    "total -= x -> pass",
}


def test_behaviour_is_changed_and_what_is_for_people_is_not():
    found = list(mutations("size.py", SOURCE))
    assert {str(one).split(": ", 1)[1] for one in found} == MADE and len(found) == len(MADE)
    for one in found:
        ast.parse(SOURCE[: one.start] + one.new.encode() + SOURCE[one.end :])


def test_each_package_gets_its_share_and_a_seed_its_sample():
    chosen = sample(random.Random(3), 2 * len(PACKAGES))
    assert chosen == sample(random.Random(3), 2 * len(PACKAGES)) != sample(random.Random(4), 2 * len(PACKAGES))
    assert [one.file.split("/")[1] for one in chosen] == [*PACKAGES, *PACKAGES]


def test_the_tests_of_a_file_come_first_and_a_chapter_has_its_own():
    words, tests = ordered(ROOT, "course_lib/verify/causes.py")
    assert words == [] and tests[0] == "tests/unit/test_causes.py"
    _, tests = ordered(ROOT, "course_lib/parallel/tensors/dropout.py")
    assert tests[0] == "tests/ranks/module_05/test_tensor_dropout.py"
    words, tests = ordered(ROOT, "course_lib/checks/module_02/ring.py")
    assert words == ["--module=02,shared"] and "tests/grading/test_exercises.py" in tests
