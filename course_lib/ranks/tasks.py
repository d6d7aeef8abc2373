"""What travels between the notebook and its ranks: a task to each rank, an outcome back."""

from __future__ import annotations

import copyreg
import linecache
import sys
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

import cloudpickle

from course_lib.ranks.stacks import Frame

if TYPE_CHECKING:
    from course_lib.comm.ledger import Event

_CELL = "<ranks cell "


def packed(content: Any) -> bytes:
    """Pickled for the ranks, with the functions that the notebook alone knows.

    A function that says `dist` and, anywhere, `.config` makes cloudpickle take torch.distributed.config along; that is
    a module of a class of its own, which travels only by its name.
    """
    config = sys.modules.get("torch.distributed.config")
    if config is not None:
        copyreg.pickle(type(config), lambda module: (import_module, (module.__name__,)))
    data: bytes = cloudpickle.dumps(content)
    return data


@dataclass(frozen=True, kw_only=True)
class Task:
    """One cell (`code`) or one function call (`call`, pickled) for a rank; `number` counts the pool's tasks."""

    number: int
    code: str | None = None
    call: bytes | None = None
    push: bytes | None = None
    pull: tuple[str, ...] = ()
    sources: dict[str, list[str]] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """The name under which a cell's lines appear in stacks."""
        return f"{_CELL}{self.number}>"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An exception on a rank: its type, text, and the learner's own frames, outermost first."""

    type: str
    text: str
    frames: list[Frame]
    missing_name: str | None = None

    @property
    def is_echo(self) -> bool:
        """Whether it only says that another rank went away (gloo's and NCCL's wording)."""
        words = (
            "Connection closed by peer",
            "Connection reset by peer",
            "Broken pipe",
            "remote process exited",
        )
        return any(word in self.text for word in words)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a task ended on one rank; `value` is the pickled result, or of a cell the text of its last expression."""

    failure: Failure | None = None
    value: Any = None
    pulled: bytes | None = None
    events: list[Event] = field(default_factory=list)


def typed_sources() -> dict[str, list[str]]:
    """Lines of code that exists in no file (notebook cells), so that a rank's stacks can show them.

    What ran on the ranks is left out: they know it, and every task would carry all tasks before it.
    """
    entries = ((name, entry) for name, entry in linecache.cache.items() if len(entry) == 4)
    return {  # of a file, entry[1] is the time of its last change
        name: list(entry[2]) for name, entry in entries if entry[1] is None and not name.startswith(_CELL)
    }


def register_source(name: str, lines: list[str]) -> None:
    """Let `linecache`, and with it every report of a stack, know lines that are in no file."""
    linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
