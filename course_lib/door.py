"""A package's door: names that its files define, each written once and loaded when it is first asked for."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

_Door = tuple[Callable[[str], Any], Callable[[], list[str]]]  # a package's __getattr__ and __dir__
_Homes = dict[str, str]  # by name, the module that defines it


def all_names(package: str, pattern: str, beside: Sequence[str] = ()) -> _Door:
    """A door to every public name of the files that match `pattern`; public is what begins without an underscore.

    What the packages `beside` offer is found here too: whoever asks a price names a model and a device first.
    mypy knows none of these names' types: inside `course_lib`, import a name from the file that defines it.
    """

    def homes(folder: Path) -> _Homes:
        files = sorted(file for file in folder.glob(pattern) if file.stem != "__init__")
        modules = {file: _module(package, folder, file) for file in files}
        own = {name: module for file, module in modules.items() for name in public_names(file)}
        return {name: other for other in beside for name in _offered(folder.parent / other.rpartition(".")[2])} | own

    return _door(package, homes)


def all_that_return(package: str, kinds: Collection[str]) -> _Door:
    """A door to every public function of the package's files that says it returns one of these kinds."""

    def homes(folder: Path) -> _Homes:
        files = sorted(file for file in folder.rglob("*.py") if file.stem != "__init__")
        return {name: _module(package, folder, file) for file in files for name in _functions(file, kinds)}

    return _door(package, homes)


def listed_names(package: str) -> _Door:
    """A door to the names that the package's own `__init__` imports under TYPE_CHECKING, where mypy reads them too."""

    def homes(folder: Path) -> _Homes:
        tree = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
        blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
        return {alias.name: str(node.module) for node in imports for alias in node.names}

    return _door(package, homes)


def _offered(package: Path) -> Iterator[str]:
    """What a package's `__init__` imports, to pass it on; or what a single file defines."""
    if not package.is_dir():
        yield from public_names(package.with_suffix(".py"))
        return
    for node in ast.parse((package / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            yield from (alias.name for alias in node.names)


def _module(package: str, folder: Path, file: Path) -> str:
    return ".".join([package, *file.relative_to(folder).with_suffix("").parts])


def public_names(file: Path) -> Iterator[str]:
    """What a file defines at its top, without what begins with an underscore."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        names = [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else _assigned(node)
        yield from (name for name in names if not name.startswith("_"))


def _functions(file: Path, kinds: Collection[str]) -> Iterator[str]:
    text = file.read_text(encoding="utf-8")
    if not any(f"-> {kind}:" in text for kind in kinds):
        return  # parsing every file would take twice as long
    found = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    typed = [(node.name, ast.unparse(node.returns)) for node in found if node.returns]
    yield from (name for name, kind in typed if kind in kinds and not name.startswith("_"))


def _assigned(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


def _door(package: str, homes: Callable[[Path], _Homes]) -> _Door:
    module = sys.modules[package]

    @cache
    def known() -> _Homes:
        return homes(Path(str(module.__file__)).parent)

    def find(name: str) -> Any:
        if name.startswith("_") or name not in known():
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=module)
        found = getattr(import_module(known()[name]), name)
        setattr(module, name, found)  # asked for once
        return found

    return find, lambda: sorted(known())
