"""Units: what is gathered together, as flat rows; a wrapping policy says which modules they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
        self.label, self.modules, self.named, self.is_root = label_of(group), modules, named, not group
        in_rows = rows_of(named, resident=sharing.resident, uneven=sharing.uneven)
        self.rows = [make_row(in_row, sharing) for in_row in in_rows]
        self.trained = [p for p in named.values() if p.requires_grad]
        self.awaited: set[nn.Parameter] = set()
        self.is_reduced = False
        self.in_graph = True  # whether backward comes to it

    @property
    def pieces(self) -> dict[str, nn.Parameter]:
        """What the optimizer trains, by name."""
        return {name: piece for row in self.rows for name, piece in row.pieces.items()}

    @property
    def is_whole(self) -> bool:
        """Whether the model can compute with it."""
        return all(row.is_whole for row in self.rows)

    def expect(self) -> None:
        """A backward begins."""
        self.awaited, self.is_reduced = set(self.trained), False

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
    modules = dict(model.named_modules())
    return [
        Unit(group, [modules[name] for name in group] or [model], named, sharing)
        for group, named in weights_of_units(model, policy).items()
    ]


def weights_of_units(model: nn.Module, policy: Policy) -> dict[Names, dict[str, nn.Parameter]]:
    """The parameters of each unit by the modules that it has, those of the root's by (), which comes last.

    Raises: ValueError as `make_units`.
    """
    groups, parameters = policy(model), dict(model.named_parameters())
    unit_of = owners(groups, first_names(model))
    held = {group: {name: p for name, p in parameters.items() if unit_of[name] == group} for group in [*groups, ()]}
    return {group: named for group, named in held.items() if named or not group}


def rows_of(
    named: Mapping[str, nn.Parameter], *, resident: bool, uneven: frozenset[str]
) -> list[dict[str, nn.Parameter]]:
    """Of a unit's parameters those that lie in one row. Where weights stay whole, frozen ones are in none.

    What was cut unevenly before has a row of its own: the others then lie at the same place on all ranks, and so what
    is equal on several of them is added up in the same order, and stays equal bit by bit.
    """
    rows: dict[tuple[object, ...], dict[str, nn.Parameter]] = {}
    for name, p in named.items():
        if p.requires_grad or not resident:
            rows.setdefault((p.requires_grad, p.dtype, p.device, name in uneven), {})[name] = p
    return list(rows.values())


def owners(groups: Sequence[Names], names: Mapping[str, str]) -> dict[str, Names]:
    """For each parameter, by its first name, its unit: the innermost one around it; () is the root's.

    Raises: ValueError for a module that two units would have.
    """
    chosen = [name for group in groups for name in group]
    if len(set(chosen)) < len(chosen):
        twice = next(name for name in chosen if chosen.count(name) > 1)
        rule, way_out = "a module belongs to one unit", "let the policy name it once"
        raise ValueError(four_parts("fully_shard", f"{twice} in two units", rule, way_out))
    found: dict[str, Names] = {}
    for name, first in names.items():
        group = group_around(name, groups)
        found[first] = group if found.get(first, group) == group else ()
    return found


def group_around(name: str, groups: Sequence[Names]) -> Names:
    """The innermost group with a module around a tensor; () if there is none."""
    around = [(len(module), group) for group in groups for module in group if name.startswith(f"{module}.")]
    return max(around)[1] if around else ()


def label_of(group: Names) -> str:
    """layers.0, layers.0 to layers.3, or root"""
    return "root" if not group else group[0] if len(group) == 1 else f"{group[0]} to {group[-1]}"
