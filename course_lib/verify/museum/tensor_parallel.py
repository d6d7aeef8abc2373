"""Bugs of tensor parallelism. Each is a few lines in place of the library's; its docstring says what is wrong.

Those of a bias need a model that has one after a row-parallel map, as a GPT has. That of the norms needs sequence
parallelism, that of copies fewer heads of keys and values than ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor

from course_lib import comm
from course_lib.parallel.tensors.cutting import AXIS
from course_lib.parallel.tensors.layers import RowParallelLinear
from course_lib.training.setup import Setup
from course_lib.verify.museum.bug import ISSUES, PULLS, Bug, Issue
from course_lib.verify.museum.seams import after_backward, own_norm


def bias_with_each_term(setup: Setup) -> None:
    """Each rank adds the bias to its term of the output, and then the terms are added up."""
    _add_to_each_term(setup, share=1)


def bias_in_shares(setup: Setup) -> None:
    """Each rank adds its share of the bias: the output is right, and the bias' gradient is divided as well."""
    _add_to_each_term(setup, share=setup.local.size(AXIS))


def _add_to_each_term(setup: Setup, share: int) -> None:
    for layer in _with_bias(setup):
        layer.forward = _BiasFirst(layer, share)  # type: ignore[method-assign]


def _with_bias(setup: Setup) -> Iterator[RowParallelLinear]:
    for module in setup.model.modules():
        if isinstance(module, RowParallelLinear) and module.bias is not None:
            yield module


class _BiasFirst:
    """A row-parallel map that divides its bias and adds it before the sum over the ranks."""

    def __init__(self, layer: RowParallelLinear, share: int) -> None:
        self.layer, self.share = layer, share

    def __call__(self, x: Tensor) -> Tensor:
        return self.layer.region.leave(F.linear(x, self.layer.weight, self.layer.bias / self.share))


def norms_not_summed(setup: Setup) -> None:
    """Each rank keeps the gradient that its positions gave the norms: nobody knows that it is a term of a sum."""
    for name in _replicated(setup):
        setup.local.layout.write(name, partial=frozenset())


def kv_copies_not_summed(setup: Setup) -> None:
    """A head of keys and values that several ranks have learns on each from that rank's queries alone."""
    for name, place in setup.local.layout.places.items():
        if AXIS in place.shard and place.shard[AXIS].copies > 1:
            setup.local.layout.write(name, partial=frozenset())


def replicated_summed_again(setup: Setup) -> None:
    """What every rank has whole is added up over the ranks once more, though each has the complete gradient."""

    def work() -> None:
        group, gradients = setup.local.group(AXIS), setup.local.gradients()
        for name in _replicated(setup):
            comm.all_reduce_(gradients[name], group=group)

    after_backward(setup, work)


def replicated_counted_by_each(setup: Setup) -> None:
    """Every rank adds the squares of all that it holds, so what is replicated counts once for each rank."""

    def over_all() -> Tensor:
        return comm.all_reduce(own_norm(setup).square().view(1), group=setup.local.group(AXIS)).sqrt()[0]

    setup.local.global_norm = over_all  # type: ignore[method-assign]


def _replicated(setup: Setup) -> list[str]:
    """The trained parameters that every rank has whole."""
    places = setup.local.layout.places
    return [name for name in setup.local.layout.trained if AXIS not in places[name].shard]


_EXHIBITS = (
    Bug(
        name="bias_with_each_term",
        title="The bias of a row-parallel map is added once by each rank",
        technique=bias_with_each_term,
        where=Issue(
            title="[Bug] Multiple reductions of linear bias after row sharding the weight",
            link=ISSUES.format("awslabs/slapo", 10),
        ),
        first_rung="parameters",
        looks="a bias that is born 0 hides it: output and gradients of the first step are right; then the model learns "
        "a smaller bias",
    ),
    Bug(
        name="bias_in_shares",
        title="Each rank adds its share of the bias, and autograd divides the gradient with it",
        technique=bias_in_shares,
        where=Issue(title="Fix rowwise TP bias gradients", link=PULLS.format("pytorch/torchtitan", 4332)),
        first_rung="gradients",
        looks="every output is right; these biases' gradients are tp times too small, which AdamW divides away",
    ),
    Bug(
        name="norms_not_summed",
        title="Under sequence parallelism the gradients of the norms are not added up over the ranks",
        technique=norms_not_summed,
        where=Issue(
            title="[BUG] final_layernorm gradient mismatch when TP+SP enabled",
            link=ISSUES.format("NVIDIA/Megatron-LM", 1446),
        ),
        first_rung="gradients",
        looks="each rank's norms learn from its own positions and drift apart; the loss falls as it should",
    ),
    Bug(
        name="kv_copies_not_summed",
        title="The copies of a head of keys and values do not add up their gradients",
        technique=kv_copies_not_summed,
        where=Issue(title="Unstable training with MQA and TP>1", link=ISSUES.format("bigcode-project/Megatron-LM", 35)),
        first_rung="gradients",
        looks="each copy learns from some of the queries; in public it was thousands of steps before a loss exploded",
    ),
    Bug(
        name="replicated_summed_again",
        title="Gradients of replicated weights are added up although they are complete",
        technique=replicated_summed_again,
        where=Issue(
            title="fix(bailing): correct MLA tensor-parallel gradient reduction",
            link=PULLS.format("inclusionAI/AReno", 496),
        ),
        first_rung="gradients",
        looks="the norms' gradients are exactly tp times too large; AdamW hides the factor",
    ),
    Bug(
        name="replicated_counted_by_each",
        title="The gradient norm counts replicated weights once for each rank",
        technique=replicated_counted_by_each,
        where=Issue(
            title="fix(dtensor): count TP-replicated gradients once in get_grad_norm",
            link=PULLS.format("NVIDIA-NeMo/RL", 3788),
        ),
        first_rung="gradient norm",
        looks="the logged norm is too large, and clipping bites more often than it should",
    ),
)
TENSOR_BUGS = {bug.name: bug for bug in _EXHIBITS}
