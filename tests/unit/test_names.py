"""A name is private exactly if nobody outside its file uses it: how that is found, and that the library keeps to it."""

from __future__ import annotations

import pytest

from tools.names import broken

FILES = {
    "course_lib/__init__.py": "",
    "course_lib/low.py": (
        "class Shown: ...\nclass Net(Module): ...\nLIMIT, _own = 1, 2\n"
        "def used() -> Shown: ...\ndef alone(LIMIT): ...\ndef _shared(): ...\ndef patched(): ...\ndef told(): ...\n"
    ),
    "course_lib/door/__init__.py": "from course_lib.low import used\n__getattr__ = all_names(__name__, '*.py')[0]\n",
    "course_lib/door/inner.py": "def found(): ...\ndef hidden(): ...\n",
    "course_lib/high.py": "from course_lib import door, low\ndoor.used()\ndoor.found()\nlow._shared()\n",
    "tests/test_low.py": "def test(monkeypatch): monkeypatch.setattr('course_lib.low.patched', 1)\n",
    "README.md": "Call `told()`; never alone.\n",
}
EXPECTED = {
    "course_lib.door.inner.hidden is public and used in its own file only",
    "course_lib.low.LIMIT is public and used in its own file only",
    "course_lib.low._shared is private and used outside its file",
    "course_lib.low.alone is public and used in its own file only",
}


@pytest.fixture
def repository(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_uses_are_found_through_imports_attributes_doors_patches_and_code_in_texts(repository):
    assert set(broken(repository)) == EXPECTED


def test_a_name_of_the_library_is_private_exactly_if_nobody_outside_its_file_uses_it():
    assert broken() == []
