"""Imports go down only: parsed from the files, and the part below torch run where all but PyYAML is blocked."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.paths import ROOT

PACKAGE = ROOT / "course_lib"
LAYERS = [  # lowest first; what stands in one row may import each other, unless FORBIDDEN says otherwise
    {"absent", "door", "errors", "garbage", "units", "presets", "split", "sequence_cut"},
    {"config", "hardware"},
    {"costs", "schedules"},
    {"sim"},
    {"planner"},
    {"comm", "ranks"},
    {"models"},
    {"savers", "less"},
    {"parallel"},
    {"training"},
    {"verify"},
    {"gauges"},
    {"checks"},
    {"viz"},
    {"cli", "__main__", "__init__"},
]
WITHOUT_TORCH = set().union(*LAYERS[:5])
WITHOUT_NUMPY = set().union(*LAYERS[:3])
RUNTIME = ("comm", "ranks", "models", "savers", "less", "parallel", "training", "verify", "gauges")
FORBIDDEN = {
    ("comm", "ranks"),
    *((runs, "costs") for runs in RUNTIME),  # an oracle is not asked by what it judges
    *(("viz", runs) for runs in ("parallel", "training")),  # a picture draws facts
}
COSTS = {"model": (), "comm": ("model",), "published": ("model",), "sweep": ("model", "comm", "published")}
ALLOWED_OF_COMM_IN_RANKS = {"ledger", "call", "switches"}
CHAPTER = re.compile(r"course_lib\.checks\.(module_\d+)\b")
DRAWING = ("drawsvg", "fontTools", "ipywidgets", "matplotlib")


def level(component):
    found = [number for number, row in enumerate(LAYERS) if component in row]
    assert found, f"course_lib/{component} stands in no layer: put it into LAYERS"
    return found[0]


def imports_of(tree, module):
    """Every absolute module name that the tree imports, `from a import b` as a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*module.split(".")[: -node.level], *([base] if base else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def violations(module, text):
    """One line for each import in `module` (as course_lib.x.y) that the layers do not allow."""
    here = module.split(".")[1]
    for name in imports_of(ast.parse(text), module):
        top, *rest = name.split(".")
        if top == "torch" and here in WITHOUT_TORCH:
            yield f"{module} imports torch"
        if top in DRAWING and here != "viz":
            yield f"{module} imports {top}; only viz draws"
        if crosses_chapters(module, name):
            yield f"{module} imports {name}; chapters import checks.kit and never each other"
        if top != "course_lib" or not rest:
            continue
        if rest[0] == "costs" and (len(rest) < 2 or rest[1] not in COSTS):
            yield f"{module} imports {name} through costs' door, where mypy knows no types: name the file"
        elif (here, rest[0]) == ("costs", "costs"):
            topic = module.split(".")[2]
            if topic in COSTS and rest[1] not in (topic, *COSTS[topic]):
                yield f"{module} imports {name}; costs.{topic} may use {COSTS[topic] or 'nothing'} of costs"
        if rest[0] == here:
            continue
        upward = level(rest[0]) > level(here) or (here, rest[0]) in FORBIDDEN
        if upward:
            yield f"{module} imports upward: {name}"
        if (here, rest[0]) == ("ranks", "comm") and rest[1:2] and rest[1] not in ALLOWED_OF_COMM_IN_RANKS:
            yield f"{module} imports {name}; ranks may use comm's ledger, call and switches only"


def crosses_chapters(module, name):
    """Whether an import inside checks leads from the kit, or from one chapter, into a chapter that is not its own."""
    home, target = CHAPTER.match(module), CHAPTER.match(name)
    inside = module.startswith("course_lib.checks.")
    return inside and target is not None and (home is None or home[1] != target[1])


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts)


