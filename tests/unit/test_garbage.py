"""Garbage is not looked for while somebody imports, and it is again after that, also if an import fails."""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace

import pytest
from IPython.core.events import EventManager, available_events

from course_lib.garbage import is_looked_for, overlook_in_this_cell, overlooked


@pytest.fixture(autouse=True)
def _as_before():
    yield
    gc.enable()
    sys.modules.pop("imported_here", None)


def import_one():
    """All that an import leaves behind."""
    sys.modules["imported_here"] = sys


def test_it_is_looked_for_again_and_no_longer_in_what_was_there():
    frozen = gc.get_freeze_count()
    with overlooked():
        assert not gc.isenabled()
        import_one()
    assert gc.isenabled() and gc.get_freeze_count() > frozen


def test_who_imports_nothing_leaves_all_garbage_to_be_found():
    frozen = gc.get_freeze_count()
    with overlooked():
        pass
    assert gc.isenabled() and gc.get_freeze_count() == frozen


def test_after_a_failed_import_it_is_looked_for():
    with pytest.raises(ModuleNotFoundError), overlooked():
        import nothing_of_this_name  # noqa: F401
    assert gc.isenabled()


def test_who_has_switched_it_off_finds_it_off():
    gc.disable()
    with overlooked():
        pass
    assert not gc.isenabled()


def test_in_a_notebook_s_cell_it_begins_again_when_that_has_run():
    shell = SimpleNamespace()
    shell.events = EventManager(shell, available_events)
    frozen = gc.get_freeze_count()
    overlook_in_this_cell(shell)
    assert not gc.isenabled()
    import_one()
    shell.events.trigger("post_run_cell", None)
    assert gc.isenabled() and gc.get_freeze_count() > frozen
    gc.disable()  # no later cell brings it back
    shell.events.trigger("post_run_cell", None)
    assert not gc.isenabled()


def test_who_asks_during_an_import_is_told_what_comes_after_it():
    """Else checks, which a set-up cell imports, would take its pause for how the learner wants it."""
    with overlooked(), overlooked():
        assert not gc.isenabled() and is_looked_for()
    assert gc.isenabled() and is_looked_for()
    gc.disable()
    with overlooked():
        assert not is_looked_for()
