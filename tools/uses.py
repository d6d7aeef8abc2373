"""Which names of the repository a name uses, and so which tests a changed name can reach; read, nothing is run.

A *place* is a file and a name at its top. It uses what its statements name: names of its own file, imported names,
attributes of imported modules, through a package's `__init__` or its door. Annotations are left out, for nobody runs
them. Where only a string says what is loaded (`"course_lib.checks.kit"`, `python -m course_lib`, `iter_modules`), the
whole file counts, or the whole folder. What a file computes at its top counts for whoever uses the name that it gets;
what stands there without a name, for whoever imports the file. A method counts as its class.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tools.code import ALL, START, Code

FOLDERS = ("course_lib", "slides", "tests", "tools")
EARLY = "course_lib/ranks/server.py"  # names what is imported early, and goes on without it; as a conftest does
NAMED = re.compile(r"(?:course_lib|slides|tests|tools)(?:\.\w+)+\.?")
COMMAND = "course_lib/__main__.py"
DOOR = "__getattr__"

Place = tuple[str, str]  # a file, relative to the root, and a name at its top


class Uses:
    """The places of a repository and what each of them uses."""

    def __init__(self, root: Path) -> None:
        self.root = root
        paths = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py"))]
        self.files = {str(path.relative_to(root)): path for path in paths}
        self.read: dict[str, Code] = {}

    def tests_of(self, changed: Iterable[Place]) -> list[str]:
        """Return the tests that reach one of these places, as pytest names them; a file's name for all of its own."""
        roots = {file: self._tests_in(file) for file in sorted(self.files) if _is_test(file)}
        users = self._users([(file, test) for file, tests in roots.items() for test in tests])
        seen: set[Place] = set()
        waiting = list(changed)
        while waiting:
            place = waiting.pop()
            if place not in seen:
                seen.add(place)
                waiting += users[place]
        found = {file: [test for test in tests if (file, test) in seen] for file, tests in roots.items()}
        return [name for file, tests in found.items() for name in _named(file, tests, roots[file])]

    def _tests_in(self, file: str) -> list[str]:
        return [name for name in self.code(file).pieces if name.startswith("test_")] or [ALL]

    def _users(self, roots: list[Place]) -> dict[Place, list[Place]]:
        """By place, who uses it, of all that the roots lead to."""
        users: dict[Place, list[Place]] = defaultdict(list)
        waiting, seen = list(roots), set(roots)
        while waiting:
            place = waiting.pop()
            for used in self.used_by(place):
                users[used].append(place)
                if used not in seen:
                    seen.add(used)
                    waiting.append(used)
        return users

    def used_by(self, place: Place) -> set[Place]:
        """Return what a place uses directly."""
        file, name = place
        code = self.code(file)
        if name == ALL:
            return {(file, START), *((file, piece) for piece in code.pieces), *self._fixtures_of_all(file, code)}
        found = {(path, START) for path in self._above(file, "__init__.py")} if name == START else {(file, START)}
        found |= self._fixtures_of_all(file, code) if _is_test(file) and name.startswith("test_") else set()
        found |= self._meant(file, code, code.names_of(name))
        found |= {(hit, START) for dotted in code.imports_of(name) for hit, _ in self._home(dotted, file)}
        if name in code.commands:
            found.add((COMMAND, ALL))
        if Path(file).name != "conftest.py" and file != EARLY:
            found |= self._said(file, code.strings_of(name))
        return found - {place}

    def code(self, file: str) -> Code:
        """Return what a file of the repository says, read once; nothing for a file that is gone."""
        if file not in self.read:
            self.read[file] = Code(self.files[file].read_text() if file in self.files else "")
        return self.read[file]

    def _fixtures_of_all(self, file: str, code: Code) -> set[Place]:
        """What runs for every test of a file, named or not: its own automatic fixtures, and the conftests above it."""
        own = {(file, name) for name in code.automatic}
        return own | {(path, ALL) for path in self._above(file, "conftest.py")}

    def _meant(self, file: str, code: Code, names: set[str]) -> set[Place]:
        """The places that names in a file's code mean, a dotted one by what its first part was imported as."""
        found: set[Place] = set()
        for dotted in names:
            base, _, rest = dotted.partition(".")
            for origin in code.imported.get(base, ()):
                found |= self._home(f"{origin}.{rest}".rstrip("."), file)
            if base in code.pieces:
                found.add((file, base))
            if dotted.endswith("iter_modules"):
                found |= self._everything_in(Path(file).parent)
        return found

    def _said(self, file: str, strings: set[str]) -> set[Place]:
        """The files that dotted names in strings name."""
        found: set[Place] = set()
        for hit in [hit[0] for string in strings for hit in NAMED.finditer(string)]:
            for dotted in (hit.rstrip("."), f"{hit.rstrip('.')}.__main__"):
                module, _ = self._module(dotted, file)
                found |= {(module, ALL)} if module else set()
                if module and hit.endswith("."):
                    found |= self._everything_in(Path(module).parent)
        return found

    def _home(self, dotted: str, file: str) -> set[Place]:
        """The places that a dotted name in a file may mean; none for what is not of this repository."""
        module, rest = self._module(dotted, file)
        if not module:
            return set()
        return self._called(module, rest[0]) if rest else {(module, ALL)}

    def _called(self, module: str, name: str) -> set[Place]:
        """What a module's name means: its own, one that it passes on, or one behind its door."""
        code = self.code(module)
        if name in code.pieces:
            return {(module, name)}
        origins = [one for one in code.imported.get(name, ()) if self._module(one, module) != (module, [name])]
        passed_on = {place for dotted in origins for place in self._home(dotted, module)}
        if not passed_on and DOOR in code.pieces:
            behind = self._everything_in(Path(module).parent)
            passed_on = {(path, name) for path, _ in behind if name in self.code(path).pieces} or behind
        return {(module, START), (module, name)} | (passed_on or {(module, ALL)})

    def _module(self, dotted: str, file: str) -> tuple[str, list[str]]:
        """The file of the longest part of a dotted name that is a module, and the rest of the name."""
        parts = dotted.split(".")
        # Tests import helpers from their own folder, or from one above it, as pytest lets them where a conftest lies.
        starts = [""] if parts[0] in FOLDERS else [f"{folder}/" for folder in Path(file).parents]
        for start in starts:
            for end in range(len(parts), 0, -1):
                place = start + "/".join(parts[:end])
                for path in (f"{place}.py", f"{place}/__init__.py"):
                    if path in self.files:
                        return path, parts[end:]
        return "", []

    def _everything_in(self, folder: Path) -> set[Place]:
        return {(file, ALL) for file in self.files if file.startswith(f"{folder}/")}

    def _above(self, file: str, name: str) -> list[str]:
        """Files of this name in the folders that a file lies in."""
        paths = [str(folder / name) for folder in Path(file).parents]
        return [path for path in paths if path in self.files and path != file]


def _is_test(file: str) -> bool:
    return file.startswith("tests/") and Path(file).name.startswith("test_")


def _named(file: str, chosen: list[str], all_tests: list[str]) -> list[str]:
    return [file] if chosen and chosen == all_tests else [f"{file}::{test}" for test in chosen]
