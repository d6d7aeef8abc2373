"""What the names of the course's library and of PyTorch mean: remembered once, so that who changes it is found.

An answer may write `F.linear = mine`, and so may a learner who tries something. Other answers and their checks are to
find the functions that their authors meant.
"""

from __future__ import annotations

import builtins
import importlib.abc
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from operator import is_
from types import ModuleType
from typing import Any, NamedTuple

_ALONE = {
    *("builtins", "copy", "functools", "itertools", "math", "os", "random", "time"),
    *("torch", "torch.autograd", "torch.autograd.function", "torch.distributed", "torch.distributed.device_mesh"),
    *("torch.distributed.distributed_c10d", "torch.functional", "torch.linalg", "torch.nn", "torch.nn.functional"),
    *("torch.nn.init", "torch.nn.parameter", "torch.optim"),
}
_WITH_ALL_BELOW = ("course_lib.", "torch.nn.modules.", "torch.nn.parallel.", "torch.optim.")
_CLASSES_OF = ("course_lib", "torch")
_NOTHING = object()


class Space:
    """Names with their values as they were: those of a module or a class, or a table's entries.

    A module has variables too, which change as the program goes on. Its definitions do not: what can be called, other
    modules, and what is written in capitals. A class's are its methods, to which none is added either.
    """

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.saved = dict(self._now())

    def _now(self) -> Mapping[str, Any]:
        return self.owner if isinstance(self.owner, dict) else vars(self.owner)

    def changed(self) -> Iterator[tuple[str, Any]]:
        """Each name that means something else now, and what; `_NOTHING` if it is gone."""
        now, saved = self._now(), self.saved
        if len(now) == len(saved) and all(map(is_, now.values(), saved.values())):
            return
        for name in [*saved, *(now.keys() - saved.keys())]:
            new, old = now.get(name, _NOTHING), saved.get(name, _NOTHING)
            if new is not old and self._is_definition(name, old, new):
                yield name, new

    def _is_definition(self, name: str, old: Any, new: Any) -> bool:
        if isinstance(self.owner, dict):
            return True
        if isinstance(self.owner, type):
            return any(callable(x) or hasattr(type(x), "__get__") for x in (old, new))
        if old is _NOTHING:  # usual, unless it stands before what Python has by that name, or a package's door
            return hasattr(builtins, name) or self._is_not_behind_the_door(name, new)
        return callable(old) or isinstance(old, ModuleType) or name.isupper()

    def _is_not_behind_the_door(self, name: str, new: Any) -> bool:
        """Whether the name is one that a package loads when it is first asked for (`course_lib.door`), and not that."""
        find, names = self.saved.get("__getattr__"), self.saved.get("__dir__")
        if find is None or names is None or isinstance(new, ModuleType):
            return False
        return name in names() and find(name) is not new

    def write(self, name: str, value: Any) -> None:
        """Let a name mean that."""
        if isinstance(self.owner, dict):
            self.owner.pop(name, None)
            if value is not _NOTHING:
                self.owner[name] = value
        elif value is _NOTHING:
            delattr(self.owner, name)
        else:
            setattr(self.owner, name, value)


class Change(NamedTuple):
    """A name that means something else than it did."""

    space: Space
    name: str
    value: Any  # what it means now

    def undo(self) -> None:
        """Let it mean what it did."""
        self.space.write(self.name, self.space.saved.get(self.name, _NOTHING))

    def redo(self) -> None:
        """Let it mean the other thing again."""
        self.space.write(self.name, self.value)


_spaces: dict[int, Space] = {}  # by the owner's identity


def remember() -> None:
    """Remember all that is imported now, and from now on each module as soon as it is imported. Cost: 8 ms."""
    _spaces.clear()
    for name, module in list(sys.modules.items()):
        if _is_watched(name):
            _remember(module)
    if not any(isinstance(finder, _Remembering) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Remembering())


def changes() -> list[Change]:
    """What means something else than it did. Cost: 2 ms.

    A name behind a package's door is compared with what stands in its file, which may be changed too: who has undone
    all changes asks once more.
    """
    return [Change(space, name, value) for space in _spaces.values() for name, value in space.changed()]


def _is_watched(name: str) -> bool:
    return name in _ALONE or name.startswith(_WITH_ALL_BELOW)


def _remember(module: ModuleType) -> None:
    _spaces[id(module)] = Space(module)
    for name, value in list(vars(module).items()):
        kind = type(value)
        if issubclass(kind, type):  # isinstance would ask the value, and PyTorch has some that warn of themselves
            is_ours = value.__module__.partition(".")[0] in _CLASSES_OF
        else:
            is_ours = kind in (dict, OrderedDict) and _is_table(module, name, value)
        if is_ours and id(value) not in _spaces:
            _spaces[id(value)] = Space(value)


def _is_table(module: ModuleType, name: str, value: Mapping[Any, Any]) -> bool:
    """A table that its file fills, and nothing later; PyTorch's hooks of all modules, of which there are none."""
    if module.__name__.startswith("torch."):
        return name.startswith("_global_")
    return module.__name__.startswith("course_lib.") and name.isupper() and bool(value)


class _Remembering(importlib.abc.MetaPathFinder):
    """Finds modules as ever, and remembers them before anybody else has seen them."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """What the usual finder says, with a loader that remembers."""
        spec = PathFinder.find_spec(name, path, target) if _is_watched(name) else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _remember(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
