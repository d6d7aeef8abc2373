"""The step time of policies by closed form, split into its causes."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from course_lib.sim import axes
from course_lib.sim.layer import BACKWARD_ATTENTION, BACKWARD_POINTWISE, Forward, forward_of
from course_lib.sim.policies import EVERY_SCHEDULE, Policies, Value
from course_lib.sim.rates import Rates
from course_lib.sim.shape import Shape

# What of a layer's forward is computed again, in RECOMPUTE's order: matmul, attention, pointwise, the tp exchanges.
AGAIN = np.array(
    [(0, 0, 0, 0), (0, 1, 0, 0), (0.5, 0, 1, 0), (0.5, 0.5, 0.5, 0.5), (1, 1, 1, 1), (0, 1, 1, 1)], dtype=float
)
_ADAM_BYTES = 30  # read and written for each number: gradient, fp32 weight, two moments, bf16 weight
_HOST_BYTES = 6  # to the host and back for each number whose states lie there
_ZB, _ZB_2P, _ZB_V, _INTERLEAVED = map(EVERY_SCHEDULE.index, ("zb-h1", "zb-2p", "zb-v", "interleaved"))


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of a step by cause, each of shape (n,); they add up to `total`."""

    matmul: Value
    attention: Value
    pointwise: Value
    recompute: Value
    tp: Value
    cp: Value
    ep: Value
    launch: Value  # what each layer takes of a micro-batch however small, and adding up its gradients
    bubble: Value  # idle time of the pipeline, and stages that are not alike
    transfer: Value  # between pipeline stages
    dp: Value  # what nothing hides
    optimizer: Value
    offload: Value
    fixed: Value  # data, host, stragglers

    @property
    def total(self) -> Value:
        """The step."""
        return sum(getattr(self, field.name) for field in fields(self))


CAUSES = tuple(field.name for field in fields(StepTime))
CAUSE_NAMES = {  # as every text and figure calls them
    "matmul": "matrix products",
    "attention": "attention",
    "pointwise": "norms and activation functions",
    "recompute": "recomputing activations",
    "tp": "messages along tp",
    "cp": "messages along cp",
    "launch": "launching kernels and adding up gradients",
    "ep": "experts' messages and host work",
    "bubble": "the pipeline's bubble",
    "transfer": "messages between stages",
    "dp": "messages along dp that nothing hides",
    "optimizer": "the optimizer",
    "offload": "the host's memory",
    "fixed": "host and stragglers",
}


@dataclass(frozen=True)
class StepWork:
    """Seconds of one micro-batch: a layer by cause, and the head; of each also forward and the weights' gradients."""

    layer: dict[str, Value]
    layer_forward: Value
    layer_weights: Value
    head_products: Value
    head_pointwise: Value
    head_forward: Value
    head_weights: Value

    @property
    def layer_s(self) -> Value:
        """A whole layer."""
        return sum(self.layer.values())

    @property
    def head_s(self) -> Value:
        """The whole head."""
        return self.head_products + self.head_pointwise

    def causes(self, layers: Value, heads: Value) -> dict[str, Value]:
        """So many layers and heads together."""
        found = {cause: layers * seconds for cause, seconds in self.layer.items()}
        found["matmul"] = found["matmul"] + heads * self.head_products
        found["pointwise"] = found["pointwise"] + heads * self.head_pointwise
        return found


def step_time(shape: Shape, rates: Rates, policies: Policies) -> StepTime:
    """Seconds by cause, for policies in floats; any field of the three records may be an array.

    m micro-batches of the fullest stage, the bubble of the mean stage, what of the messages over dp is not hidden,
    the optimizer. All of it grows with the nodes, which stands under `fixed`.
    Cost: about 250 array operations.
    """
    p, m = policies, policies.n_microbatches
    one = work(shape, rates, p)
    stage = one.causes(shape.layers / p.pp, 1 / p.pp)  # of the mean stage
    mean = sum(stage.values())
    parts = {
        **{cause: m * seconds for cause, seconds in stage.items()},
        "bubble": np.maximum(0.0, m * (_fullest(shape.layers, p, one) - mean) + _bubble(shape, p, one, mean)),
        "transfer": axes.transfer_s(shape, rates, p) * (p.pp - 1 + rates.pp_exposed * m * p.stages_per_rank),
        **after(shape, rates, p, mean),
    }
    fixed = rates.step_s + m * rates.microbatch_s
    whole = sum(parts.values()) + fixed
    return StepTime(**parts, fixed=fixed + whole * (slowdown(rates, p) - 1))


def slowdown(rates: Rates, p: Policies) -> Value:
    """What multiplies a whole step: stragglers, whose number grows with the domains."""
    domains = np.maximum(1.0, p.world_size / rates.domain)
    return 1 + rates.node_slowdown * np.log2(domains)