def test_no_import_goes_up():
    files = sorted(PACKAGE.rglob("*.py"))
    assert files
    found = [line for path in files for line in violations(module_name(path), path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("course_lib.comm.ring", "from course_lib.ranks import run_ranks"),
        ("course_lib.comm.ring", "import course_lib.viz.ink.style"),
        ("course_lib.costs.ring", "import torch.nn"),
        ("course_lib.costs.ring", "def f():\n    from torch import Tensor"),
        ("course_lib.config", "from course_lib.costs.model.flops import gpu_hours"),
        ("course_lib.comm.sweep", "from course_lib.costs.comm.collectives import comm_time"),
        ("course_lib.gauges.zero_run", "from course_lib.costs.model.states import StateBytes"),
        ("course_lib.costs.model.flops", "from course_lib.costs.comm.traffic import CommTime"),
        ("course_lib.costs.comm.bounds", "from course_lib.costs.published.runs import DAY_S"),
        ("course_lib.viz.memory.gpu", "from course_lib.costs import GpuMemory"),
        ("course_lib.viz.memory.gpu", "from course_lib import costs"),
        ("course_lib.checks.predict", "import matplotlib.pyplot as plt"),
        ("course_lib.checks.predict", "import drawsvg"),
        ("course_lib.ranks.pool", "from course_lib.comm.ring import all_reduce"),
        ("course_lib.models.decoder", "from ..parallel import ddp"),
        ("course_lib.viz.planning.speedup", "from course_lib.training.psgd import Quadratic"),
        ("course_lib.viz.wires.buckets", "from course_lib.parallel.data.buckets import fill"),
        ("course_lib.checks.module_04.orders", "from course_lib.checks.module_03 import average"),
        ("course_lib.checks.module_04.orders", "from ..module_03.average import payloads"),
        ("course_lib.checks.kit.registry", "from course_lib.checks.module_01 import bits"),
    ],
)
def test_an_import_that_goes_up_is_found(module, text):
    assert len(list(violations(module, text))) == 1


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("course_lib.ranks.pool", "from course_lib.comm import ledger, call\nimport torch"),
        ("course_lib.viz.ink.style", "import matplotlib\nfrom course_lib.checks import predict"),
        ("course_lib.costs.comm.bounds", "from course_lib.units import MiB\nfrom course_lib.costs.comm import fit"),
        ("course_lib.costs.sweep.explore", "from course_lib.costs.published.runs import DAY_S"),
        ("course_lib.cli.sweep", "from course_lib.costs.sweep.explore import explore"),
        ("course_lib.models.decoder", "from .norm import RMSNorm"),
        ("course_lib.checks.module_03.overlap", "from course_lib.checks.module_03.average import payloads"),
        ("course_lib.checks.module_03.overlap", "from course_lib.checks.kit import models"),
    ],
)
def test_an_import_that_goes_down_passes(module, text):
    assert list(violations(module, text)) == []


WITHOUT_ALL = """
import sys
class OnlyThese:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in {{*sys.stdlib_module_names, "course_lib", {allowed}}}:
            raise ModuleNotFoundError(f"{{name}} is blocked")
sys.meta_path.insert(0, OnlyThese())
"""


def run_without_all(lines, *more):
    """Run lines of Python as a browser could: with the standard library, PyYAML and what is named alone."""
    allowed = ", ".join(repr(name) for name in ("yaml", "_yaml", *more))
    code = "\n".join([WITHOUT_ALL.format(allowed=allowed), *lines])
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)


def free_modules(components):
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    return [
        module_name(path).removesuffix(".__init__") for name in sorted(components & there) for path in files_of(name)
    ]


def test_what_counts_and_schedules_imports_with_the_standard_library_and_pyyaml_alone():
    modules = free_modules(WITHOUT_NUMPY)
    assert {"course_lib.costs", "course_lib.schedules", "course_lib.units"} <= set(modules)
    run = run_without_all(f"import {name}" for name in modules)
    assert run.returncode == 0, run.stderr
    assert "numpy is blocked" in run_without_all(["import numpy"]).stderr


def test_the_torch_free_part_imports_with_numpy_beside_them():
    modules = free_modules(WITHOUT_TORCH - WITHOUT_NUMPY)
    assert "course_lib.sim.step" in modules
    run = run_without_all([f"import {name}" for name in modules], "numpy")
    assert run.returncode == 0, run.stderr


def test_a_browser_s_python_counts_a_model_and_times_a_schedule():
    run = run_without_all(
        [
            "from course_lib import config, costs, schedules",
            "print(costs.model_parameters(config.load_model('llama3_1_405b')))",
            "print(len(schedules.make_schedule('1f1b', 16, 64).lists))",
        ]
    )
    assert run.stdout.split() == ["405853388800", "16"], run.stderr


def test_a_browser_s_python_draws_every_panel():
    lines = ["from course_lib.viz.pages import catalog, front", "print(len(catalog.PANELS))"]
    lines += ["[front.answer(name, '{\"turn\": {}}') for name in catalog.PANELS]"]
    run = run_without_all(lines, "drawsvg")
    assert run.returncode == 0 and int(run.stdout) >= 5, run.stderr


def files_of(component: str) -> list[Path]:
    return [*PACKAGE.glob(f"{component}.py"), *sorted((PACKAGE / component).rglob("*.py"))]


def test_the_notebook_s_process_does_not_load_torch_for_its_ranks():
    code = "import sys, course_lib.ranks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
