"""The same techniques by PyTorch's own wrappers, to use and to compare with."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_lib.errors import four_parts
from course_lib.models.decoder import Decoder
from course_lib.parallel.data import replicate as broadcast
from course_lib.parallel.table import meta
from course_lib.parallel.table.local import own_part
from course_lib.parallel.tensors.cutting import AXIS, write_table
from course_lib.parallel.tensors.plan import plan_for
from course_lib.parallel.tensors.region import SequenceParallel
from course_lib.parallel.tensors.roles import causal_model
from course_lib.parallel.tensors.styles import Style, head_size_of, styles_of
from course_lib.split import divisors
from course_lib.training import step as steps
from course_lib.training.setup import Setup, Technique
from course_lib.training.torch_plan import parallel_plan

_WHOLE = ("full norm", "shared")  # norms of queries and keys, of which PyTorch's ranks have all, and add up gradients


def torch_replicate(**options: Any) -> Technique:
    """What `replicate` does, by PyTorch's DistributedDataParallel; `options` are that wrapper's.

    It takes no DTensors. After `torch_tensor` it is PyTorch's `fully_shard`, told to shard over one rank.
    """

    def apply(setup: Setup) -> None:
        setup.begin("replicate", "dp")
        setup.refuse_after("torch_replicate", ("context", "experts"), "replicate()")
        setup.take_over(experts=False)
        if any(own_part(p) is not p for p in setup.local.parameters.values()):
            _replicate_parts(setup)
            return
        wrap(setup, options)

    return apply


def wrap(setup: Setup, options: Mapping[str, Any]) -> None:
    """Let PyTorch's DistributedDataParallel average the gradients of the whole model."""
    setup.local.give_memory()
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
    meta.give_memory_to_dtensors(setup.model, local.device)
    local.renew(setup.model)


def torch_tensor(*, sequence_parallel: SequenceParallel | None = None) -> Technique:
    """What `tensor` does by its own plan, by PyTorch's `parallelize_module`: each rank's part is a DTensor.

    The model is a `Decoder`, or one of `transformers` whose embedding and head can be cut. The loss is computed of the
    parts of the logits. That is as many all-reduces as `tensor` makes.

    Raises: ValueError, the same on all ranks, for another model, for what does not divide, for fewer heads of keys and
        values than ranks, for sequence_parallel="regather", and under a pipeline.
    """
    if sequence_parallel not in (None, "keep"):
        rule = "PyTorch keeps a block's gathered input until backward"
        values = f"sequence_parallel={sequence_parallel!r}"
        raise ValueError(four_parts("torch_tensor", values, rule, "choose 'keep', or apply tensor()"))

    def apply(setup: Setup) -> None:
        setup.begin("tensor", AXIS)
        local, model = setup.local, setup.model
        styles = _styles_of(setup)
        check_parts(model, styles, local.size(AXIS))
        write_table(setup.skeleton, local.layout, {name: s for name, s in styles.items() if s not in _WHOLE})
        broadcast.broadcast_state(model, local.group(AXIS), local.name_of(**{**local.at, AXIS: 0}))
        _parallelize(setup, parallel_plan(model, styles, sequence_parallel=sequence_parallel is not None))
        _compute_loss_of_parts(setup)

    return apply


def _styles_of(setup: Setup) -> dict[str, Style]:
    """The styles of the model's own plan; refuse what PyTorch's loss, or its plan here, is not for."""
    model = setup.model
    if not isinstance(model, Decoder) and causal_model(model) is None:
        values, way_out = f"a {type(model).__name__}", "give a Decoder or one of transformers, or apply tensor(plan=…)"
        raise ValueError(four_parts("torch_tensor", values, "its plan is a language model's", way_out))
    if (pp := setup.local.size("pp")) > 1:
        rule, way_out = "the stages here pass tensors of their own, not PyTorch's", "apply tensor(), or choose pp=1"
        raise ValueError(four_parts("torch_tensor", f"pp={pp}", rule, way_out))
    styles = styles_of(model, plan_for(model))
    check_vocabulary(styles)
    return styles


def check_vocabulary(styles: Mapping[str, Style]) -> None:
    """Raise the four-part error for a plan that cuts no logits."""
    if not {"vocabulary", "logits"} <= {*styles.values()}:
        values, rule = "a plan that leaves the vocabulary whole", "PyTorch's loss is computed of parts of the logits"
        raise ValueError(four_parts("torch_tensor", values, rule, "apply tensor(), which is engine=own"))


def check_parts(model: nn.Module, styles: Mapping[str, Style], tp: int) -> None:
    """Raise the four-part error for what PyTorch would cut otherwise than the table says, as `torch.chunk`, or copy."""
    parts = {name: _parts(model, name, style) for name, style in styles.items() if style not in _WHOLE}
    uneven = [name for name, (size, _) in parts.items() if size % tp]
    if uneven:
        size, what = parts[uneven[0]]
        choices = divisors(gcd(*(size for size, _ in parts.values())))
        values, rule = (
            f"tp={tp}, {size} {what} of {uneven[0]}",
            "PyTorch's styles take parts of one size, and copy none",
        )
        way_out = f"choose tp in {choices}, or apply tensor(), which is engine=own"
        raise ValueError(four_parts("torch_tensor", values, rule, way_out))


def _parts(model: nn.Module, name: str, style: Style) -> tuple[int, str]:
    """Into how many parts a module can be cut at most, and what they are."""
    weight, head_size = model.get_submodule(name).get_parameter("weight"), None
    if style == "column":
        head_size = head_size_of(model.get_submodule(name.rpartition(".")[0]))
    size = weight.shape[style == "row"]
    return (size, "columns" if style == "row" else "rows") if head_size is None else (size // head_size, "heads")


def _parallelize(setup: Setup, plan: Mapping[str, Any]) -> None:
    """Let PyTorch cut the modules; what was tied gets a parameter each, and what was frozen thaws: put that right."""
    from torch.distributed.tensor.parallel import parallelize_module

    assert setup.local.mesh is not None  # `begin` has seen it
    # All ranks have the same numbers by now, so that each cuts its own.
    parallelize_module(setup.model, setup.local.mesh[AXIS], dict(plan), src_data_rank=None)
    if setup.local.size("dp") == 1:  # else these ranks share what this rank has now, or copy it: they come first
        meta.give_memory_to_dtensors(setup.model, setup.local.device)
    for name, first in setup.local.layout.first_name.items():
        owner, _, kind = name.rpartition(".")
        if name != first:
            setattr(setup.model.get_submodule(owner), kind, setup.model.get_parameter(first))
    setup.local.renew(setup.model)
    for name, parameter in setup.local.parameters.items():
        parameter.requires_grad_(setup.local.layout.places[name].trained)
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
