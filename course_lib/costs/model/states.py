"""Memory that lasts from step to step: weights, gradients and optimizer states of one rank."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from math import ceil, prod

from course_lib.config import ModelConfig, ParallelConfig
from course_lib.config.parallel import CUT_IN_ALL, Piece
from course_lib.costs.model.conventions import BLOCK, Convention
from course_lib.costs.model.parameters import Weight, layer_weights, model_parameters, outer_weights
from course_lib.errors import four_parts
from course_lib.split import split_sizes


@dataclass(frozen=True, kw_only=True)
class StateBytes:
    """Bytes of one rank's lasting state."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """All three."""
        return self.weights + self.gradients + self.optimizer

    def __add__(self, other: StateBytes) -> StateBytes:
        return StateBytes(
            weights=self.weights + other.weights,
            gradients=self.gradients + other.gradients,
            optimizer=self.optimizer + other.optimizer,
        )


def state_bytes(
    parameters: int, convention: Convention, *, zero_stage: int = 0, shards: int = 1, rank: int = 0
) -> StateBytes:
    """What `parameters` numbers keep on one of `shards` ranks that train them together; rank 0 is the fullest.

    Stage 1 shards the optimizer states, stage 2 the gradients as well, stage 3 the weights as well.
    Source: Rajbhandari et al. 2020, ZeRO, section 5 and Figure 1.
    Raises: ValueError for a stage that ZeRO does not have, no ranks, or a rank that is not there.
    """
    _check_sharding(zero_stage, shards, rank)
    shard = split_sizes(parameters, shards)[rank]
    states = shard if zero_stage >= 1 else parameters
    return StateBytes(
        weights=convention.weights * (shard if zero_stage >= 3 else parameters),
        gradients=convention.gradients * (shard if zero_stage >= 2 else parameters),
        optimizer=convention.optimizer * states + convention.scales * ceil(states / BLOCK),
    )


@dataclass(frozen=True, kw_only=True)
class LayerParameters:
    """One layer's parameters on one rank; experts apart, for fewer ranks hold the same: dp x cp / ep, not dp x cp."""

    shared: int
    experts: int

    @property
    def total(self) -> int:
        """Both."""
        return self.shared + self.experts


