"""Parameter formulas as they were published, each with what it assumes: to be held against the exact count.

All take a ModelConfig and read from it only the letters that they use, whatever the model's real shape.
"""

from __future__ import annotations

from course_lib.config import ModelConfig
from course_lib.costs.published.explorer import explorer_parameters
from course_lib.errors import four_parts


def workshop_parameters(config: ModelConfig) -> int:
    """N(12D^2 + 10D) + D(V + T) + 2D + V(D + 1), with N layers, D hidden size, T positions, V vocabulary.

    Assumes a GPT: feed-forward of 4D in two matrices, layer norms with bias, learned positions, an untied head
    with bias, biases in the attention output and the feed-forward but not in queries, keys and values.
    Source: Kempner Institute 2024-10, workshop on distributed training.
    Raises: ValueError if the model does not say how many positions it has.
    """
    N, D, T, V = config.n_layers, config.hidden_size, _positions(config), config.vocab_size
    return N * (12 * D**2 + 10 * D) + D * (V + T) + 2 * D + V * (D + 1)


def megatron_parameters(config: ModelConfig) -> int:
    """12Lh^2 (1 + 13/(12h) + (V + s)/(12Lh)), with L layers, hidden size h, s positions, vocabulary V.

    Assumes GPT-2's shape: feed-forward of 4h in two matrices, biases everywhere, layer norms with bias, learned
    positions, a tied head; leaves out the 2h of the last norm.
    Source: Narayanan et al. 2021, equation 2.
    Raises: ValueError if the model does not say how many positions it has.
    """
    L, h, s, V = config.n_layers, config.hidden_size, _positions(config), config.vocab_size
    return 12 * L * h**2 + 13 * L * h + (V + s) * h


PARAMETER_FORMULAS = {
    "workshop": workshop_parameters,
    "megatron": megatron_parameters,
    "explorer": explorer_parameters,
}


def _positions(config: ModelConfig) -> int:
    if config.max_sequence is None:
        rule = "the formula counts a table of positions"
        way_out = "give max_sequence"
        raise ValueError(four_parts(f"parameter formula for {config.name!r}", "max_sequence=None", rule, way_out))
    return config.max_sequence
