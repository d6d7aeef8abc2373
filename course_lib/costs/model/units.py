"""The units of a decoder under each wrapping policy, by formula: what sharded data parallelism gathers together.

A unit's tensors lie side by side in a row of numbers; the rows of what is trained and of what is frozen are apart. What
no policy takes is the root's, which is whole from the beginning of forward to the end of backward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Literal, get_args

from course_lib.config import ModelConfig
from course_lib.costs.model.parameters import Weight, layer_weights, outer_weights
from course_lib.errors import four_parts
from course_lib.split import split_sizes

Wrapping = Literal["by_block", "by_block_and_size", "by_block_group", "size_based"]
Padding = Literal["none", "row", "tensor"]
Shape = tuple[int, ...]
ROOT = "root"
_Group = tuple[str, ...]
_OPENING: _Group = ("embedding", "positions")
SCALE_BYTES = 4  # of a block that is gathered in one-byte numbers
_TABLES = ("embedding", "head")


@dataclass(frozen=True, kw_only=True)
class UnitShapes:
    """The tensors of one unit by their shapes; `opening` are the trained ones that forward uses before other units.

    Only a root has an opening: an embedding, whose gradient comes last.
    """

    label: str
    trained: tuple[Shape, ...] = ()
    frozen: tuple[Shape, ...] = ()
    opening: tuple[Shape, ...] = ()

    @property
    def is_root(self) -> bool:
        """Whether it is gathered first and freed last."""
        return self.label == ROOT

    def numbers(self, *, trained: bool, shards: int = 1, padding: Padding = "none") -> int:
        """Numbers in the row of what is trained, or frozen; the opening is in it."""
        shapes = (*self.opening, *self.trained) if trained else self.frozen
        return row_numbers(shapes, shards=shards, padding=padding)


def row_numbers(shapes: Sequence[Shape], *, shards: int, padding: Padding = "none") -> int:
    """Numbers in a row of these tensors, with what is added so that every rank's piece is as long.

    Our transport sends pieces of any length. A native gather pads the row ("row"); FSDP2 cuts each tensor along its
    first dim, and pads that ("tensor").

    >>> [row_numbers([(5, 3), (2,)], shards=4, padding=padding) for padding in ("none", "row", "tensor")]
    [17, 20, 28]

    Source: torch 2.13, `_get_dim0_padded_size` in torch/distributed/fsdp/_fully_shard/_fsdp_common.py.
    """
    if padding == "tensor":
        return sum(_up(shape[0] if shape else 1, shards) * prod(shape[1:]) for shape in shapes)
    numbers = sum(map(prod, shapes))
    return _up(numbers, shards) if padding == "row" else numbers


def row_blocks(numbers: int, *, shards: int, block: int) -> int:
    """Blocks of at most so many numbers in a row, of which each piece begins one of its own.

    >>> row_blocks(1000, shards=3, block=256)
    6
    """
    return sum(-(-piece // block) for piece in split_sizes(numbers, shards))


def decoder_units(
    config: ModelConfig, wrapping: Wrapping = "by_block", size: int | None = None, *, tp: int = 1
) -> tuple[UnitShapes, ...]:
    """The units of a decoder, all of it trained, in the order of forward; the root's is the last.

    `size` is the number of blocks in a group for by_block_group, and for size_based the parameters that make a unit.
    A matrix that embedding and head share is the root's. With `tp` the shapes are those of the parts that the first
    of so many ranks has, which are the largest; what is a unit is decided by the whole.
    Source: Groeneveld et al. 2024, OLMo (by_block and its relatives); Zhao et al. 2023, section 4.2.
    Raises: ValueError for an unknown wrapping, and unless `size` goes with one of these two.
    """
    _check(wrapping, size)
    modules = _modules(config)
    groups = _groups(modules, config.n_layers, wrapping, size or 1)
    group_of = {name: group for group in groups for name in group}
    held: dict[_Group, list[Shape]] = {group: [] for group in (*groups, _OPENING, ())}
    for name, shapes in _modules(config, tp).items():
        rest = _OPENING if name in _OPENING else ()
        group = next((group_of[part] for part in reversed(_around(name)) if part in group_of), rest)
        shared = shapes[:1] if config.tied and name in _TABLES else []
        held[_OPENING] += shared if name in _OPENING else []
        held[group] += shapes[len(shared) :]
    opening, rest_of_root = tuple(held.pop(_OPENING)), tuple(held.pop(()))
    units = [UnitShapes(label=_label(group), trained=tuple(shapes)) for group, shapes in held.items() if shapes]
    return (*units, UnitShapes(label=ROOT, trained=rest_of_root, opening=opening))


def _modules(config: ModelConfig, tp: int = 1) -> dict[str, list[Shape]]:
    """By name, in the order of forward, what has tensors of its own; a tied head has the embedding's matrix first."""
    outer, modules = outer_weights(config), dict[str, list[Shape]]()
    blocks = [layer_weights(kind) for count, kind in config.layer_kinds for _ in range(count)]
    _add(modules, "", [weight for weight in outer if weight.name in _OPENING], tp)
    for number, weights in enumerate(blocks):
        _add(modules, f"layers.{number}.", weights, tp)
    _add(modules, "", [weight for weight in outer if weight.name not in _OPENING], tp)
    if config.tied:
        modules["head"] = [*modules["embedding"], *modules.get("head", [])]
    return modules


