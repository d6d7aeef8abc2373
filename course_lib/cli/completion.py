"""`course completion bash`: a script that completes commands, names and choices without starting Python."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.cli.commands import COMMANDS
from course_lib.cli.compose import refuse
from course_lib.cli.settings import every

# bash breaks words at an equals sign, and so gets a choice alone; zsh gets the whole word. `words` is zsh's own name.
_SCRIPT = """\
_course() {{
    local line="${{COMP_LINE:0:COMP_POINT}}"
    local word="${{line##* }}" command offered="" before=""
    read -r _ command _ <<< "$line"
    if [[ "$line" =~ ^[[:space:]]*[^[:space:]]+[[:space:]]+[^[:space:]]*$ ]]; then
        offered="{commands}"
    elif [[ "$word" == *=* ]]; then
        case "$command:${{word%%=*}}" in
{choices}
        esac
        if [[ -n "$ZSH_VERSION" ]]; then before="${{word%%=*}}="; fi
    else
        case "$command" in
{names}
        esac
    fi
    COMPREPLY=($(compgen -P "$before" -W "$offered" -- "${{word#*=}}"))
    if [[ -z "$ZSH_VERSION" && "${{COMPREPLY[*]}}" == *= ]]; then compopt -o nospace 2>/dev/null; fi
}}
"""
_ENDING = {
    "bash": "complete -o default -F _course course\n",
    "zsh": "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"
    "complete -o nospace -o default -F _course course\n",
}


def completion_command(arguments: Sequence[str]) -> int:
    """Print the script of a shell.

    Raises: ValueError for any other.
    """
    shell = " ".join(" ".join(arguments).split())
    if shell not in _ENDING:
        refuse("completion", shell or "no shell", "a shell reads what this prints", "choose bash or zsh")
    print(_function() + _ENDING[shell], end="")
    return 0


def _function() -> str:
    """What completes: all that the commands' tables say, written into it."""
    names, choices = [], []
    for name, command in COMMANDS.items():
        settings = every(command.groups)
        words = [f"{setting.name}=" for setting in settings] or command.words.strip("[]").replace("|", " ").split(" N")
        names.append(f'            {name}) offered="{" ".join(words).strip()}" ;;')
        for setting in settings:
            if setting.choices:
                choices.append(f'            {name}:{setting.name}) offered="{" ".join(setting.choices)}" ;;')
    return _SCRIPT.format(commands=" ".join(COMMANDS), choices="\n".join(choices), names="\n".join(names))
