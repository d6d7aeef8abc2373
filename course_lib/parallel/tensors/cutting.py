"""Tensor parallelism from outside: a plan's modules are replaced by parts of them, and the layout says which.

The model itself knows nothing of ranks: how many heads a layer works on follows from the widths of its maps.
Source: Shoeybi et al. 2019, Megatron-LM, section 3.
"""

from __future__ import annotations

from typing import TypeVar, cast

import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup

from course_lib.comm.call import resolve
from course_lib.parallel.data.replicate import broadcast_state
from course_lib.parallel.table.layout import Layout
from course_lib.parallel.table.placement import At, Place, Shard
from course_lib.parallel.tensors.block import is_rms_norm
from course_lib.parallel.tensors.conjugate import Operators
from course_lib.parallel.tensors.dropout import spread_dropout
from course_lib.parallel.tensors.entrance import Entrance
from course_lib.parallel.tensors.faults import another_kind, heads_apart, hooked, hooks_of, tied_apart
from course_lib.parallel.tensors.layers import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
from course_lib.parallel.tensors.norm import ParallelRMSNorm
from course_lib.parallel.tensors.plan import plan_for
from course_lib.parallel.tensors.region import Region
from course_lib.parallel.tensors.styles import (
    Plan,
    Style,
    copies_of,
    fitting_ranks,
    head_size_of,
    heads_beside,
    styles_of,
)
from course_lib.savers.adapted import Adapted, map_inside
from course_lib.savers.lora import LoRALinear

AXIS = "tp"
M = TypeVar("M", bound=nn.Module)


def tensor_parallel(model: nn.Module, *, group: ProcessGroup | None = None, plan: Plan | None = None) -> Layout:
    """Cut a model for this rank of a group, without a trainer, to evaluate it or to generate text; say what lies where.

    The weights are those of the group's first rank. Logits are put together, so that all ranks choose the same token.

    Cost: a broadcast of the weights; then in each forward an all-reduce for the embedding and each block, and an
        all-gather of the logits.
    Raises: ValueError, the same on all ranks, for a plan that does not fit the model.
    """
    group = resolve(group, "tensor_parallel")
    styles = styles_of(model, plan_for(model) if plan is None else plan)
    layout = Layout(model, {AXIS: group.size()})
    broadcast_state(model, group, dist.get_process_group_ranks(group)[0])
    region = Region(operators=Operators(group=group))
    with_whole_logits = dict(styles)
    for name, style in styles.items():
        if style == "logits":
            with_whole_logits[name] = "column, gathered"
    TensorParallel(model, layout, {AXIS: group.rank()}, region).cut(with_whole_logits)
    spread_dropout(model, styles, region)
    return layout