def _add(modules: dict[str, list[Shape]], prefix: str, weights: Sequence[Weight], tp: int) -> None:
    """A bias belongs to its matrix; of several alike each is a module."""
    for weight in weights:
        for copy in range(weight.copies):
            name = weight.name.removesuffix(".bias") + (str(copy) if weight.copies > 1 else "")
            modules.setdefault(prefix + name, []).append(weight.shape_at(tp))


def _groups(modules: Mapping[str, list[Shape]], n_layers: int, wrapping: Wrapping, size: int) -> list[_Group]:
    """What the policy names, in the order of forward."""
    if wrapping == "size_based":
        return [(name,) for name in _of_size(modules, size)]
    blocks = [f"layers.{number}" for number in range(n_layers)]
    if wrapping != "by_block_and_size":
        return [tuple(blocks[start : start + size]) for start in range(0, n_layers, size)]
    least = max(_count(modules, block) for block in blocks)
    large = [name for name in modules if "." not in name and _count(modules, name) >= least]
    before = [(name,) for name in large if name in _OPENING]
    return [*before, *((block,) for block in blocks), *((name,) for name in large if name not in _OPENING)]


def _of_size(modules: Mapping[str, list[Shape]], least: int) -> list[str]:
    """From the inside out, what has so many parameters that nothing within it has taken."""
    left = dict.fromkeys((part for name in modules for part in _around(name)), 0)
    left |= {name: sum(map(prod, shapes)) for name, shapes in modules.items()}
    found = set()
    for name in sorted(left, key=lambda name: -name.count(".")):
        if left[name] >= least and name != "layers":
            found.add(name)
        elif "." in name:
            left[name.rpartition(".")[0]] += left[name]
    return [name for name in left if name in found]


def _around(name: str) -> list[str]:
    """A module and those that it is in, from the outside in."""
    parts = name.split(".")
    return [".".join(parts[: end + 1]) for end in range(len(parts))]


def _count(modules: Mapping[str, list[Shape]], name: str) -> int:
    inside = (shapes for part, shapes in modules.items() if part == name or part.startswith(f"{name}."))
    return sum(prod(shape) for shapes in inside for shape in shapes)


def _label(group: _Group) -> str:
    return group[0] if len(group) == 1 else f"{group[0]} to {group[-1]}"


def _up(numbers: int, shards: int) -> int:
    """The next multiple of the number of shards."""
    return -(-numbers // shards) * shards


def _check(wrapping: Wrapping, size: int | None) -> None:
    refuse = partial(four_parts, "decoder_units")
    if wrapping not in get_args(Wrapping):
        values, way_out = f"wrapping={wrapping!r}", f"choose from {', '.join(get_args(Wrapping))}"
        raise ValueError(refuse(values, "not a known wrapping policy", way_out))
    if (size is not None) != (wrapping in ("by_block_group", "size_based")) or (size is not None and size < 1):
        values, rule = (
            f"wrapping={wrapping!r}, size={size}",
            "by_block_group and size_based, and they alone, take a size",
        )
        raise ValueError(refuse(values, rule, "give size >= 1 with them, none with others"))
