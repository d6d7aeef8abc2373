"""What every command can be told, as COMMANDS.md lists it: written from the tables that the commands read."""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.cli.command_help import default_in_words, meaning
from course_lib.cli.commands import COMMANDS
from course_lib.cli.settings import Group
from course_lib.cli.train_settings import TRAIN
from tools.paths import ROOT

PAGE = ROOT / "COMMANDS.md"
HEADING = "## Every setting"
_OPENING = """The number is that of the lesson from which on a setting is understood, and `-` is nothing.
`course COMMAND --help` says the same."""


def page(text: str) -> str:
    """The page with its last section written anew."""
    kept = text.partition(HEADING)[0]
    return kept + "\n\n".join([HEADING, _OPENING, *_sections()]) + "\n"


def _sections() -> Iterator[str]:
    for name, command in COMMANDS.items():
        if command.groups:
            also = ", and what `train` takes" if command.own and command.shared is TRAIN else ""
            listed = command.own or command.shared
            yield "\n\n".join([f"### {name}", f"To {command.about}{also}.", *map(_table, listed)])


def _table(group: Group) -> str:
    rows = [f"| {group.title} | default | | lesson |", "|---|---|---|---|"]
    for one in group.settings:
        rows.append(f"| `{one.name}` | `{default_in_words(one)}` | {meaning(one)} | {one.since} |")
    return "\n".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE.relative_to(ROOT))