class TensorParallel:
    """Cuts a model's modules for the rank at `at`, and writes into the layout what lies where."""

    def __init__(self, model: nn.Module, layout: Layout, at: At, region: Region) -> None:
        self.model = model
        self.layout = layout
        self.at = at
        self.region = region
        self.size = layout.sizes[AXIS]
        self.rank = at[AXIS]
        self.words: range | None = None  # those whose logits this rank has, if they are cut
        self.vocab_size = 0  # of all ranks then
        self._styles: dict[str, Style] = {}

    def cut(self, styles: dict[str, Style]) -> None:
        """Replace the modules.

        Raises: ValueError for a module that the style does not fit or that has hooks, heads that do not divide, and a
            tied weight that would be cut in two ways.
        """
        self._styles = styles
        for name, style in styles.items():
            module = self.model.get_submodule(name)
            part = self._part(name, module, style)
            if part is module:
                continue
            if hooks := hooks_of(module):
                raise hooked(name, hooks).error  # nobody would call them
            parent, _, own = name.rpartition(".")
            setattr(self.model.get_submodule(parent), own, part)
        self._check_ties(styles)
        for module in self.model.modules():
            self._count_heads(module)
            self._share_entrances(module)

    def _part(self, name: str, module: nn.Module, style: Style) -> nn.Module:
        if isinstance(module, Adapted):
            return self._adapted(name, module, style)
        if style == "shared":
            for kind, _ in module.named_parameters():
                self._write_partial(f"{name}.{kind}")
            return module
        if style == "full norm":
            if not is_rms_norm(module):
                raise another_kind(name, module, "RMSNorm", style).error
            # Its weight is cut as the map is whose features it normalises: q_norm as q_proj.
            source = f"{name.removesuffix('norm')}proj"
            copies = self._place_of(source).shard[AXIS].copies
            width = module.get_parameter("weight").numel()
            self._keep(name, module, {"weight": Shard(0, copies)})
            return ParallelRMSNorm(module, self.region, width=width, copies=copies)
        if style == "vocabulary":
            module = _expect(name, module, nn.Embedding, style)
            rows = Shard(0).span(module.num_embeddings, self.rank, self.size)
            self._keep(name, module, {"weight": Shard(0)})
            return VocabParallelEmbedding(module, self.region, rows)
        linear = _expect(name, module, nn.Linear, style)
        if style == "row":
            self._keep(name, linear, {"weight": Shard(1)})
            return RowParallelLinear(linear, self.region)
        return self._column(name, linear, style)

    def _adapted(self, name: str, module: Adapted, style: Style) -> nn.Module:
        """Cut the map that an adapter stands beside, and of the adapter what has its features.

        A column cuts B, whose rows are its outputs, and a row cuts A, whose columns are its inputs; the other matrix
        is whole on every rank. What crosses the region's border are the r numbers between the two.
        """
        if style not in ("column", "row", "logits") or type(module.base) is not nn.Linear:
            raise another_kind(name, module, "plain Linear", style).error
        is_row = style == "row"
        module.base = self._part(f"{name}.base", module.base, style)  # type: ignore[assignment]
        copies = self._place_of(name).shard[AXIS].copies
        if isinstance(module, LoRALinear):
            self._keep(name, module, {"A": Shard(1)} if is_row else {"B": Shard(0, copies)})
            module.crossing = self.region.leave if is_row else self.region.enter
        elif module.on_input == is_row:
            self._keep(name, module, {"factors": Shard(0, copies)})
        return module

    def _column(self, name: str, linear: nn.Linear, style: Style) -> ColumnParallelLinear:
        shard = Shard(0, self._copies(name, linear))
        if style == "logits":
            self.words = range(*shard.span(linear.out_features, self.rank, self.size))
            self.vocab_size = linear.out_features
        self._keep(name, linear, {"weight": shard, "bias": shard})
        gathered = linear.out_features if style == "column, gathered" else 0
        return ColumnParallelLinear(linear, self.region, gathered=gathered)

    def _keep(self, name: str, module: nn.Module, shards: dict[str, Shard]) -> None:
        """Cut a module's parameters and write it down; each stays the same object, which a tied module has too."""
        for kind, parameter in module.named_parameters():
            if kind not in shards:
                continue
            shard = shards[kind]
            full = self.layout.first_name[f"{name}.{kind}"]
            cut = self.layout.places[full].shard
            if AXIS in cut:  # by a module that it is tied to
                if cut[AXIS] != shard:
                    owner = full.rpartition(".")[0]
                    raise tied_apart(owner, {owner: cut[AXIS], name: shard}).error
                continue
            self.layout.write(full, shard={**cut, AXIS: shard})
            if shard.copies > 1:
                # Each copy learns from other queries, so its gradient is a term.
                self._write_partial(full)
            first, last = shard.span(parameter.shape[shard.dim], self.rank, self.size)
            part = parameter.data.narrow(shard.dim, first, last - first)
            parameter.data = part.clone()  # a view would keep the whole in memory

    def _write_partial(self, name: str) -> None:
        full = self.layout.first_name[name]
        before = self.layout.places[full].partial
        self.layout.write(full, partial=before | {AXIS})

    def _copies(self, name: str, linear: nn.Linear) -> int:
        """On how many neighbouring ranks a head of keys or values lies, if there are fewer heads than ranks.

        Raises: ValueError if heads would be cut, or queries copied.
        """
        name = _map_of(f"{name}.weight")
        parent = self.model.get_submodule(name.rpartition(".")[0])
        head_size = head_size_of(parent)
        if head_size is None:
            return 1
        heads = linear.out_features // head_size
        if copies := copies_of(heads, self.size, name):
            return copies
        linears = [one for one, style in self._styles.items() if style == "column"]
        widths = {one: self._place_of(one).shape[0] for one in linears}
        beside = heads_beside(name, self._styles, widths, head_size)
        raise heads_apart(name, heads, self.size, fitting_ranks(beside, self.size)).error

    def _place_of(self, name: str) -> Place:
        """Where the weight of a map lies, be it an adapted one."""
        first = self.layout.first_name
        weight = f"{name}.weight" if f"{name}.weight" in first else f"{name}.base.weight"
        return self.layout.places[first[weight]]

    def _count_heads(self, module: nn.Module) -> None:
        """`transformers` writes down how many queries share a head of keys: a copied head has fewer of them here."""
        q = getattr(module, "q_proj", None)
        k = getattr(module, "k_proj", None)
        if hasattr(module, "num_key_value_groups") and isinstance(k, ColumnParallelLinear):
            module.num_key_value_groups = len(q.weight) // len(k.weight)  # type: ignore[union-attr, assignment]

    def _share_entrances(self, module: nn.Module) -> None:
        """Let maps of one module enter once that may read the same input."""
        alike: dict[tuple[int, bool], list[ColumnParallelLinear]] = {}
        for child in map(map_inside, module.children()):
            if isinstance(child, ColumnParallelLinear):
                key = child.weight.shape[1], child.bias is not None  # what is one product has one width, and one bias
                alike.setdefault(key, []).append(child)
        for maps in alike.values():
            # A map that is alone has nobody to share with, and gathers again only if it must.
            if len(maps) > 1 or self.region.sequence_parallel == "regather":
                Entrance(module, maps)

    def _check_ties(self, styles: dict[str, Style]) -> None:
        """A tensor that is cut belongs to modules of the plan alone: to another one it would be whole."""
        for name, full in self.layout.first_name.items():
            shard = self.layout.places[full].shard.get(AXIS)
            if shard is None or _map_of(name) in styles:
                continue
            found: dict[str, Shard | None] = {}
            for other, first in self.layout.first_name.items():
                if first == full:
                    module = _map_of(other)
                    found[module] = shard if module in styles else None
            raise tied_apart(next(iter(found)), found).error


def write_table(skeleton: nn.Module, layout: Layout, styles: dict[str, Style]) -> None:
    """Say in the layout what `TensorParallel.cut` would; no ranks are needed. What is left of `skeleton` has no use.

    Raises: ValueError as `cut` does.
    """
    nobody = Operators(group=cast(ProcessGroup, None))  # no layer of the skeleton is called
    TensorParallel(skeleton, layout, dict.fromkeys(layout.sizes, 0), Region(operators=nobody)).cut(styles)


def _map_of(parameter: str) -> str:
    """The map that a parameter belongs to, by the name that a plan has: of an adapted one the adapter's."""
    return parameter.rpartition(".")[0].removesuffix(".base")


def _expect(name: str, module: nn.Module, kind: type[M], style: Style) -> M:
    if type(module) is kind:  # one that inherits from it may compute something else
        return module
    raise another_kind(name, module, kind.__name__, style).error
