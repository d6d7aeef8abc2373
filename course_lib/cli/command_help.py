"""What `--help` says: of all commands a line each, of one command all that it can be told, a line each."""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.cli.commands import COMMANDS
from course_lib.cli.settings import NEEDED, Group, Setting, every, typed

_WIDEST = 24  # a default that is longer is cut


def overview() -> str:
    """All commands."""
    widest = max(map(len, COMMANDS))
    return "\n".join(
        [
            "usage: course COMMAND [name=value ...]      (or python -m course_lib COMMAND ...)",
            "",
            *(f"  {name:<{widest}}  {command.about}" for name, command in COMMANDS.items()),
            "",
            "course COMMAND --help says what a command can be told; course --version says which course this is",
        ]
    )


def help_of(name: str) -> str:
    """One command."""
    command = COMMANDS[name]
    settings = every(command.groups)
    names = max((len(setting.name) for setting in settings), default=0)
    values = max((len(default_in_words(setting)) for setting in settings), default=0)
    lines = [f"usage: course {name} {command.words}", "", command.about]
    for group in command.groups:
        lines += ["", group.title, *_lines(group, names, values)]
    return "\n".join([*lines, "", "example", f"  {command.example}"])


def _lines(group: Group, names: int, values: int) -> Iterator[str]:
    """Name, default, what it is, and the lesson that explains it."""
    for setting in group.settings:
        start = f"  {setting.name:<{names}}  {default_in_words(setting):<{values}}  {meaning(setting)}"
        yield start + (f"  [lesson {setting.since}]" if setting.since else "")


def default_in_words(setting: Setting) -> str:
    """What holds if nothing is given; `-` is nothing."""
    if setting.default is None:
        return "-"
    text = "needed" if setting.default == NEEDED else typed(setting.default)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def meaning(setting: Setting) -> str:
    """What it is, with its choices; presets are too many for a line."""
    listed = setting.choices if setting.kind != "preset" else ()
    return f"{setting.help} ({', '.join(listed)})" if listed else setting.help