@dataclass(frozen=True, kw_only=True)
class RankParameters:
    """Parameters that one rank works with before ZeRO shards them."""

    layers: tuple[tuple[int, LayerParameters], ...]  # how many are alike
    outer: int  # outside the layers

    @property
    def shared(self) -> int:
        """All that is not in experts."""
        return sum(count * layer.shared for count, layer in self.layers) + self.outer

    @property
    def experts(self) -> int:
        """In the experts of all layers."""
        return sum(count * layer.experts for count, layer in self.layers)

    @property
    def total(self) -> int:
        """All of them."""
        return self.shared + self.experts

    @property
    def largest_unit(self) -> int:
        """What ZeRO-3 gathers at a time: a layer, or everything outside the layers if that is more."""
        return max(self.outer, *(layer.total for _, layer in self.layers))

    def state_bytes(self, parallel: ParallelConfig, convention: Convention) -> StateBytes:
        """Weights, gradients and optimizer states that ZeRO leaves of them."""
        zero, shards = parallel.zero_stage, parallel.shards
        experts = state_bytes(self.experts, convention, zero_stage=zero, shards=shards // parallel.ep)
        return state_bytes(self.shared, convention, zero_stage=zero, shards=shards) + experts


def rank_parameters(
    model: ModelConfig, parallel: ParallelConfig, *, stage: int = 0, whole: Set[Piece] = CUT_IN_ALL
) -> RankParameters:
    """Parameters of the ranks of one pipeline stage: the fullest of its tensor-parallel ranks.

    The first stage holds the embedding, the last one norm and head (its own copy of the embedding, if tied). What is
    `whole`, every rank along tp has all of.
    Source: Shoeybi et al. 2019, section 3 (what is sharded, what is replicated).
    Raises: ValueError if the model does not divide so, or has no such stage.
    """
    parallel.check(model, whole=whole)
    if stage not in range(parallel.pp):
        values, rule = f"stage={stage}, pp={parallel.pp}", "stages count from 0"
        raise ValueError(four_parts("rank_parameters", values, rule, f"choose stage in 0..{parallel.pp - 1}"))
    return fullest_parameters(model, parallel, stage=stage, whole=whole)


def fullest_parameters(
    model: ModelConfig, parallel: ParallelConfig, *, stage: int, whole: Set[Piece] = CUT_IN_ALL
) -> RankParameters:
    """The same where something may be cut unevenly: of the rank that has most of it."""
    return RankParameters(
        layers=tuple(
            (count, _layer_on_rank(kind, parallel, whole)) for count, kind in layers_of_stage(model, parallel.pp, stage)
        ),
        outer=_on_rank(_outer(model, parallel.pp, stage), parallel.tp, whole),
    )


def layers_of_stage(model: ModelConfig, pp: int, stage: int) -> tuple[tuple[int, ModelConfig], ...]:
    """The layers of a pipeline stage as `ModelConfig.layer_kinds` gives those of the model; see `_stage_sizes`."""
    sizes, begin, found = _stage_sizes(model.n_layers, pp), 0, []
    start = sum(sizes[:stage])
    for count, kind in model.layer_kinds:
        here = min(begin + count, start + sizes[stage]) - max(begin, start)
        found += [(here, kind)] if here > 0 else []
        begin += count
    return tuple(found)


def _stage_sizes(n_layers: int, pp: int) -> tuple[int, ...]:
    """Layers of each stage: equally many; else one less at both ends, if embedding and head then count as a layer each.

    Where that does not divide either, the first stages have one more.
    Source: Grattafiori et al. 2024, The Llama 3 Herd of Models, section 3.3.2 (balance: a layer less at both ends).
    """
    each, rest = divmod(n_layers + 2, pp)
    if n_layers % pp and not rest and pp > 2 and each > 1:
        return (each - 1, *[each] * (pp - 2), each - 1)
    return tuple(split_sizes(n_layers, pp))


def _layer_on_rank(model: ModelConfig, parallel: ParallelConfig, whole: Set[Piece]) -> LayerParameters:
    """One layer; a router and a shared block are on every rank that has any of its experts."""
    weights = layer_weights(model)
    experts = [weight for weight in weights if model.n_experts > 1 and weight.name.startswith("ffn.")]
    shared = [weight for weight in weights if weight not in experts]
    apart = whole | ({"ffn"} if "experts" in whole else set())  # experts have the names of the one block
    return LayerParameters(
        shared=_on_rank(shared, parallel.tp, whole), experts=_on_rank(experts, parallel.tp, apart) // parallel.ep
    )


def model_state_bytes(
    model: ModelConfig, parallel: ParallelConfig, convention: Convention, *, stage: int = 0
) -> StateBytes:
    """Weights, gradients and optimizer states of one rank of a pipeline stage.

    Raises: ValueError as `rank_parameters`.
    """
    return rank_parameters(model, parallel, stage=stage).state_bytes(parallel, convention)


def sgd_state_bytes(config: ModelConfig, *, itemsize: int) -> int:
    """Weights and gradients of a whole model under plain SGD, which keeps nothing else: 2 numbers a parameter."""
    return 2 * itemsize * model_parameters(config)


def gpus_needed(nbytes: float, memory_bytes: float) -> int:
    """How many devices hold `nbytes` between them, with nothing to spare and nothing else to store."""
    if memory_bytes <= 0:
        values, rule = f"memory_bytes={memory_bytes}", "a device has memory"
        raise ValueError(four_parts("gpus_needed", values, rule, "give the bytes of one device, for example 80 * GB"))
    return ceil(nbytes / memory_bytes)


def _outer(model: ModelConfig, pp: int, stage: int) -> list[Weight]:
    """The tensors outside the layers that a stage holds."""
    weights = {weight.name: weight for weight in outer_weights(model)}
    first = [weight for name, weight in weights.items() if name in ("embedding", "positions")]
    last = [weight for name, weight in weights.items() if name not in ("embedding", "positions")]
    if model.tied and pp > 1:
        last.append(weights["embedding"])
    return (first if stage == 0 else []) + (last if stage == pp - 1 else [])


def _on_rank(weights: Iterable[Weight], tp: int, whole: Set[str]) -> int:
    """Parameters of the first of tp ranks, whose shards are the largest."""
    return sum(weight.copies * prod(weight.shape_at(1 if weight.piece in whole else tp)) for weight in weights)


def _check_sharding(zero_stage: int, shards: int, rank: int) -> None:
    if zero_stage not in range(4):
        rule = "ZeRO has the stages 1 to 3"
        raise ValueError(four_parts("state_bytes", f"zero_stage={zero_stage}", rule, "choose 0 (none), 1, 2 or 3"))
    if shards < 1:
        raise ValueError(four_parts("state_bytes", f"shards={shards}", "some rank holds the state", "give shards >= 1"))
    if rank not in range(shards):
        values, way_out = f"rank={rank}, shards={shards}", f"choose rank in 0..{shards - 1}"
        raise ValueError(four_parts("state_bytes", values, "ranks count from 0", way_out))
