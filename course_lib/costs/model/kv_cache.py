"""What generating text remembers of the tokens before: keys and values, on one of the ranks that share the heads."""

from __future__ import annotations

from course_lib.config import ModelConfig, ParallelConfig
from course_lib.errors import four_parts


def kv_cache_bytes(config: ModelConfig, *, batch: int, sequence: int, itemsize: int, tp: int = 1) -> int:
    """Keys and values of every token in every layer: 2 L B S x (kv heads of the rank) x D x itemsize.

    Assumes that layers with a window remember all tokens too: the cache's length is then one number for all layers.
    Raises: ValueError for a size below 1, heads that cannot be shared so, or latent attention, which keeps neither.
    """
    for name, size in (("batch", batch), ("sequence", sequence), ("itemsize", itemsize)):
        if size < 1:
            way_out = f"give {name} >= 1"
            raise ValueError(four_parts("kv_cache_bytes", f"{name}={size}", f"{name} is positive", way_out))
    if config.latent is not None:
        rule, way_out = "it remembers a latent vector, not keys and values", "choose a model with kv heads"
        raise ValueError(four_parts("kv_cache_bytes", config.name, rule, way_out))
    numbers = kv_heads_on_rank(config, tp) * config.head_size
    return 2 * config.n_layers * batch * sequence * numbers * itemsize


def kv_heads_on_rank(config: ModelConfig, tp: int) -> int:
    """Heads of keys and values on each of `tp` ranks: K/tp, or one, which tp/K neighbours then have in common.

    Raises: ValueError unless all ranks get as many heads of queries, and as many of keys and values.
    """
    ParallelConfig(tp=tp).check_heads(config)
    return max(config.n_kv_heads // tp, 1)
