"""What is wrong with a plan of tensor parallelism, each in one sentence: the linter lists them, ranks raise the first.

`where` is a module's name, or a pattern for equal modules of all layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import nn

from course_lib.errors import four_parts
from course_lib.parallel.table.placement import Shard


class Fault(NamedTuple):
    """The parts of an error, and what it is about."""

    where: str
    values: str
    rule: str
    way_out: str

    @property
    def error(self) -> ValueError:
        """To be raised."""
        return ValueError(four_parts("tensor", f"{self.where}: {self.values}", self.rule, self.way_out))


def no_style(pattern: str, style: str, styles: Sequence[str]) -> Fault:
    """A word that is none of `styles`."""
    return Fault(pattern, f"style {style!r}", "there is no such style", f"choose from {', '.join(map(repr, styles))}")


def no_module(pattern: str, patterns: Sequence[str]) -> Fault:
    """A pattern that names nothing; `patterns` are those that would."""
    rule = "every pattern names a module, so that nothing stays whole unseen"
    return Fault(pattern, "no module is called so", rule, f"see {', '.join(patterns[:12])}")


def another_kind(where: str, module: nn.Module, kind: str, style: str) -> Fault:
    """A module that the style is not for."""
    way_out = "leave its block out of the plan" if "norm" in style else "leave it out of the plan, or write a layer"
    rule = f"the style {style!r} cuts {'an' if kind[0] in 'ER' else 'a'} {kind}"
    return Fault(where, f"a {type(module).__name__}", rule, way_out)


def hooked(where: str, hooks: Sequence[str]) -> Fault:
    """A module with hooks, whose place another one takes."""
    rule = "a part of it takes its place, where a hook would meet one rank's features alone"
    way_out = "register hooks on the part, once the model is cut, or on a module around it"
    return Fault(where, f"it has {', '.join(hooks)}", rule, way_out)


def heads_apart(where: str, heads: int, tp: int, fitting: Sequence[int]) -> Fault:
    """Heads that these ranks cannot share; `fitting` numbers of ranks can."""
    rule = "a head stays whole; keys and values of fewer heads than ranks are copied to equally many ranks"
    return Fault(where, f"{heads} heads on {tp} ranks", rule, f"choose tp in {[*fitting]}")


def tied_apart(where: str, shards: Mapping[str, Shard | None]) -> Fault:
    """One weight of several modules that lies in several ways; by module how it is cut, None if it is whole."""
    listed = " and ".join(f"{shard or 'whole'} in {owner}" for owner, shard in shards.items())
    way_out = "give all of them styles that cut the same dim, or none a style"
    return Fault(where, f"one tied weight, {listed}", "whoever uses a tied weight knows how it is cut", way_out)


def hooks_of(module: nn.Module) -> list[str]:
    """The kinds of hooks that a module has."""
    return [name.strip("_") for name, found in vars(module).items() if name.endswith("_hooks") and found]
