"""The technique of expert parallelism: the ranks along "ep" share a layer's experts, and each takes its own rows.

trainer = Trainer(model, config, mesh=make_mesh(dp=2, ep=2), apply=(experts(), fully_shard()))

A model of `transformers` is told apart from the course's own, and gets its experts through `models.registered`.
"""

from __future__ import annotations

from torch import nn

from course_lib.errors import four_parts
from course_lib.models.moe import Experts
from course_lib.models.registered import check_experts, count_of, experts_of, replace_experts
from course_lib.parallel.data import replicate as broadcast
from course_lib.parallel.experts.spread import Spread
from course_lib.parallel.table.layout import Layout
from course_lib.parallel.table.placement import Shard
from course_lib.parallel.tensors.conjugate import Operators
from course_lib.parallel.tensors.roles import causal_model
from course_lib.training.setup import Setup, Technique

AXIS = "ep"


def experts(*, cut_inner: bool = False) -> Technique:
    """Each rank along "ep" has some experts of every layer, some rows of a batch, and all of the rest.

    A token goes to its expert's rank and comes back. So an expert's gradient is whole where it lies, from the rows of
    all these ranks, and that of the rest is a sum of their terms. With `cut_inner` the ranks along "tp" share each
    expert's inner features; without, every one of them has the rank's experts whole.

    Cost: per layer what `costs.comm.experts` says.
    Raises: ValueError for a model without experts, for fewer experts than ranks, after `tensor` with sequence
        parallelism, where a rank along "tp" would route some of the positions; and of `transformers` for experts with
        biases, `cut_inner`, and a balance loss of its own.
    """

    def apply(setup: Setup) -> None:
        setup.begin("experts", AXIS)
        local, layout = setup.local, setup.local.layout
        group = local.group(AXIS)
        theirs = causal_model(setup.model)
        found = _experts_in(setup.model, theirs)
        _check(found, group.size(), layout)
        broadcast.broadcast_state(setup.model, group, local.name_of(**{**local.at, AXIS: 0}))
        layout.row_axes.append(AXIS)
        setup.engine.ends.in_step = True  # who has no micro-batch left would not answer the others
        if cut_inner:
            _cut_inner(setup, found)
        for name, module in found.items():
            for kind, parameter in module.named_parameters():
                full = f"{name}.{kind}"
                layout.write(full, shard={**layout.places[full].shard, AXIS: Shard(0)})
                parameter.data = layout.part(full, parameter.data, local.at).clone()
            if isinstance(module, Experts):
                module.dispatch = Spread(group, module.n_experts).dispatch
        if theirs is not None:
            replace_experts(theirs[1], lambda count: Spread(group, count).dispatch)
        for name in layout.trained:
            place = layout.places[name]
            if AXIS not in place.shard:
                layout.write(name, partial=place.partial | {AXIS})

    return apply


def _experts_in(model: nn.Module, theirs: tuple[str, nn.Module] | None) -> dict[str, nn.Module]:
    """The modules that hold a layer's experts, ours or theirs, by name."""
    if theirs is None:
        return {name: module for name, module in model.named_modules() if isinstance(module, Experts)}
    check_experts(theirs[1])
    return experts_of(model)


def _count(module: nn.Module) -> int:
    """How many experts a layer has."""
    return module.n_experts if isinstance(module, Experts) else count_of(module)


def _cut_inner(setup: Setup, found: dict[str, nn.Module]) -> None:
    """Let the ranks along "tp" share each expert's inner features."""
    operators = Operators(group=setup.local.group("tp"))
    for name, module in found.items():
        if not isinstance(module, Experts):
            values, rule = (
                f"cut_inner of {name}",
                "a gate and what it lets through lie in one matrix, and are cut apart",
            )
            raise ValueError(four_parts("experts", values, rule, "leave cut_inner out"))
        for kind, _ in module.named_parameters():
            setup.local.layout.write(f"{name}.{kind}", shard={"tp": Shard(2 if kind == "down_proj" else 1)})
        module.enter, module.leave = operators.copy_to_region, operators.reduce_from_region


def _check(found: dict[str, nn.Module], ranks: int, layout: Layout) -> None:
    """Raise the four-part error for what cannot be spread."""
    fewest = min(map(_count, found.values()), default=0)
    if fewest < ranks:
        values, rule = f"{fewest} experts in a layer, ep={ranks}", "every rank has one"
        way_out = f"choose ep <= {fewest}" if found else "give a model with experts"
        raise ValueError(four_parts("experts", values, rule, way_out))
    for name in found:
        norm = f"{name.removesuffix('.ffn.experts')}.ffn_norm.weight"
        if norm in layout.places and "tp" in layout.places[norm].partial:
            values, rule = "after tensor with sequence parallelism", "a token is routed once"
            raise ValueError(four_parts("experts", values, rule, "leave sequence_parallel out"))
