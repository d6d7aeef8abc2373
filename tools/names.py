"""Which names of `course_lib` begin with an underscore though others use them, and which do not though nobody does.

A name at the top of a file is private (`_`) exactly if nobody outside the file uses it. Uses are read, not guessed:
imports and attributes of imported modules, also through a package's `__init__` or its door. Tests, tools, slides and
exercises count as others; of texts for people counts what stands in code (backticks, fences, `<!-- =expressions -->`).
A type counts as used where a public signature or field shows it, a torch module always: a print of the model does.
Methods, fields and local names are out of scope. `python -m tools.names` lists what breaks the rule.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tools.paths import ROOT

OTHERS = (
    "tests",
    "tools",
    "slides",
    "wild",
    "notebooks/src",
    "notebooks/scripts",
    "exercises/src",
    "exercises/mutants",
)
TEXTS = (
    "README.md",
    "COMMANDS.md",
    "CHECK_YOUR_TRAINER.md",
    "CONTRIBUTING.md",
    "slides/*.md",
    "notebooks/src/*.py",
    "exercises/src/*.py",
)
CODE = re.compile(r"```.*?```|`[^`\n]+`|<!--\s*=.*?-->|\{\{.*?\}\}", re.DOTALL)
BY_NAME = {"load_ipython_extension", "ROWS", "learn_from"}  # of other programs, of discovery, of a student's copy


@dataclass
class File:
    """One file of the library: what it defines, and what it imports under which name."""

    module: str
    path: Path
    tree: ast.Module
    defined: set[str] = field(default_factory=set)
    imported: dict[str, str] = field(default_factory=dict)  # by alias, the dotted name


def library(root: Path = ROOT) -> dict[str, File]:
    """The files of `course_lib` by their dotted names; a package stands for its `__init__`."""
    files = {}
    for path in sorted((root / "course_lib").rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        tree = ast.parse(path.read_text())
        files[module] = File(module, path, tree, set(defined_at_top(tree)), imports_of(tree))
    return files


def defined_at_top(tree: ast.Module) -> Iterator[str]:
    """Names of functions, classes and assignments; without dunder names."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
        else:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names = [leaf.id for target in targets if target for leaf in ast.walk(target) if isinstance(leaf, ast.Name)]
        yield from (name for name in names if not name.startswith("__"))


def imports_of(tree: ast.AST) -> dict[str, str]:
    """By alias, the dotted name of every import statement, those in functions too."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            tops = [(alias.asname, alias.name, alias.name.split(".")[0]) for alias in node.names]
            found |= {alias or top: name if alias else top for alias, name, top in tops}
    return found


def dotted_uses(tree: ast.AST) -> Iterator[str]:
    """Dotted names that the code takes from modules: what it imports, and attributes of what it imported."""
    imported = imports_of(tree)
    yield from imported.values()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts: list[str] = []
            base: ast.expr = node
            while isinstance(base, ast.Attribute):
                parts.insert(0, base.attr)
                base = base.value
            if isinstance(base, ast.Name) and base.id in imported:
                yield ".".join([imported[base.id], *parts])


class Library:
    """Finds the file that defines what a dotted name means."""

    def __init__(self, root: Path = ROOT) -> None:
        self.files = library(root)

    def home(self, dotted: str) -> tuple[str, str] | None:
        """(module, name) of a name at the top of a file; None for what is none."""
        parts = dotted.split(".")
        for end in range(len(parts) - 1, 0, -1):
            module, name = ".".join(parts[:end]), parts[end]
            if module in self.files:
                return self._of(self.files[module], name)
        return None

    def _of(self, file: File, name: str) -> tuple[str, str] | None:
        if name in file.defined:
            return file.module, name
        if name in file.imported and file.imported[name] != f"{file.module}.{name}":
            return self.home(file.imported[name])
        if file.path.name == "__init__.py":  # a door
            below = [inner for inner in self.files.values() if inner.module.startswith(f"{file.module}.")]
            return next(((inner.module, name) for inner in below if name in inner.defined), None)
        return None


def uses(found: Library, root: Path = ROOT) -> set[tuple[str, str]]:
    """(module, name) of all that is used outside the file that defines it."""
    trees = [(file.module, file.tree) for file in found.files.values()]
    trees += [("", ast.parse(path.read_text())) for folder in OTHERS for path in sorted((root / folder).rglob("*.py"))]
    used = set()
    for module, tree in trees:
        homes = (found.home(dotted) for dotted in dotted_uses(tree))
        used |= {home for home in homes if home and home[0] != module}
    return used


def named_elsewhere(root: Path = ROOT) -> set[str]:
    """Words that stand in code in texts for people, and in strings of tests (what they patch by name)."""
    texts = [path.read_text() for pattern in TEXTS for path in root.glob(pattern)]
    words = {word for text in texts for code in CODE.findall(text) for word in re.findall(r"\w+", code)}
    for path in (root / "tests").rglob("*.py"):
        strings = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
        words |= {re.split(r"[.:]", text)[-1] for text in strings if isinstance(text, str)}
    return words


def shown(tree: ast.Module) -> set[str]:
    """Names in the annotations of public functions and classes, and the torch modules of a file."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any("Module" in ast.unparse(base) for base in node.bases):
            found.add(node.name)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            found |= {leaf.id for hint in _hints(node) for leaf in ast.walk(hint) if isinstance(leaf, ast.Name)}
        elif isinstance(node, ast.Assign):  # a type made of others
            found |= {leaf.id for leaf in ast.walk(node.value) if isinstance(leaf, ast.Name) and leaf.id[0].isupper()}
    return found


def _hints(node: ast.AST) -> Iterator[ast.expr]:
    """Annotations of what stands in a function or class, and its base classes."""
    yield from getattr(node, "bases", [])
    for leaf in ast.walk(node):
        hints = (getattr(leaf, "annotation", None), getattr(leaf, "returns", None))
        yield from (hint for hint in hints if isinstance(hint, ast.expr))


def broken(root: Path = ROOT) -> list[str]:
    """A line for each name that breaks the rule."""
    found = Library(root)
    used, words = uses(found, root), named_elsewhere(root) | BY_NAME
    lines = []
    for file in found.files.values():
        told = words | shown(file.tree)
        for name in sorted(file.defined):
            shared = (file.module, name) in used
            promised = shared or name in told
            if name.startswith("_") and shared:
                lines.append(f"{file.module}.{name} is private and used outside its file")
            elif not name.startswith("_") and not promised:
                lines.append(f"{file.module}.{name} is public and used in its own file only")
    return lines


if __name__ == "__main__":
    print(*(lines := broken()), f"{len(lines)} names", sep="\n")
    sys.exit(bool(lines))
