"""What a picture is turned by, as plain data: a notebook makes widgets of it, and a page without a kernel its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from course_lib.config import load_model, model_names
from course_lib.costs.model.parameters import model_parameters
from course_lib.viz.ink.image import Shown

Values = Mapping[str, Any]  # by the controls' names
Table = Sequence[Sequence[str]]  # rows of words; the first row and the first column are heads
Kind = Literal["whole number", "number", "slider", "choice", "line", "lines"]


@dataclass(frozen=True, kw_only=True)
class Control:
    """One of them: what it is called, what it says at first, and of a slider or a choice what it may say."""

    kind: Kind
    label: str
    value: Any
    options: tuple[tuple[str, Any], ...] = ()  # what the reader sees, and what it stands for
    only_with: tuple[str, Any] | None = None  # another control's name and value: under other values it is off


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A picture and its controls.

    `draw` gets the controls' values by name. One that `compares` also gets `before`, the values of the picture before
    it, or None. What it refuses is a ValueError. `table` says the same values in whole numbers, if the picture rounds.
    """

    draw: Callable[..., Shown]
    controls: Mapping[str, Control]
    presets: Mapping[str, Values] = field(default_factory=dict)  # by a button's words, the values that it sets
    compares: bool = False
    table: Callable[..., Table] | None = None

    def off(self, values: Values) -> set[str]:
        """The controls that have nothing to say under these values."""
        tied = {name: control.only_with for name, control in self.controls.items() if control.only_with}
        return {name for name, (other, value) in tied.items() if values[other] != value}

    def picture(self, values: Values, before: Values | None) -> Shown:
        """What `values` look like, after `before`."""
        return self.draw(**values, **({"before": before} if self.compares else {}))


def number(label: str, value: int) -> Control:
    """A field for a whole number, legal or not: what is refused says why."""
    return Control(kind="whole number", label=label, value=value)


def decimal(label: str, value: float) -> Control:
    """A field for a number, legal or not: what is refused says why."""
    return Control(kind="number", label=label, value=value)


def slider(label: str, value: Any, options: Sequence[Any], *, only_with: tuple[str, Any] | None = None) -> Control:
    """A slider through values that follow each other, such as the powers of two."""
    named = tuple((f"{option:,}", option) for option in options)
    return Control(kind="slider", label=label, value=value, options=named, only_with=only_with)


def powers_of_two(least: int, most: int) -> list[int]:
    """From `least`, which is one, to `most`.

    >>> powers_of_two(1, 8)
    [1, 2, 4, 8]
    """
    return [least << step for step in range((most // least).bit_length())]


def choice(label: str, value: Any, options: Collection[Any] | Mapping[str, Any]) -> Control:
    """A list to choose from; of a mapping, the reader sees its names."""
    named = options.items() if isinstance(options, Mapping) else ((str(option), option) for option in options)
    return Control(kind="choice", label=label, value=value, options=tuple(named))


def model_choice(value: str) -> Control:
    """The published models, the smallest first."""
    models = sorted(((load_model(name), name) for name in model_names()), key=lambda one: model_parameters(one[0]))
    return choice("model", value, {model.name: name for model, name in models})


def words(label: str, value: str) -> Control:
    """A field for a line of text, read when it is left or confirmed."""
    return Control(kind="line", label=label, value=value)


def file_text(label: str) -> Control:
    """A field for the text of a file, empty at first."""
    return Control(kind="lines", label=label, value="")
