"""The same techniques by PyTorch's own wrappers, to use and to compare with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from course_lib.errors import four_parts
from course_lib.models.decoder import Decoder
from course_lib.parallel import replicate as broadcast
from course_lib.parallel.layout import Layout
from course_lib.parallel.local import own_part
from course_lib.parallel.tensor import AXIS, write_table
from course_lib.parallel.tensor_plan import plan_for
from course_lib.parallel.tensor_styles import Style, styles_of
from course_lib.training import step as steps
from course_lib.training.setup import Setup, Technique


def torch_replicate(**options: Any) -> Technique:
    """What `replicate` does, by PyTorch's DistributedDataParallel; `options` are that wrapper's.

    It takes no DTensors. After `torch_tensor` it is PyTorch's `fully_shard`, told to shard over one rank.
    """

    def apply(setup: Setup) -> None:
        setup.begin("replicate", "dp")
        setup.local.layout.averaged.add("dp")
        if any(own_part(p) is not p for p in setup.local.parameters.values()):
            _replicate_parts(setup)
            return
        wrap(setup, options)

    return apply


def wrap(setup: Setup, options: Mapping[str, Any]) -> None:
    """Let PyTorch's DistributedDataParallel average the gradients of the whole model."""
    group = setup.local.group("dp")  # our own: on one that PyTorch watches its wrapper crashes (torch 2.13)
    wrapped = DistributedDataParallel(setup.model, process_group=group, **options)
    setup.model = setup.engine.model = wrapped
    setup.engine.ends.no_sync = wrapped.no_sync


def _replicate_parts(setup: Setup) -> None:
    """A mesh of two axes tells `fully_shard` over which ranks to replicate, and over which to shard: here over one."""
    from torch.distributed.fsdp import fully_shard

    local = setup.local
    broadcast.broadcast_state(setup.model, local.group("dp"), local.name_of(**{**local.at, "dp": 0}))
    assert local.mesh is not None  # `begin` has seen it
    fully_shard(setup.model, mesh=local.mesh["dp", "cp"])
    local.renew(setup.model)


def torch_tensor() -> Technique:
    """What `tensor` does for a `Decoder`, by PyTorch's `parallelize_module`: each rank's part is a DTensor.

    A block's input is prepared once for all maps that read it, so its gradient is added up once; the loss is computed
    of the parts of the logits. That is as many all-reduces as `tensor` makes.

    Raises: ValueError, the same on all ranks, for another model, for what does not divide, for fewer heads of keys and
        values than ranks, and under a pipeline.
    """

    def apply(setup: Setup) -> None:
        setup.begin("tensor", AXIS)
        _check_model(setup)
        local, model = setup.local, setup.model
        styles = styles_of(model, plan_for(model))
        write_table(setup.skeleton, local.layout, styles)
        check_parts(local.layout)
        broadcast.broadcast_state(model, local.group(AXIS), local.name_of(**{**local.at, AXIS: 0}))
        _parallelize(setup, styles)
        _compute_loss_of_parts(setup)

    return apply


def _check_model(setup: Setup) -> None:
    """Refuse what PyTorch's plan is not written for."""
    if not isinstance(setup.model, Decoder):
        values, way_out = f"a {type(setup.model).__name__}", "give a Decoder, or apply tensor(plan=…)"
        raise ValueError(four_parts("torch_tensor", values, "its plan names a decoder's modules", way_out))
    if (pp := setup.local.size("pp")) > 1:
        rule, way_out = "the stages here pass tensors of their own, not PyTorch's", "apply tensor(), or choose pp=1"
        raise ValueError(four_parts("torch_tensor", f"pp={pp}", rule, way_out))


def check_parts(layout: Layout) -> None:
    """Raise the four-part error for what PyTorch would cut otherwise than the table says, as `torch.chunk`, or copy."""
    tp = layout.sizes[AXIS]
    for name, place in layout.places.items():
        if (shard := place.shard.get(AXIS)) is None:
            continue
        length, way_out = place.shape[shard.dim], "choose another tp, or apply tensor(), which is engine=own"
        if shard.copies > 1:
            values, rule = f"tp={tp}, {tp // shard.copies} heads in {name}", "PyTorch copies no heads"
            raise ValueError(four_parts("torch_tensor", values, rule, way_out))
        if length % tp:
            values, rule = f"tp={tp}, dim {shard.dim} of {name} is {length}", "PyTorch's styles take parts of one size"
            raise ValueError(four_parts("torch_tensor", values, rule, way_out))


def _parallelize(setup: Setup, styles: dict[str, Style]) -> None:
    """Let PyTorch cut the modules; it gives tied ones a parameter each, so they are tied again."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        parallelize_module,
    )

    made: dict[Style, Callable[[], Any]] = {
        "column": ColwiseParallel,
        "row": RowwiseParallel,
        "vocabulary": lambda: RowwiseParallel(input_layouts=Replicate()),
        "logits": lambda: ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    assert setup.local.mesh is not None  # `begin` has seen it
    whole = Replicate()
    entrances = {"layers.*.attention": (whole, None), "layers.*.ffn": (whole,)}  # of attention also the angles
    plan = {name: made[style]() for name, style in styles.items()}
    plan |= {name: PrepareModuleInput(input_layouts=x, desired_input_layouts=x) for name, x in entrances.items()}
    # All ranks have the same numbers by now, so that each cuts its own.
    parallelize_module(setup.model, setup.local.mesh[AXIS], plan, src_data_rank=None)
    for name, first in setup.local.layout.first_name.items():
        owner, _, kind = name.rpartition(".")
        if name != first:
            setattr(setup.model.get_submodule(owner), kind, setup.model.get_parameter(first))
    setup.local.renew(setup.model)
    for parameter in setup.local.parameters.values():
        if parameter.requires_grad and own_part(parameter) is not parameter:
            parameter.register_post_accumulate_grad_hook(_lay_gradient)


def _lay_gradient(parameter: Any) -> None:
    """Cut a gradient as the weight is cut: PyTorch gives every rank all of an embedding's."""
    parameter.grad = parameter.grad.redistribute(placements=parameter.placements)


def _compute_loss_of_parts(setup: Setup) -> None:
    """PyTorch's cross-entropy of logits that are cut, which its backward must know of too."""
    from torch.distributed.tensor.parallel import loss_parallel

    def loss(logits: Any, targets: Tensor) -> Tensor:
        summed: Tensor = steps.loss_of(logits, targets).to_local()  # type: ignore[attr-defined]
        return summed

    def whole(logits: Any) -> Tensor:
        found: Tensor = logits.full_tensor()
        return found

    ends = setup.engine.ends
    ends.loss, ends.whole, ends.around = loss, whole, loss_parallel
