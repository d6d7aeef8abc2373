"""Memory per GPU as the LLM Parallelism Explorer computes it: its convention, kept apart from ours.

Assumes 16-bit weights, fp32 gradients and Adam; leaves out norms and routers; counts every layer's activations,
whatever the pipeline stages, and the loss only if there is one stage.
Source: Khare 2024, LLM Parallelism Explorer, main.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from course_lib.config import ModelConfig, ParallelConfig
from course_lib.costs.model.parameters import layer_weights
from course_lib.errors import four_parts

Strategy = Literal["NO_OP", "OPTIMIZER_STATES", "OPTIMIZER_STATES_AND_GRADS", "FULLY_SHARD"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)  # in the order of ZeRO's stages 0 to 3


@dataclass(frozen=True, kw_only=True)
class ExplorerMemory:
    """Bytes of one GPU."""

    states: float
    activations: float

    @property
    def total(self) -> float:
        """Both."""
        return self.states + self.activations


def explorer_memory(
    model: ModelConfig,
    parallel: ParallelConfig,
    strategy: Strategy,
    *,
    sequence: int,
    microbatch: int,
    token_imbalance: float = 1.0,
) -> ExplorerMemory:
    """What the tool writes into one row of its table; its 'GB' are GiB.

    Raises: ValueError for an unknown strategy.
    """
    return ExplorerMemory(
        states=explorer_state_bytes(model, parallel, strategy),
        activations=explorer_activation_bytes(
            model, parallel, sequence=sequence, microbatch=microbatch, token_imbalance=token_imbalance
        ),
    )


def bytes_per_parameter(strategy: Strategy, shards: int, *, lasting_copy: bool = False) -> float:
    """Bytes of weights, gradients and Adam's states on each of `shards` ranks.

    Fully sharded, the tool counts 16/d: fp32 shards and no lasting 16-bit weights, as FSDP2 has it. With
    `lasting_copy` those count too, 18/d, as for the other strategies.
    Raises: ValueError for an unknown strategy.
    """
    if strategy not in STRATEGIES:
        rule, way_out = "not a known strategy", f"choose one of {', '.join(STRATEGIES)}"
        raise ValueError(four_parts("bytes_per_parameter", f"strategy={strategy!r}", rule, way_out))
    return {
        "NO_OP": 18.0,
        "OPTIMIZER_STATES": 6 + 12 / shards,
        "OPTIMIZER_STATES_AND_GRADS": 2 + 16 / shards,
        "FULLY_SHARD": (18 if lasting_copy else 16) / shards,
    }[strategy]


def _explorer_rank_parameters(model: ModelConfig, parallel: ParallelConfig) -> tuple[float, float]:
    """Parameters of one GPU, without and in experts; the head is left out of every stage if pp > 1."""
    copies = 2 if parallel.pp == 1 and not model.tied else 1  # of the embedding
    shared, experts = 0.0, 0.0
    for count, kind in model.layer_kinds:
        matrices = [weight for weight in layer_weights(kind) if len(weight.shape) == 2 and weight.part != "router"]
        split = [weight for weight in matrices if kind.n_experts > 1 and weight.name.startswith("ffn.")]
        shared += count * sum(weight.parameters for weight in matrices if weight not in split)
        experts += count * sum(weight.parameters for weight in split) / parallel.ep
    shared = copies * model.vocab_size * model.hidden_size + shared / parallel.pp
    return shared / parallel.tp, experts / parallel.pp / parallel.tp


def explorer_parameters(model: ModelConfig) -> int:
    """The matrices alone: attention with its kv heads, the blocks of all experts, embedding, head if untied.

    Leaves out biases, norms and routers; assumes no learned positions.
    """
    return int(sum(_explorer_rank_parameters(model, ParallelConfig())))


def explorer_state_bytes(
    model: ModelConfig, parallel: ParallelConfig, strategy: Strategy, *, lasting_copy: bool = False
) -> float:
    """Bytes of weights, gradients and Adam's states; sharded over dp, experts over dp/ep, never over cp."""
    shared, experts = _explorer_rank_parameters(model, parallel)
    per_shared = bytes_per_parameter(strategy, parallel.dp, lasting_copy=lasting_copy)
    per_expert = bytes_per_parameter(strategy, parallel.dp // parallel.ep, lasting_copy=lasting_copy)
    return shared * per_shared + experts * per_expert


def explorer_layer_bytes(
    model: ModelConfig, parallel: ParallelConfig, *, sequence: int, microbatch: int, token_imbalance: float = 1.0
) -> float:
    """Activations of one layer: 14sbh of attention and norms and 2sb(h + k f) of the block, divided by tp.

    s is the sequence divided by cp, k is 3 for a gated block and 2 otherwise. A layer with experts has 2sbh(1 + cK)
    and cK blocks, with K experts per token and c the token imbalance, which counts only if ep > 1.
    """
    tokens = sequence / parallel.cp * microbatch
    blocks = explorer_block_bytes(
        model, parallel, sequence=sequence, microbatch=microbatch, token_imbalance=token_imbalance
    )
    return 14 * tokens * model.hidden_size / parallel.tp + blocks


def explorer_block_bytes(
    model: ModelConfig, parallel: ParallelConfig, *, sequence: int, microbatch: int, token_imbalance: float = 1.0
) -> float:
    """Of those, what the feed-forward block or the experts keep; a shared block beside them counts like another."""
    tokens, H = sequence / parallel.cp * microbatch, model.hidden_size
    inner = 3 if model.gated_ffn else 2
    block = 2 * tokens * (H + inner * model.ffn_size)
    if model.n_experts > 1:
        passes = model.experts_per_token * (token_imbalance if parallel.ep > 1 else 1.0)
        block = 2 * tokens * H * (1 + passes) + passes * block + 2 * tokens * inner * model.shared_ffn_size
    return block / parallel.tp


def explorer_activation_bytes(
    model: ModelConfig, parallel: ParallelConfig, *, sequence: int, microbatch: int, token_imbalance: float = 1.0
) -> float:
    """Activations of all layers, not divided by pp, and 10sbV/tp of the loss if pp is 1."""
    layers = sum(
        count
        * explorer_layer_bytes(
            kind, parallel, sequence=sequence, microbatch=microbatch, token_imbalance=token_imbalance
        )
        for count, kind in model.layer_kinds
    )
    logits = sequence / parallel.cp * microbatch * model.vocab_size / parallel.tp
    return layers + (10 * logits if parallel.pp == 1 else 0)
