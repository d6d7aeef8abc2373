"""Which module a test belongs to: said here once, for `make check ONLY=04` and for the table of seconds.

A number in a file's name decides (`test_module_05_zero.py`, `05_zero.ipynb`, also `12b_x.ipynb`, a second lesson).
Where one file tests every module, the number in a test's parameters does (`test_exercises.py::test_a_stub[04.1]`). Only
files without a number need a line in `FILES`; what has none is "shared".
"""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import PurePosixPath

from tools.paths import ROOT

SHARED = "shared"
MODULES = tuple(sorted(path.name[:2] for path in (ROOT / "notebooks/src").glob("[0-9][0-9]_*.py")))
FILES = {  # module: patterns of test files' names, without "test_" and ".py"; the first that fits decides
    "09": (
        "context*",
        "experts",
        "museum_experts",
        "museum_context",
        "all_to_all_parts",
        "costs_context",
        "costs_experts",
        "sim_context",
    ),
    "08": ("planner_*", "sim_*", "cli_plan", "cli_predict"),
    "05": ("museum_tensor", "tensor*", "chain", "costs_tensor", "costs_chain"),
    "04": ("museum_pipeline", "pipeline*", "schedules", "stages", "deferred", "viz_schedule_explorer"),
    "03": ("ddp*", "ladder*", "museum", "psgd", "trainer", "train_command", "cli_train*", "batches", "config_training")
    + (
        "trainable",
        "adapters",
        "bad_input",
        "costs_ddp",
        "mlp",
        "text",
        "tokenizer",
        "verify_*",
        "viz_mlp",
        "viz_overlap",
    ),
    "02": ("comm_*", "costs_comm_time", "costs_fit", "costs_messages"),
    "01": ("bridge", "cli_sweep", "costs_*", "decoder", "hardware", "memory_*", "presets*", "viz_anatomy_row"),
    "00": ("ledger", "magic", "pool", "preload", "stacks"),
}
_IN_NAME = re.compile(r"(?:^|_)(\d\d)b?(?=[_.]|$)")
_IN_PARAMETER = re.compile(r"(?<![\w.])(\d\d)b?(?=\.\d|_[a-z])")


def module_of(file: str, test: str = "") -> str:
    """Return "04" for what belongs to module 04, and "shared" for what belongs to none.

    >>> module_of("tests/ranks/test_pipeline.py"), module_of("notebooks/02_collectives.ipynb", "Cell 3")
    ('04', '02')
    >>> module_of("notebooks/12b_through_the_night.ipynb", "Cell 3")
    '12'
    >>> module_of("tests/grading/test_exercises.py", "test_a_stub[01.10]"), module_of("tests/unit/test_check.py")
    ('01', 'shared')
    """
    path = PurePosixPath(file)
    by_name = _IN_NAME.search(path.stem)
    if by_name:
        return by_name[1]
    name = path.stem.removeprefix("test_")
    for module, patterns in FILES.items():
        if any(fnmatch(name, pattern) for pattern in patterns):
            return module
    parameters = test.partition("[")[2]
    found = [number for number in _IN_PARAMETER.findall(parameters) if number in MODULES]
    return found[0] if found else SHARED
