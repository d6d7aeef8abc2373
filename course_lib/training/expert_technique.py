"""The technique of expert parallelism: the ranks along "ep" share a layer's experts, and each takes its own rows.

trainer = Trainer(model, config, mesh=make_mesh(dp=2, ep=2), apply=(experts(), fully_shard()))
"""

from __future__ import annotations

from course_lib.errors import four_parts
from course_lib.models.moe import Experts
from course_lib.parallel.data import replicate as broadcast
from course_lib.parallel.experts.spread import Spread
from course_lib.parallel.table.layout import Layout
from course_lib.parallel.table.placement import Shard
from course_lib.parallel.tensors.conjugate import Operators
from course_lib.training.setup import Setup, Technique

AXIS = "ep"


def experts(*, cut_inner: bool = False) -> Technique:
    """Each rank along "ep" has some experts of every layer, some rows of a batch, and all of the rest.

    A token goes to its expert's rank and comes back. So an expert's gradient is whole where it lies, from the rows of
    all these ranks, and that of the rest is a sum of their terms. With `cut_inner` the ranks along "tp" share each
    expert's inner features; without, every one of them has the rank's experts whole.

    Cost: per layer what `costs.comm.experts` says.
    Raises: ValueError for a model without experts, for fewer experts than ranks, and after `tensor` with sequence
        parallelism, where a rank along "tp" would route some of the positions.
    """

    def apply(setup: Setup) -> None:
        setup.begin("experts", AXIS)
        local, layout = setup.local, setup.local.layout
        group = local.group(AXIS)
        found = {name: module for name, module in setup.model.named_modules() if isinstance(module, Experts)}
        _check(found, group.size(), layout)
        broadcast.broadcast_state(setup.model, group, local.name_of(**{**local.at, AXIS: 0}))
        layout.row_axes.append(AXIS)
        setup.engine.ends.in_step = True  # who has no micro-batch left would not answer the others
        for name, module in found.items():
            for kind, parameter in module.named_parameters():
                place = layout.places[f"{name}.{kind}"]
                shard = {**place.shard, AXIS: Shard(0)}
                if cut_inner:
                    shard["tp"] = Shard(2 if kind == "down_proj" else 1)
                layout.write(f"{name}.{kind}", shard=shard)
                parameter.data = layout.part(f"{name}.{kind}", parameter.data, local.at).clone()
            module.dispatch = Spread(group, module.n_experts).dispatch
            if cut_inner:
                operators = Operators(group=local.group("tp"))
                module.enter, module.leave = operators.copy_to_region, operators.reduce_from_region
        for name in layout.trained:
            place = layout.places[name]
            if AXIS not in place.shard:
                layout.write(name, partial=place.partial | {AXIS})

    return apply


def _check(found: dict[str, Experts], ranks: int, layout: Layout) -> None:
    """Raise the four-part error for what cannot be spread."""
    fewest = min((module.n_experts for module in found.values()), default=0)
    if fewest < ranks:
        values, rule = f"{fewest} experts in a layer, ep={ranks}", "every rank has one"
        way_out = f"choose ep <= {fewest}" if found else "give a MoEDecoder"
        raise ValueError(four_parts("experts", values, rule, way_out))
    for name in found:
        norm = f"{name.removesuffix('.ffn.experts')}.ffn_norm.weight"
        if norm in layout.places and "tp" in layout.places[norm].partial:
            values, rule = "after tensor with sequence parallelism", "a token is routed once"
            raise ValueError(four_parts("experts", values, rule, "leave sequence_parallel out"))
