"""What a plan of tensor parallelism does to a model, told before any rank starts: faults, and what is worth knowing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from course_lib.models.patterns import named_by, pattern_of, patterns_of
from course_lib.parallel.table.layout import first_names
from course_lib.parallel.table.placement import Shard
from course_lib.parallel.tensors.block import Block
from course_lib.parallel.tensors.faults import (
    Fault,
    another_kind,
    heads_apart,
    hooked,
    hooks_of,
    no_module,
    no_style,
    tied_apart,
)
from course_lib.parallel.tensors.roles import large_and_whole
from course_lib.parallel.tensors.styles import (
    STYLES,
    Plan,
    Style,
    copies_of,
    fitting_ranks,
    head_size_of,
    heads_beside,
)
from course_lib.savers.adapted import map_inside
from course_lib.split import split_sizes

_CUT_DIM: Mapping[Style, int] = {"column": 0, "column, gathered": 0, "logits": 0, "vocabulary": 0, "row": 1}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something about the modules that a pattern names; without `fault` the plan is right all the same."""

    where: str
    says: str
    fault: bool = True

    @classmethod
    def of(cls, fault: Fault) -> Finding:
        """What ranks would raise."""
        return cls(where=fault.where, says="; ".join(fault[1:]))

    def __str__(self) -> str:
        return f"{'fault' if self.fault else 'note'}: {self.where}: {self.says}"


def lint(model: nn.Module, plan: Plan, tp: int) -> list[Finding]:
    """What is to be said about a plan on `tp` ranks, equal layers once, faults first; no rank and no number is needed.

    A fault is an error on ranks, or training that is not one device's. A note is legal: a large matrix that stays
    whole, widths that do not divide and so give ranks uneven parts.
    """
    names = [name for name, _ in model.named_modules()]
    meant = {name: style for pattern, style in plan.items() if style in STYLES for name in named_by(pattern, names)}
    styles = {name: meant[name] for name in names if name in meant}
    rules = (
        _words(plan, names),
        _kinds(model, styles),
        _blocks(model, styles),
        _heads(model, styles, tp),
        _ties(model, styles),
        _uneven(model, styles, tp),
        _whole(model, styles),
    )
    found = dict.fromkeys(finding for rule in rules for finding in rule)
    return sorted(found, key=lambda finding: not finding.fault)


def _words(plan: Plan, names: list[str]) -> Iterator[Finding]:
    for pattern, style in plan.items():
        if style not in STYLES:
            yield Finding.of(no_style(pattern, style, STYLES))
        if not named_by(pattern, names):
            yield Finding.of(no_module(pattern, patterns_of(names)))


def _kinds(model: nn.Module, styles: Mapping[str, Style]) -> Iterator[Finding]:
    """A style cuts one kind of layer."""
    for name, style in styles.items():
        module = map_inside(model.get_submodule(name))
        kind = nn.Embedding if style == "vocabulary" else nn.Linear
        if style in _CUT_DIM and type(module) is not kind:
            yield Finding.of(another_kind(pattern_of(name), module, kind.__name__, style))
        if style != "shared" and (hooks := hooks_of(module)):
            yield Finding.of(hooked(pattern_of(name), hooks))


def _blocks(model: nn.Module, styles: Mapping[str, Style]) -> Iterator[Finding]:
    """Between columns and their row the features are cut: nothing there may need all of them, and norms know it."""
    for name, module in model.named_modules():
        children = {child: f"{name}.{child}".removeprefix(".") for child, _ in module.named_children()}
        own = {child: styles[full] for child, full in children.items() if full in styles}
        columns = [child for child, style in own.items() if style == "column"]
        rows = [child for child, style in own.items() if style == "row"]
        if not columns and not rows:
            continue
        where, block = pattern_of(name) or "the model", Block(module, columns, rows)
        if problem := next(block.problems(), None):
            yield Finding(where=where, says=problem)
        for norm, style in block.norms.items():
            if own.get(norm) != style:
                says = f"{norm} works on features that are cut, and needs the style {style!r}"
                yield Finding(where=where, says=says)


def _heads(model: nn.Module, styles: Mapping[str, Style], tp: int) -> Iterator[Finding]:
    modules = {name: map_inside(model.get_submodule(name)) for name in styles}
    widths = {name: module.out_features for name, module in modules.items() if isinstance(module, nn.Linear)}
    for name, style in styles.items():
        module = modules[name]
        head_size = head_size_of(model.get_submodule(name.rpartition(".")[0]))
        if style != "column" or head_size is None or not isinstance(module, nn.Linear):
            continue
        heads, where = module.out_features // head_size, pattern_of(name)
        copies = copies_of(heads, tp, name)
        if copies is None:
            yield Finding.of(
                heads_apart(where, heads, tp, fitting_ranks(heads_beside(name, styles, widths, head_size), tp))
            )
        elif copies > 1:
            yield Finding(
                where=where, says=f"its heads, {heads} on {tp} ranks, lie on {copies} ranks each", fault=False
            )


def _ties(model: nn.Module, styles: Mapping[str, Style]) -> Iterator[Finding]:
    """A tensor with two names lies in one way."""
    owners: dict[str, list[str]] = {}
    for name, first in first_names(model).items():
        owners.setdefault(first, []).append(name.rpartition(".")[0])
    for tied in owners.values():
        shards: dict[str, Shard | None] = {}
        for owner in tied:
            cut = owner in styles and styles[owner] in _CUT_DIM
            shards[owner] = Shard(_CUT_DIM[styles[owner]]) if cut else None
        if len({*shards.values()}) > 1:
            yield Finding.of(tied_apart(pattern_of(tied[0]), shards))


def _uneven(model: nn.Module, styles: Mapping[str, Style], tp: int) -> Iterator[Finding]:
    """Widths that do not divide are cut as `torch.tensor_split` does."""
    for name, style in styles.items():
        weight = getattr(map_inside(model.get_submodule(name)), "weight", None)
        if style not in _CUT_DIM or weight is None or head_size_of(model.get_submodule(name.rpartition(".")[0])):
            continue
        length = weight.shape[_CUT_DIM[style]]
        if length % tp:
            parts, padded = split_sizes(length, tp), -(-length // tp) * tp
            says = (
                f"{length} on {tp} ranks are {max(parts)} to {min(parts)}; padded to {padded}, all have {padded // tp}"
            )
            yield Finding(where=pattern_of(name), says=says, fault=False)


def _whole(model: nn.Module, styles: Mapping[str, Style]) -> Iterator[Finding]:
    for pattern, share in large_and_whole(model, styles).items():
        yield Finding(where=pattern, says=f"every rank has all of it, {share:.0%} of the model", fault=False)
