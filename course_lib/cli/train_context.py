"""What a training run says of ranks that share each sequence: cp, context and order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from course_lib.cli.compose import refuse
from course_lib.cli.settings import names
from course_lib.cli.train_settings import CONTEXT
from course_lib.training.context_technique import context
from course_lib.training.setup import Technique

COMMAND = "train"
_UNSAID = {"context": "all_gather", "order": "zigzag"}


def complete(values: dict[str, Any]) -> None:
    """Check the values, and say what was left unsaid: all_gather, zigzag.

    Raises: ValueError for what does not fit the degrees, the engine or the sequence.
    """
    cp, sequence = values["cp"], values["sequence"]
    given = {name: values[name] for name in names([CONTEXT]) if values[name] is not None}
    if cp == 1:
        for name, value in given.items():
            way_out = f"leave {name} out, or give cp >= 2"
            refuse(COMMAND, f"{name}={value} with cp=1", "it says how ranks share a sequence", way_out)
        return
    if values["engine"] == "torch":
        rule = "PyTorch's engine trains along dp and tp here"
        refuse(COMMAND, f"engine=torch with cp={cp}", rule, "choose engine=own, or cp=1")
    values |= _UNSAID | given
    for setting in CONTEXT.settings:
        if (value := values[setting.name]) not in setting.choices:
            refuse(
                COMMAND, f"{setting.name}={value!r}", "not a known kind", f"choose from {', '.join(setting.choices)}"
            )
    if sequence < cp:
        way_out = f"give sequence >= {cp}, or less cp"
        refuse(COMMAND, f"sequence={sequence} with cp={cp}", "every rank needs a position", way_out)
    if values["capacity"] is not None:
        rule = "an expert takes the first tokens of a sequence, of which each rank sees some"
        refuse(COMMAND, f"capacity={values['capacity']} with cp={cp}", rule, "leave capacity out, or choose cp=1")


def techniques(values: Mapping[str, Any]) -> list[Technique]:
    """What shares sequences, if anything does."""
    return [context(values["context"], order=values["order"])] if values["cp"] > 1 else []
