"""Doors: every name once, found where it is defined, loaded when it is asked for; no two files define the same."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections import Counter
from pathlib import Path
from pkgutil import iter_modules

import pytest

from course_lib import comm, config, costs, gauges, hardware, parallel, training, units, verify, viz
from course_lib.door import public_names
from course_lib.verify import museum
from tools.paths import ROOT

LISTED = (training, parallel, verify, gauges)  # doors that list what they offer
BESIDE = {costs: {*dir(config), *dir(hardware), *public_names(Path(units.__file__))}, museum: set()}


@pytest.mark.parametrize(("package", "pattern"), [(costs, "*/*.py"), (museum, "*.py")])
def test_every_public_name_is_found_and_has_one_home(package, pattern):
    files = [file for file in Path(package.__path__[0]).glob(pattern) if file.stem != "__init__"]
    homes = [name for file in files for name in public_names(file)]
    assert [name for name, times in Counter(homes).items() if times > 1] == []
    assert {*homes} <= {*dir(package)} <= {*homes} | BESIDE[package] and len(homes) > 10
    assert all(hasattr(package, name) for name in homes)


def test_a_name_is_what_its_file_defines():
    assert costs.comm_time.__module__ == "course_lib.costs.comm.collectives"
    assert {"BUGS", "PIPELINE_BUGS"} <= set(dir(museum))


@pytest.mark.parametrize("package", [costs, comm, museum, viz, *LISTED], ids=lambda package: package.__name__)
def test_no_name_at_a_door_is_also_a_file_s(package):
    """Whoever imports the file would find it in place of what it defines."""
    assert {file.name for file in iter_modules(package.__path__)} & set(dir(package)) == set()


def test_comm_offers_what_its_door_lists_and_nothing_that_it_happens_to_import():
    assert {"all_reduce_", "ALGORITHMS", "settings"} <= set(dir(comm))
    assert all(hasattr(comm, name) for name in dir(comm))
    assert not hasattr(comm, "torch") and not hasattr(comm, "Ports")


@pytest.mark.parametrize("package", LISTED, ids=lambda package: package.__name__)
def test_a_lesson_finds_what_its_door_lists(package):
    assert dir(package) and all(hasattr(package, name) for name in dir(package))


def test_what_a_price_is_asked_of_is_found_beside_the_prices():
    assert costs.load_device is hardware.load_device and costs.GiB == units.GiB
    assert costs.ModelConfig is config.ModelConfig


def test_viz_offers_what_returns_something_to_look_at_and_no_helper():
    assert {"plot_ranks", "who_holds_what", "schedule_explorer", "show_source", "show_difference"} <= set(dir(viz))
    assert all(callable(getattr(viz, name)) for name in dir(viz))
    for helper in ("Picture", "new_page", "draw_schedule", "tint"):
        assert not hasattr(viz, helper)


def test_a_new_figure_touches_its_own_file_alone(tmp_path, monkeypatch):
    door = (ROOT / "course_lib" / "viz" / "__init__.py").read_text().replace("__name__", repr("toy"))
    package = tmp_path / "toy"
    package.mkdir()
    (package / "__init__.py").write_text(door)
    (package / "plot.py").write_text("class Picture: pass\ndef plot_toy() -> Picture:\n    return Picture()\n")
    monkeypatch.syspath_prepend(tmp_path)
    toy = importlib.import_module("toy")
    assert dir(toy) == ["plot_toy"]
    assert type(toy.plot_toy()).__name__ == "Picture"


@pytest.mark.parametrize(("package", "name"), [("costs", "dataclass"), ("costs", "comm_tiem"), ("comm", "_me")])
def test_what_no_file_offers_is_refused(package, name):
    module = {"costs": costs, "comm": comm}[package]
    with pytest.raises(AttributeError, match=f"^module 'course_lib.{package}' has no attribute '{name}'$"):
        getattr(module, name)


def test_a_door_loads_nothing_before_it_is_asked():
    doors = "comm, course_lib.costs, course_lib.training, course_lib.parallel, course_lib.verify, course_lib.gauges"
    code = f"import sys, course_lib.{doors}; print('torch' in sys.modules, 'yaml' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout.split() == ["False", "False"], run.stderr


def test_public_is_what_is_defined_at_the_top_without_an_underscore(tmp_path):
    file = tmp_path / "some.py"
    file.write_text("import os\nfrom math import pi\nA, _b = 1, 2\nC: int = 3\nclass D: e = 4\ndef f():\n    g = 5\n")
    assert list(public_names(file)) == ["A", "C", "D", "f"]
