"""The technique of context parallelism: the ranks along "cp" share every sequence.

trainer = Trainer(model, config, mesh=make_mesh(cp=4), apply=(context("ring"), replicate()))

A model of `transformers` is told apart from the course's own, and gets its attention through `models.registered`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import torch
from torch import Tensor, nn

from course_lib import comm
from course_lib.comm.call import device_of
from course_lib.errors import four_parts
from course_lib.models.decoder import Decoder, rotary_angles
from course_lib.models.moe import mixtures_of
from course_lib.models.registered import attentions_of, check_attention, replace_attention
from course_lib.parallel.data import replicate as broadcast
from course_lib.parallel.sequence.gathered import gathered_attention
from course_lib.parallel.sequence.ring_attention import ring_attention
from course_lib.parallel.sequence.shared import SharedSequence
from course_lib.parallel.sequence.ulysses import check_heads, ulysses_attention
from course_lib.parallel.tensors.conjugate import Operators
from course_lib.parallel.tensors.roles import causal_model
from course_lib.parallel.tensors.styles import head_size_of
from course_lib.savers.adapted import map_inside
from course_lib.savers.quantised_linear import NF4Linear
from course_lib.sequence_cut import ContextMethod, Order
from course_lib.training.engine import Ends
from course_lib.training.setup import Setup, Technique

AXIS = "cp"
_ATTENTION = {"all_gather": gathered_attention, "ring": ring_attention, "ulysses": ulysses_attention}


def context(
    method: ContextMethod = "all_gather", *, order: Order = "zigzag", seconds_per_pair: float = 0.0
) -> Technique:
    """Each rank along "cp" has some positions of every sequence, and the same weights as the others.

    All but attention works on each position for itself. In attention queries meet the keys of other ranks by `method`:
    these are gathered, or travel round a ring, or the ranks change to sharing heads. A gradient is a sum of the ranks'
    terms; a data technique after this one adds them up in its own average, and shares weights and states with these
    ranks too. `order` says which positions a rank has, `seconds_per_pair` what attention takes on the emulated clock.

    Cost: per layer what `costs.comm.context` says; if no data technique follows, an all-reduce of all gradients.
    Raises: ValueError for an unknown method or order; for another model than a `Decoder` or a causal one of
        `transformers` with plain attention; for more ranks than heads with "ulysses"; and, when it comes, for a
        sequence with fewer positions than ranks.
    """
    for name, value, choices in (("method", method, get_args(ContextMethod)), ("order", order, get_args(Order))):
        if value not in choices:
            rule, way_out = f"not a known {name}", f"choose from {', '.join(choices)}"
            raise ValueError(four_parts("context", f"{name}={value!r}", rule, way_out))

    def apply(setup: Setup) -> None:
        setup.begin("context", AXIS)
        local, model = setup.local, setup.model
        theirs = _theirs(model)
        group = local.group(AXIS)
        broadcast.broadcast_state(model, group, local.name_of(**{**local.at, AXIS: 0}))
        shared = SharedSequence(group=group, order=order, seconds_per_pair=seconds_per_pair)
        if method == "ulysses":
            check_heads(_heads_of_queries(model), shared.size)
        setup.shared_sequence, local.layout.sequence_order = shared, order

        def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return _ATTENTION[method](q, k, v, shared)

        if theirs is not None:
            _share_sequences(setup.engine.ends, shared, lambda length: None)
            replace_attention(theirs, mix, shared.positions)
        else:
            assert isinstance(model, Decoder)
            _share_counts(model, shared)
            _share_sequences(setup.engine.ends, shared, model.config.check_sequence)
            _place(model, shared)
            model.mix_by(mix)
        for name in local.layout.trained:
            local.layout.write(name, partial=local.layout.places[name].partial | {AXIS})

    return apply


def _theirs(model: nn.Module) -> nn.Module | None:
    """The model of `transformers` that this one is or contains; None for a decoder of the course."""
    if isinstance(model, Decoder):
        return None
    found = causal_model(model)
    if found is None:
        values, rule = f"a {type(model).__name__}", "it replaces attention where positions meet"
        raise ValueError(four_parts("context", values, rule, "give a Decoder, or a causal model of transformers"))
    theirs: nn.Module = found[1]
    check_attention(theirs)
    return theirs


def _heads_of_queries(model: nn.Module) -> int:
    """How many this rank has in a layer: `tensor` may have left it some of them."""
    first = model.layers[0].get_submodule("attention") if isinstance(model, Decoder) else attentions_of(model)[0]
    head_size = head_size_of(first)
    assert head_size is not None  # both write it down
    queries = map_inside(first.get_submodule("q_proj"))
    # Codes are never cut along "tp", and say no rows.
    rows = queries.out_features if isinstance(queries, NF4Linear) else len(queries.get_parameter("weight"))
    return rows // head_size


def _share_sequences(ends: Ends, shared: SharedSequence, check: Callable[[int], None]) -> None:
    """Let each rank work on its positions of inputs and targets; put outputs and losses together for who asks."""
    before = ends.whole

    def mine(x: Tensor) -> Tensor:
        check(x.shape[1])
        shared.told(x.shape[1])
        return x[:, shared.positions(x.device)].contiguous()

    def whole(output: Tensor) -> Tensor:
        return shared.gathered(before(output))

    def summed(loss: float) -> float:
        one = torch.tensor([loss], dtype=torch.float64, device=device_of(shared.group))
        return comm.all_reduce(one, group=shared.group).item()

    ends.mine, ends.whole, ends.summed = mine, whole, summed


def _share_counts(model: Decoder, shared: SharedSequence) -> None:
    """Where experts are chosen, let the load be counted over whole sequences.

    A capacity cannot be kept so: who comes first in a sequence would have to be known before anyone is sent.
    """
    operators = Operators(group=shared.group)
    for mixture in mixtures_of(model):
        if mixture.capacity is not None:
            rule = "an expert takes the first tokens of a sequence, of which each rank sees some"
            way_out = "leave capacity out, or choose cp=1"
            raise ValueError(four_parts("context", f"capacity={mixture.capacity}", rule, way_out))
        mixture.over_sequence = operators.summed


def _place(model: Decoder, shared: SharedSequence) -> None:
    """Give what knows positions those of this rank: without that every rank would count from 0."""
    config = model.config

    def angles_of_mine(_: nn.Module, args: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None]:
        x, angles = args
        if angles is None:
            return x, None
        of_all = rotary_angles(shared.cut.length, config.head_size, x.device, config.rotary_base)
        return x, of_all[shared.positions(x.device)]

    for layer in model.layers:
        layer.get_submodule("attention").register_forward_pre_hook(angles_of_mine)
    if model.positions is not None:
        model.positions.register_forward_pre_hook(lambda _, args: (shared.positions(args[0].device),))
