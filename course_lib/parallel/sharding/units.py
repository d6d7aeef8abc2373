"""Units: what is gathered together, as flat rows; a wrapping policy says which modules they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from torch import nn

from course_lib.errors import four_parts
from course_lib.parallel.sharding.additions import make_row
from course_lib.parallel.sharding.flat_row import Sharing
from course_lib.parallel.sharding.wrapping import Names, Policy
from course_lib.parallel.table.layout import first_names


class Unit:
    """Modules that run one after the other, and their parameters: a row for each dtype, of what is trained and frozen.

    The first module gathers the unit, the last one frees it. Between its forward and backward `awaited` are the
    trained parameters whose gradients have not come yet.
    """

    def __init__(
        self, group: Names, modules: list[nn.Module], named: dict[str, nn.Parameter], sharing: Sharing
    ) -> None:
        self.label = label_of(group)
        self.modules = modules
        self.named = named
        self.is_root = not group
        apart = sharing.apart.names if sharing.apart is not None else frozenset[str]()
        in_rows = rows_of(named, resident=sharing.resident, uneven=sharing.uneven, apart=apart)
        self.rows = [make_row(in_row, sharing_of(in_row, sharing)) for in_row in in_rows]
        self.trained = [p for p in named.values() if p.requires_grad]
        self.awaited: set[nn.Parameter] = set()
        self.is_reduced = False
        self.in_graph = True  # whether backward comes to it

    @property
    def pieces(self) -> dict[str, nn.Parameter]:
        """What the optimizer trains, by name."""
        found: dict[str, nn.Parameter] = {}
        for row in self.rows:
            found |= row.pieces
        return found

    @property
    def is_whole(self) -> bool:
        """Whether the model can compute with it."""
        return all(row.is_whole for row in self.rows)

    def expect(self) -> None:
        """A backward begins."""
        self.awaited = set(self.trained)
        self.is_reduced = False

    def gather(self, *, async_op: bool = False) -> None:
        """Begin to make it whole."""
        for row in self.rows:
            row.gather(async_op=async_op)

    def use(self) -> None:
        """Make it whole, or wait until it is."""
        for row in self.rows:
            if not row.is_whole:
                row.gather()
                row.wait()
                row.show_whole()

    def free(self, *, keep: bool = False) -> None:
        """Give the memory back; with `keep` backward will want it again."""
        for row in self.rows:
            row.free(keep=keep)

    def free_frozen(self) -> None:
        """The same for what has no gradients."""
        for row in self.rows:
            if not row.trained:
                row.free()

    def reduce(self, *, async_op: bool = False) -> None:
        """Begin to average the gradients, and free these weights: who has a gradient is not needed any more."""
        self.is_reduced = True
        for row in self.rows:
            if row.trained:
                row.reduce(async_op=async_op)
                row.free()

    def finish_reduce(self) -> None:
        """The optimizer's parameters get this rank's pieces of the average."""
        for row in self.rows:
            row.finish_reduce()

    def give_up(self) -> None:
        """A step has failed."""
        for row in self.rows:
            row.give_up()


def make_units(model: nn.Module, policy: Policy, sharing: Sharing) -> list[Unit]:
    """The units of a policy in its order, then the root's. A weight that several units use is the root's.

    Raises: ValueError for a module that two units would have.
    """
    units = []
    for group, named in weights_of_units(model, policy).items():
        modules = [model.get_submodule(name) for name in group]
        units.append(Unit(group, modules or [model], named, sharing))
    return units


def weights_of_units(model: nn.Module, policy: Policy) -> dict[Names, dict[str, nn.Parameter]]:
    """The parameters of each unit by the modules that it has, those of the root's by (), which comes last.

    Raises: ValueError as `make_units`.
    """
    groups = policy(model)
    unit_of = owners(groups, first_names(model))
    held: dict[Names, dict[str, nn.Parameter]] = {group: {} for group in [*groups, ()]}
    for name, parameter in model.named_parameters():
        held[unit_of[name]][name] = parameter
    # The root stays even without weights: with it forward begins and ends.
    return {group: named for group, named in held.items() if named or not group}


def sharing_of(names: Iterable[str], sharing: Sharing) -> Sharing:
    """How one row is shared: experts by fewer ranks than the rest."""
    if sharing.apart is None or sharing.apart.names.isdisjoint(names):
        return sharing
    return replace(sharing, shards=sharing.apart.shards, everyone=sharing.apart.shards)


def rows_of(
    named: Mapping[str, nn.Parameter],
    *,
    resident: bool,
    uneven: frozenset[str],
    apart: frozenset[str] = frozenset(),
) -> list[dict[str, nn.Parameter]]:
    """Of a unit's parameters those that lie in one row. Where weights stay whole, frozen ones are in none.

    What was cut unevenly before has a row of its own: the others then lie at the same place on all ranks, and so what
    is equal on several of them is added up in the same order, and stays equal bit by bit. What lies `apart` is shared
    by fewer ranks, so that it cannot be in a row with the others.
    """
    rows: dict[tuple[object, ...], dict[str, nn.Parameter]] = {}
    for name, p in named.items():
        if resident and not p.requires_grad:
            continue
        alike = p.requires_grad, p.dtype, p.device, name in uneven, name in apart
        rows.setdefault(alike, {})[name] = p
    return list(rows.values())


def owners(groups: Sequence[Names], names: Mapping[str, str]) -> dict[str, Names]:
    """For each parameter, by its first name, its unit: the innermost one around it; () is the root's.

    Raises: ValueError for a module that two units would have.
    """
    seen: set[str] = set()
    for name in chain(*groups):
        if name in seen:
            rule, way_out = "a module belongs to one unit", "let the policy name it once"
            raise ValueError(four_parts("fully_shard", f"{name} in two units", rule, way_out))
        seen.add(name)
    found: dict[str, Names] = {}
    for name, first in names.items():
        group = group_around(name, groups)
        if found.setdefault(first, group) != group:
            found[first] = ()  # a tied weight that two units use
    return found


def group_around(name: str, groups: Sequence[Names]) -> Names:
    """The innermost group with a module around a tensor; () if there is none."""
    innermost, found = "", Names()
    for group in groups:
        for module in group:
            if name.startswith(f"{module}.") and len(module) > len(innermost):
                innermost, found = module, group
    return found


def label_of(group: Names) -> str:
    """layers.0, layers.0 to layers.3, or root"""
    if not group:
        return "root"
    if len(group) == 1:
        return group[0]
    return f"{group[0]} to {group[-1]}"
