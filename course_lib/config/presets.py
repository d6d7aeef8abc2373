"""Published models by name, and models from one's own file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, get_args

from course_lib import presets
from course_lib.config.model import Bias, LatentAttention, ModelConfig
from course_lib.errors import four_parts
from course_lib.units import is_number

_FIELDS = {field.name: field for field in fields(ModelConfig) if field.name != "made"}  # no file has a model's tensors
_LISTS = {"biases": f"some of {', '.join(get_args(Bias))}", "uncomputed": "settings in words"}
_ABOUT = ("source", "printed_parameters", "misprints")
_KINDS: dict[str, tuple[type, str]] = {  # of the fields that a file can spoil silently
    "int": (int, "a whole number"),
    "int | None": (int, "a whole number"),
    "bool": (bool, "true or false"),
    "str": (str, "a text"),
    "float": (float, "a number with a point"),  # YAML reads 1e-5 as text, 1.0e-5 as a number
    "float | None": (float, "a number with a point"),
}


@dataclass(frozen=True, kw_only=True)
class ModelPreset:
    """A published model: its shape, and what its publication prints about it."""

    config: ModelConfig
    source: str
    printed_parameters: float | None  # the rounded number in the model's name or table; None: none is printed
    misprints: Mapping[str, int]  # field -> the value printed in the source, corrected in `config`


def model_names() -> tuple[str, ...]:
    """The presets there are."""
    return presets.names("model")


@cache
def load_preset(name: str) -> ModelPreset:
    """The published model `name`.

    Raises: ValueError for a name that no preset has.
    """
    return parse_model(presets.read("model", name))


def load_model(name: str) -> ModelConfig:
    """The shape of the published model `name`."""
    return load_preset(name).config


def parse_model(values: Mapping[str, Any]) -> ModelPreset:
    """A model from the keys of a preset file: the fields of ModelConfig, and what is known about them.

    Raises: ValueError for a key that is unknown or missing, or a value of another kind than its field's.
    """
    shape = {key: value for key, value in values.items() if key not in _ABOUT}
    _check_keys(shape)
    shape |= {key: tuple(shape[key]) for key in _LISTS if key in shape}
    if shape.get("latent") is not None:
        shape["latent"] = _parse_latent(shape["latent"])
    return ModelPreset(
        config=ModelConfig(**shape),
        source=values.get("source", "not stated"),
        printed_parameters=values.get("printed_parameters"),
        misprints=values.get("misprints", {}),
    )


def _parse_latent(values: Any) -> LatentAttention:
    """The numbers of a latent attention.

    Raises: ValueError unless they are just these, each a whole number.
    """
    names = [field.name for field in fields(LatentAttention)]
    sound = isinstance(values, Mapping) and {*values} == {*names}
    if not sound or any(type(n) is not int and (name, n) != ("query_rank", None) for name, n in values.items()):
        rule, way_out = f"latent has the numbers {', '.join(names)}", "give each of them"
        raise ValueError(four_parts("model preset", f"latent={values!r}", rule, way_out))
    return LatentAttention(**values)


def _check_keys(shape: Mapping[str, Any]) -> None:
    what = f"model preset {shape.get('name', 'without a name')!r}"
    for key, value in shape.items():
        if key not in _FIELDS:
            way_out = f"choose from {', '.join(_FIELDS)}"
            raise ValueError(four_parts(what, f"key {key!r}", "not a field of ModelConfig", way_out))
        kind, words = _KINDS.get(str(_FIELDS[key].type), (object, ""))
        if value is None and str(_FIELDS[key].type).endswith("| None"):
            continue
        if kind is not object and (type(value) is not kind or (kind is float and not is_number(value))):
            way_out = "write it without quotes and units"
            raise ValueError(four_parts(what, f"{key}={value!r}", f"{key} is {words}", way_out))
        if key in _LISTS and not (isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)):
            way_out = f"list {_LISTS[key]}, or none"
            raise ValueError(four_parts(what, f"{key}={value!r}", f"{key} is a list", way_out))
    missing = [name for name, field in _FIELDS.items() if field.default is MISSING and name not in shape]
    if missing:
        rule = "these keys have no default"
        raise ValueError(four_parts(what, f"without {', '.join(missing)}", rule, "add them to the file"))


LLAMA_3_1_8B = load_model("llama3_1_8b")