def work(shape: Shape, rates: Rates, p: Policies) -> StepWork:
    """What a micro-batch costs in a layer and in the head, forward and backward."""
    ahead = forward_of(shape, rates, p)
    again = AGAIN[np.asarray(p.recompute, dtype=int)].T
    attention = ahead.attention * (1 + BACKWARD_ATTENTION) + ahead.scores * (1 + BACKWARD_POINTWISE)
    trained = 1 - shape.frozen  # a frozen matrix has no gradient: backward has one product with it, not two
    layer = {
        "matmul": (2 + trained) * ahead.matmul + 3 * ahead.beside,
        "attention": attention,
        "pointwise": (1 + BACKWARD_POINTWISE) * ahead.pointwise + 2 * ahead.added,
        "recompute": _recompute(ahead, again),
        "tp": axes.tensor_s(shape, rates, p, again[3]),
        "cp": axes.context_s(shape, rates, p, attention),
        "ep": axes.expert_s(shape, rates, p, again[3]),
        "launch": _launch(shape, rates, p, again[0]),
    }
    return StepWork(
        layer=layer,
        layer_forward=ahead.matmul
        + ahead.beside
        + ahead.added
        + ahead.attention
        + ahead.scores
        + ahead.pointwise
        + (layer["tp"] + layer["cp"] + layer["ep"] + layer["launch"]) / 3,
        layer_weights=trained * ahead.matmul + ahead.beside,
        head_products=(2 + trained) * ahead.head,
        head_pointwise=(1 + BACKWARD_POINTWISE) * ahead.head_pointwise,
        head_forward=ahead.head + ahead.head_pointwise,
        head_weights=trained * ahead.head,
    )


def _launch(shape: Shape, rates: Rates, p: Policies, repeated: Value) -> Value:
    """Of a layer: its kernels' start, once more by a third where forward is repeated, and gradients added to a sum."""
    gradients = axes.kept(axes.trained(shape, p), p, from_stage=2) * p.pp / shape.layers
    return rates.layer_s * (1 + repeated / 3) + rates.accumulated_s * gradients


def _recompute(ahead: Forward, again: Value) -> Value:
    matmul, attention, pointwise, _ = again  # type: ignore[misc]
    products, traffic = ahead.matmul + ahead.beside, ahead.pointwise + ahead.added
    return matmul * products + attention * (ahead.attention + ahead.scores) + pointwise * traffic


def _fullest(layers: Value, p: Policies, one: StepWork) -> Value:
    """The longest stage: the last one has the head, and fewer layers if they do not divide.

    Where L does not divide but L + 2 does, embedding and head count as layers.
    """
    even = np.ceil(layers / p.pp)
    divides = even * p.pp == layers
    both = np.floor((layers + 2) / p.pp)
    as_layers = ~divides & (both * p.pp == layers + 2)
    most = np.where(as_layers, both, even)
    last = np.where(divides, even, np.where(as_layers, both - 1, even - 1))
    inner = np.where(np.asarray(p.pp) > 1, most, 0)
    return np.maximum(inner * one.layer_s, last * one.layer_s + one.head_s)


def _bubble(shape: Shape, p: Policies, one: StepWork, mean: Value) -> Value:
    """(p - 1) micro-batches of the mean stage, over v if interleaved; ZB-H1 fills a part with gradients of weights.

    ZB-2p and ZB-V have none: what is left is that stages are not alike.
    `costs.pipeline_bubble_s` for arrays, where W is the least of F, B and W: each of the others has as many products.
    Source: Narayanan et al. 2021, section 2.2; Qi et al. 2023, table 2.
    """
    interleaved = np.where(np.asarray(p.schedule) == _INTERLEAVED, p.stages_per_rank, 1.0)
    pauseless = np.isin(p.schedule, (_ZB_2P, _ZB_V))
    plain = np.where(pauseless, 0.0, (p.pp - 1) / interleaved * mean)
    if not np.any(np.asarray(p.schedule) == _ZB):
        return plain
    weights = (shape.layers * one.layer_weights + one.head_weights) / p.pp
    filled = (np.minimum(p.n_microbatches, p.pp) - 1) * weights
    return np.where(np.asarray(p.schedule) == _ZB, (p.pp - 1) * (mean - weights) - filled, plain)


def after(shape: Shape, rates: Rates, p: Policies, microbatch_s: Value) -> dict[str, Value]:
    """What follows the micro-batches: messages over dp that nothing hides, then Adam.

    Adam moves its states through memory: the GPU's, or with offload over the host's link and through the host's.
    """
    trained = axes.trained(shape, p)
    own = axes.kept(trained, p, from_stage=1)
    away = np.asarray(p.offload, dtype=bool)
    there = own * (_HOST_BYTES + _ADAM_BYTES) / rates.host_bytes_per_s
    return {
        "dp": axes.data_s(shape, rates, p, microbatch_s),
        "optimizer": np.where(away, 0.0, own * _ADAM_BYTES / rates.optimizer_bytes_per_s),
        "offload": np.where(away, there, 0.0),
    }
