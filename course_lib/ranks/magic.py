"""`%%ranks 4`: run a notebook cell on four processes."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cloudpickle

from course_lib.errors import four_parts
from course_lib.ranks import api, switch
from course_lib.ranks.report import RankError
from course_lib.ranks.server import start_fork_server
from course_lib.ranks.tasks import Outcome, packed
from course_lib.ranks.transcript import LiveView, Transcript, write_out

_USAGE = "%%ranks N [--only 0,2] [--timeout 30] [--push a,b] [--pull c,d] [--device cuda]"


@dataclass(frozen=True, kw_only=True)
class _Options:
    """What stands on a cell's first line."""

    world_size: int
    only: tuple[int, ...]
    timeout: float = 30.0
    push: tuple[str, ...] = ()
    pull: tuple[str, ...] = ()
    device: str | None = None


def _parse(line: str) -> _Options:
    """Read `N --option value …`; every mistake is a four-part ValueError."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise _mistake(str(error), "quotes come in pairs", _USAGE) from None
    if not words:
        raise _mistake("no number of ranks given", "the first word is the number of ranks", "write %%ranks 4")
    world_size = _number(words[0], int, "N")
    api.check_world_size(world_size)
    given: dict[str, Any] = {}
    for flag, value in zip(words[1::2], [*words[2::2], None], strict=False):
        reader = _READERS.get(flag)
        if reader is None:
            raise _mistake(f"unknown option {flag}", f"the options are {', '.join(_READERS)}", _USAGE)
        if value is None or value.startswith("--"):
            raise _mistake(f"{flag} has no value", "each option takes one value", _USAGE)
        given[flag[2:]] = reader(value)
    only = given.pop("only", tuple(range(world_size)))
    outside = [rank for rank in only if not 0 <= rank < world_size]
    if outside:
        ranks = f"ranks are 0 to {world_size - 1}"
        raise _mistake(f"--only {outside[0]} with {world_size} ranks", ranks, "choose ranks in that range")
    return _Options(world_size=world_size, only=only, **given)


def _names(value: str) -> tuple[str, ...]:
    names = tuple(name for name in value.split(",") if name)
    wrong = [name for name in names if not name.isidentifier()]
    if wrong or not names:
        raise _mistake(f"{value!r} is no list of names", "names are separated by commas, without spaces", _USAGE)
    return names


def _ranks(value: str) -> tuple[int, ...]:
    return tuple(sorted({_number(word, int, "--only") for word in value.split(",")}))


def _seconds(value: str) -> float:
    seconds = _number(value, float, "--timeout")
    if not seconds > 0:
        raise _mistake(f"--timeout {value}", "a time limit is longer than 0 s", "write --timeout 30")
    return seconds


def _device(value: str) -> str:
    if value not in switch.KINDS:
        raise _mistake(f"--device {value}", "the devices are cpu and cuda", "write --device cpu")
    return value


_READERS: dict[str, Callable[[str], Any]] = {
    "--only": _ranks,
    "--timeout": _seconds,
    "--push": _names,
    "--pull": _names,
    "--device": _device,
}


def _number(word: str, kind: Callable[[str], Any], name: str) -> Any:
    try:
        return kind(word)
    except ValueError:
        raise _mistake(f"{name} is {word!r}", "it must be a number", _USAGE) from None


def _mistake(values: str, rule: str, way_out: str) -> ValueError:
    return ValueError(four_parts("%%ranks", values, rule, way_out))


def register(shell: Any) -> None:
    """Add `%%ranks` and `%device` to an IPython shell, and let the fork server import torch until a cell needs it."""
    start_fork_server()
    shell.register_magic_function(lambda line, cell: _run_cell(shell, line, cell), "cell", "ranks")
    shell.register_magic_function(_set_device, "line", "device")


def _set_device(line: str) -> None:
    """`%device cuda`: the ranks of all later cells compute on GPUs; `%device cpu`: on CPUs; `%device`: say which."""
    with _one_line_errors():
        if line.strip():
            switch.set_for_process(line.strip())
        print(f"ranks compute on {switch.device_kind()}")


def _run_cell(shell: Any, line: str, cell: str) -> None:
    """Run `cell` on the ranks that `line` names; print one block in rank order; bring pulled variables back."""
    with _one_line_errors():
        options = _parse(line)
        push = _pack(shell.user_ns, options.push)
    cell = "\n" + cell  # the learner counts the %%ranks line too
    ast.parse(cell, "<ranks cell>")  # a syntax error is the notebook's, not a rank's
    transcript = Transcript(options.world_size)
    live = LiveView(transcript)
    if not api.is_ready(options.world_size, options.device):
        live.announce(f"starting {options.world_size} processes, which takes a few seconds …")
    try:
        outcomes = api.run_task(
            options.world_size,
            list(options.only),
            timeout=options.timeout,
            device=options.device,
            listen=live.add,
            code=cell,
            push=push,
            pull=options.pull,
        )
        _show_values(transcript, outcomes)
        _bring_back(shell.user_ns, options, outcomes)
    except RankError as error:
        raise _with_hint(error, shell.user_ns) from None
    finally:
        live.close()
        write_out(transcript.text())


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Let IPython show a mistake in the first line without the stack of this module."""
    try:
        yield
    except ValueError as error:
        text = f"ValueError: {error}"
        error._render_traceback_ = lambda: [text]  # type: ignore[attr-defined]
        raise


def _pack(names: dict[str, Any], push: tuple[str, ...]) -> bytes | None:
    missing = [name for name in push if name not in names]
    if missing:
        raise _mistake(
            f"--push {', '.join(missing)}",
            "only variables of the notebook can be pushed",
            "define it in a cell first",
        )
    return packed({name: names[name] for name in push}) if push else None


def _show_values(transcript: Transcript, outcomes: dict[int, Outcome]) -> None:
    for rank, outcome in outcomes.items():
        if outcome.value is not None:
            transcript.show_value(rank, outcome.value)


def _bring_back(names: dict[str, Any], options: _Options, outcomes: dict[int, Outcome]) -> None:
    pulled = [cloudpickle.loads(outcomes[rank].pulled) for rank in options.only if options.pull]
    for name in options.pull:
        names[name] = [values[name] for values in pulled]


def _with_hint(error: RankError, names: dict[str, Any]) -> RankError:
    """A name that the notebook knows and the ranks do not: say how to send it."""
    name = error.missing_name
    if name is not None and name in names:
        error.args = (f"{error}; `{name}` is defined in the notebook, not on the ranks: add --push {name}",)
    return error
