"""What one file's code says, name by name at its top: what each name uses, and whether its code has changed."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache

START = ""  # what runs whenever a file is imported
ALL = "*"  # a file as a whole
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
IMPORTS = (ast.Import, ast.ImportFrom)
HINTS = {"annotation", "returns"}


@dataclass
class _Words:
    """What stands in some statements and is run or read: no annotations, no docstrings."""

    names: set[str] = field(default_factory=set)
    imports: set[str] = field(default_factory=set)
    strings: set[str] = field(default_factory=set)
    has_command: bool = False


class Code:
    """The names at a file's top with their statements, and what the file imports, in functions too."""

    def __init__(self, text: str) -> None:
        body = ast.parse(text).body
        self.pieces: dict[str, list[ast.stmt]] = defaultdict(list)
        self.imported: dict[str, set[str]] = defaultdict(set)  # also for types alone: a door lists its names so
        for alias, dotted in [pair for node in body for pair in _imported_anywhere(node)]:
            self.imported[alias].add(dotted)
        for node in [node for node in body if not (_is_docstring(node) or _is_for_types(node))]:
            for name in _defined(node):
                self.pieces[name].append(node)
        self.words = {name: _words(nodes) for name, nodes in self.pieces.items()}
        self.automatic = {name for name, nodes in self.pieces.items() if any(map(_is_automatic, nodes))}
        self.commands = {name for name, words in self.words.items() if words.has_command}

    def names_of(self, piece: str) -> set[str]:
        """Names and dotted names that a piece's code takes."""
        return self._of(piece).names

    def imports_of(self, piece: str) -> set[str]:
        """Dotted names that are imported when the piece runs."""
        return self._of(piece).imports

    def strings_of(self, piece: str) -> set[str]:
        """Strings with a dot in the piece's code."""
        return self._of(piece).strings

    def _of(self, piece: str) -> _Words:
        return self.words.get(piece, _Words())

    def fingerprints(self) -> dict[str, str]:
        """By name, its code and where the names in it are imported from; comments and docstrings are no code.

        An imported name has one too, for others may take it from here.
        """
        passed_on = {name: str(sorted(origins)) for name, origins in self.imported.items()}
        return passed_on | {piece: self._fingerprint(piece, nodes) for piece, nodes in self.pieces.items()}

    def _fingerprint(self, piece: str, nodes: list[ast.stmt]) -> str:
        used = {name.partition(".")[0] for name in self.names_of(piece)}
        origins = [(name, sorted(self.imported[name])) for name in sorted(used & self.imported.keys())]
        code = [ast.dump(_undocumented(node)) for node in nodes if not isinstance(node, IMPORTS)]
        return "\n".join([*code, str(origins)])


def changed_pieces(old: str, new: str) -> set[str]:
    """Return the names whose code differs between two texts of a file; and ALL if one of them is gone."""
    before, now = Code(old).fingerprints(), Code(new).fingerprints()
    gone = {ALL} if before.keys() - now.keys() else set()
    return gone | {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}


def _words(nodes: Iterable[ast.AST]) -> _Words:
    found = _Words()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Attribute):
            base, name = _chain(node)
            found.names.add(name)
            waiting += [] if isinstance(base, ast.Name) else [base]
        elif isinstance(node, ast.Name):
            found.names.add(node.id)
        elif isinstance(node, ast.arg):
            found.names.add(node.arg)  # perhaps a fixture
        elif isinstance(node, IMPORTS):
            found.imports.update(dotted for _, dotted in _aliases(node))
        elif isinstance(node, ast.Constant):
            found.strings.update([node.value] if isinstance(node.value, str) and "." in node.value else [])
        elif not _is_docstring(node):
            found.has_command |= _is_command(node)
            waiting += _inner(node)
    return found


def _inner(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that are run."""
    for name in node._fields:
        value = getattr(node, name, None) if name not in HINTS else None
        if isinstance(value, ast.AST):
            yield value
        elif isinstance(value, list):
            yield from (part for part in value if isinstance(part, ast.AST))


def _chain(node: ast.Attribute) -> tuple[ast.expr, str]:
    """What a chain of attributes starts from, and its dotted name; the attributes alone if that is no name."""
    parts: list[str] = []
    base: ast.expr = node
    while isinstance(base, ast.Attribute):
        parts.insert(0, base.attr)
        base = base.value
    return base, ".".join([base.id, *parts]) if isinstance(base, ast.Name) else f".{parts[-1]}"


def _is_command(node: ast.AST) -> bool:
    """Whether a list of words says `-m course_lib`."""
    words = [getattr(word, "value", None) for word in getattr(node, "elts", [])]
    return ("-m", "course_lib") in zip(words, words[1:], strict=False)


def _is_automatic(node: ast.stmt) -> bool:
    """Whether pytest uses a name of a test file without being asked: a fixture for all tests, a mark, a hook."""
    marks = [ast.unparse(mark) for mark in getattr(node, "decorator_list", [])]
    return any("autouse=True" in mark for mark in marks) or any(name.startswith("pytest") for name in _defined(node))


def _defined(node: ast.stmt) -> Iterable[str]:
    """The names that a statement at a file's top gives to something, and START if it runs for the file itself."""
    if isinstance(node, DEFINITIONS):
        return {node.name}
    if isinstance(node, IMPORTS):
        return {START}
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)}
    inner = [child for child in ast.walk(node) if isinstance(child, ast.stmt) and child is not node]
    return {START, *(name for child in inner for name in _defined(child))}


def _imported_anywhere(node: ast.AST) -> Iterator[tuple[str, str]]:
    for inner in ast.walk(node):
        if isinstance(inner, IMPORTS):
            yield from _aliases(inner)


@cache
def _aliases(node: ast.Import | ast.ImportFrom) -> tuple[tuple[str, str], ...]:
    """Each imported name: what it is called in the file, and its dotted name."""
    if isinstance(node, ast.ImportFrom):
        return tuple((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
    return tuple((alias.asname or alias.name.partition(".")[0], _origin(alias)) for alias in node.names)


def _origin(alias: ast.alias) -> str:
    return alias.name if alias.asname else alias.name.partition(".")[0]


def _undocumented(node: ast.stmt) -> ast.stmt:
    """The same statement; docstrings in it are taken out, which nobody will look for again."""
    for inner in ast.walk(node):
        if isinstance(inner, DEFINITIONS) and _is_docstring(inner.body[0]):
            inner.body = inner.body[1:]
    return node


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
