"""Activation formulas as they were published, each with what it assumes: to be held against the exact count.

Where a formula reads a ModelConfig it takes from it only the letters that it uses, whatever the model's shape.
"""

from __future__ import annotations

from typing import Literal, get_args

from course_lib.config import ModelConfig
from course_lib.errors import four_parts

KorthikantiRecompute = Literal["none", "selective", "full"]


def workshop_activations(config: ModelConfig, *, batch: int, sequence: int) -> int:
    """Numbers, not bytes: 5NBTD + B N N_h T^2 + 2BVT + 2BTD, and 2BT for inputs and targets.

    Assumes that the scores of attention are kept once, and of each layer five tensors of the hidden size.
    Source: Kempner Institute 2024-10, workshop on distributed training.
    """
    N, D, heads, V = config.n_layers, config.hidden_size, config.n_heads, config.vocab_size
    feed_forward, attention = 5 * N * batch * sequence * D, batch * N * heads * sequence**2
    embedding, norms_and_head = 2 * batch * V * sequence, 2 * batch * sequence * D
    return feed_forward + attention + embedding + norms_and_head + 2 * batch * sequence


def korthikanti_layer_bytes(
    config: ModelConfig,
    *,
    batch: int,
    sequence: int,
    tp: int = 1,
    sequence_parallel: bool = False,
    keep_gathered: bool = False,
    recompute: KorthikantiRecompute = "none",
) -> float:
    """Bytes of one layer: sbh(34 + 5as/h) alone, sbh(10 + 24/t + 5as/(ht)) on t tensor-parallel ranks,
    sbh/t (34 + 5as/h) with sequence parallelism; selective recompute removes 5as/h, full leaves 2sbh.

    The last is without the inputs of the two blocks, 2sbh each, which backward gathers again: with `keep_gathered`
    they stay whole, and sbh(4 + 30/t + 5as/(ht)) are kept.
    Assumes a GPT in 16 bits: feed-forward of 4h with GELU, as many kv heads as heads, dropout masks of one byte, and
    scores kept (an attention that keeps none is 'selective').
    Source: Korthikanti et al. 2022, Table 2; section 4.2.2 (what is gathered again).
    Raises: ValueError for an unknown way to recompute.
    """
    if recompute not in get_args(KorthikantiRecompute):
        way_out = f"choose one of {', '.join(get_args(KorthikantiRecompute))}"
        rule = "not a known way"
        raise ValueError(four_parts("korthikanti_layer_bytes", f"recompute={recompute!r}", rule, way_out))
    sbh = sequence * batch * config.hidden_size
    if recompute == "full":
        return float(2 * sbh)
    whole = 10 if not sequence_parallel else 4 if keep_gathered else 0
    scores = 5 * config.n_heads * sequence**2 * batch / tp
    return whole * sbh + (34 - whole) * sbh / tp + (scores if recompute == "none" else 0)


def korthikanti_first_stage_bytes(
    config: ModelConfig,
    *,
    batch: int,
    sequence: int,
    tp: int = 1,
    pp: int = 1,
    chunks: int = 1,
    recompute: KorthikantiRecompute = "none",
) -> float:
    """Bytes on the first of pp stages under 1F1B, where activations of all L layers are in flight.

    With `chunks` > 1 model chunks a stage (interleaved), the layers count 1 + (p - 1)/(p chunks) times. The
    embedding's dropout mask adds sbhp/t, the head of a model in one stage 4sbh/t (1 + v/h).
    Assumes sequence parallelism, and what `korthikanti_layer_bytes` does.
    Source: Korthikanti et al. 2022, section 4.3.
    """
    layer = korthikanti_layer_bytes(
        config, batch=batch, sequence=sequence, tp=tp, sequence_parallel=True, recompute=recompute
    )
    sbh = sequence * batch * config.hidden_size
    head = 4 * sbh / tp * (1 + config.vocab_size / config.hidden_size) if pp == 1 else 0
    return config.n_layers * layer * interleaving_memory(pp=pp, chunks=chunks) + sbh * pp / tp + head


def interleaving_memory(*, pp: int, chunks: int) -> float:
    """How many times the activations of 1F1B the interleaved schedule keeps: 1 + (p - 1)/(p v) with v chunks.

    Source: Korthikanti et al. 2022, section 4.3; Narayanan et al. 2021, section 2.2 (the schedule).
    """
    return 1 + (pp - 1) / (pp * chunks) if chunks > 1 else 1.0
