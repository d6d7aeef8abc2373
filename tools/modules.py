"""Which module a test belongs to: said here once, for `make check ONLY=04` and for the table of seconds.

A test's folder decides (`tests/ranks/module_05/`), or a number in its file's name (`05_zero.ipynb`, also `12b_x.ipynb`,
a second lesson). Where one file tests every module, the number in a test's parameters does
(`test_exercises.py::test_a_stub[04.1]`). What has none of these is "shared".
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from tools.paths import ROOT

SHARED = "shared"
MODULES = tuple(sorted(path.name[:2] for path in (ROOT / "notebooks/src").glob("[0-9][0-9]_*.py")))
_FOLDER = re.compile(r"/module_(\d\d)/")
_IN_NAME = re.compile(r"(?:^|_)(\d\d)b?(?=[_.]|$)")
_IN_PARAMETER = re.compile(r"(?<![\w.])(\d\d)b?(?=\.\d|_[a-z])")


def module_of(file: str, test: str = "") -> str:
    """Return "04" for what belongs to module 04, and "shared" for what belongs to none.

    >>> module_of("tests/ranks/module_04/test_pipeline.py"), module_of("notebooks/02_collectives.ipynb", "Cell 3")
    ('04', '02')
    >>> module_of("notebooks/12b_through_the_night.ipynb", "Cell 3")
    '12'
    >>> module_of("tests/grading/test_exercises.py", "test_a_stub[01.10]"), module_of("tests/unit/test_check.py")
    ('01', 'shared')
    """
    path = PurePosixPath(file)
    numbered = _FOLDER.search(file) or _IN_NAME.search(path.stem)
    if numbered:
        return numbered[1]
    parameters = test.partition("[")[2]
    found = [number for number in _IN_PARAMETER.findall(parameters) if number in MODULES]
    return found[0] if found else SHARED
