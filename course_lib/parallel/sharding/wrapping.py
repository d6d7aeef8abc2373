"""Wrapping policies: which modules of a model are gathered together, as one unit.

A policy gives groups of module names in the order of the model; what they leave is one more unit, the root's, whole
from the beginning of forward to the end of backward. Large units send few long messages and need much memory while
they are whole; small ones the other way round. So a unit is also what ZeRO-R calls a buffer of constant size: no row
grows with the number of layers.
Source: Groeneveld et al. 2024, OLMo (by_block and its relatives); Zhao et al. 2023, PyTorch FSDP, section 4.2;
    Rajbhandari et al. 2020, ZeRO, section 6.2 (C_B).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import nn

from course_lib.errors import four_parts
from course_lib.models.patterns import named_by

Names = tuple[str, ...]
Policy = Callable[[nn.Module], list[Names]]
LARGE = 100_000_000  # parameters, from which `size_based` makes a unit


def by_block(model: nn.Module) -> list[Names]:
    """Every block is a unit."""
    return [(name,) for name in blocks_of(model)]


def by_block_and_size(model: nn.Module) -> list[Names]:
    """Every block, and every module beside the blocks that is at least as large as one."""
    blocks = blocks_of(model)
    sizes = [_size(model.get_submodule(name)) for name in blocks]
    largest = max(sizes, default=0)
    chosen = set(blocks)
    for name, child in model.named_children():
        has_blocks = any(block == name or block.startswith(f"{name}.") for block in blocks)
        if not has_blocks and _size(child) >= largest:
            chosen.add(name)
    return [(name,) for name, _ in model.named_modules() if name in chosen]


def by_block_group(size: int) -> Policy:
    """So many blocks that follow each other are a unit.

    Raises: ValueError for a size below 1.
    """
    if size < 1:
        raise ValueError(four_parts("by_block_group", f"size={size}", "a group has blocks", "give size >= 1"))
    return partial(_in_groups, size)


def _in_groups(size: int, model: nn.Module) -> list[Names]:
    blocks = blocks_of(model)
    return [tuple(blocks[start : start + size]) for start in range(0, len(blocks), size)]


def size_based(least: int = LARGE) -> Policy:
    """Every module with at least so many parameters that no unit within it has, from the inside out."""
    return partial(_of_size, least)


def _of_size(least: int, model: nn.Module) -> list[Names]:
    found: set[str] = set()

    def left(name: str, module: nn.Module) -> int:
        """How many parameters of a module are in no unit; it becomes one if they are many."""
        own = sum(p.numel() for p in module.parameters(recurse=False))
        for kind, child in module.named_children():
            own += left(f"{name}.{kind}".removeprefix("."), child)
        # The model is no unit but the root, and a list of modules is never called, so that no hook would run.
        if own < least or not name or isinstance(module, nn.ModuleList | nn.ModuleDict):
            return own
        found.add(name)
        return 0

    left("", model)
    return [(name,) for name, _ in model.named_modules() if name in found]


def by_name(*patterns: str) -> Policy:
    """Every module that one of the patterns names; `*` stands for one part of a name, as in layers.*

    Raises: ValueError, when it is applied, for a pattern that names nothing.
    """
    return partial(_named, patterns)


def _named(patterns: Sequence[str], model: nn.Module) -> list[Names]:
    names = [name for name, _ in model.named_modules() if name]
    chosen: set[str] = set()
    for pattern in patterns:
        hits = named_by(pattern, names)
        if not hits:
            rule, way_out = "every pattern names a module", "see model.named_modules()"
            raise ValueError(four_parts("by_name", f"no module is called {pattern!r}", rule, way_out))
        chosen |= set(hits)
    return [(name,) for name in names if name in chosen]


def blocks_of(model: nn.Module) -> list[str]:
    """The blocks of a model: what its outermost lists of modules hold; of one without lists, its children."""
    held: list[str] = []
    outer = None  # the list that we are in: one within it has no blocks, but parts of one
    for name, module in model.named_modules():
        if outer is not None and name.startswith(f"{outer}."):
            continue
        if isinstance(module, nn.ModuleList | nn.ModuleDict):
            outer = name
            held += [f"{name}.{kind}" for kind, _ in module.named_children()]
    return held or [name for name, child in model.named_children() if _size(child)]


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
