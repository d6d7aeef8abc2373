"""What autograd keeps of a decoder between forward and backward, tensor by tensor.

Exact for `course_lib.models.decoder.Decoder` with an attention that keeps no scores, as PyTorch's CPU and flash
kernels do. e is the bytes of one number of the model, D the size of one head, usually H/A, T = B S the tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, replace
from typing import Literal

from course_lib.config import ModelConfig, ParallelConfig
from course_lib.config.parallel import Piece
from course_lib.errors import four_parts

Recompute = Literal["none", "layers"]
Sharing = Literal["tp", "sequence", "gathered", "nothing"]
HALF, _FP32, _INT64 = 2, 4, 8  # bytes of a number; HALF is bf16
_PIECES: dict[str, Piece] = {  # what tensors are inside of that tp ranks divide; all others are attention's
    **dict.fromkeys(("gate", "silu(gate)", "up", "gated", "gelu(up)"), "ffn"),
    "log-probabilities": "head",
}

_PIECES_OF: dict[str, Piece] = {  # by their first word
    "expert": "experts",
    **dict.fromkeys(("shared", "shared_ffn"), "shared_ffn"),
    "ffn": "ffn",
    "head": "head",
}


@dataclass(frozen=True, kw_only=True)
class Saved:
    """One tensor that backward will read.

    `shared_by` says which ranks divide it between them: the tensor-parallel ones; those only with sequence
    parallelism; the same, unless the whole is kept after it was gathered; or none.
    """

    name: str
    elements: int
    itemsize: int
    shared_by: Sharing
    heads: int | None = None  # that are not cut: of fewer than ranks, several ranks keep the same

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.elements * self.itemsize

    def on_rank(self, parallel: ParallelConfig, *, keep_gathered: bool = False) -> int:
        """Bytes on one tensor-parallel rank."""
        whole = self.shared_by == "nothing" or (self.shared_by == "gathered" and keep_gathered)
        needs_sequence = self.shared_by in ("sequence", "gathered")
        if whole or (needs_sequence and not parallel.sequence_parallel):
            return self.nbytes
        return -(-self.nbytes // min(parallel.tp, self.heads or parallel.tp))


def bytes_on_rank(kept: Iterable[Saved], parallel: ParallelConfig, *, keep_gathered: bool = False) -> int:
    """Bytes of all these tensors on one tensor-parallel rank."""
    return sum(saved.on_rank(parallel, keep_gathered=keep_gathered) for saved in kept)


def left_whole(kept: Iterable[Saved], whole: Set[Piece]) -> Iterator[Saved]:
    """The same where some blocks are not cut: what ranks would divide inside one, each has all of."""
    for saved in kept:
        piece = _PIECES_OF.get(re.split(r"[ .]", saved.name)[0]) or _PIECES.get(saved.name, "attention")
        inside = piece in whole and saved.shared_by in ("tp", "gathered")
        yield replace(saved, shared_by="nothing") if inside else saved


def is_llama(config: ModelConfig) -> bool:
    """Whether the layers are a Llama's: RMSNorm before each block, rotary positions, a gated block, no experts."""
    shape = (config.norm, config.norms_per_layer, config.positions, config.gated_ffn, config.n_experts)
    return shape == ("rms", 2, "rotary", True, 1) and config.qk_norm == "none" and config.latent is None


def is_counted(config: ModelConfig) -> bool:
    """Whether `layer_activations` knows the layers: one block in each, whatever heads, norms and positions."""
    return config.n_experts == 1


def layer_activations(
    config: ModelConfig, *, batch: int, sequence: int, itemsize: int, fused_norms: bool = False
) -> tuple[Saved, ...]:
    """The tensors that one layer keeps: T(e(2 H + 2 A D + 2 kv + 4 F) + 16 H + 4 A + 8) + 4 S D e bytes on a CPU.

    So for a Llama; the block of a GPT has two tensors of F numbers a token in place of four. A composite RMSNorm keeps
    its input and the normalised numbers in fp32; a fused one (PyTorch on a GPU) keeps its input as it is, which takes
    2 H e instead of 16 H. Norms of queries and keys, norms after the blocks and latent attention keep what they read.
    Raises: ValueError for a size below 1, or layers of experts.
    """
    if not is_counted(config):
        rule, way_out = "the tensors are those of one block, and experts have others", "use explorer_activation_bytes"
        raise ValueError(four_parts("layer_activations", config.name, rule, way_out))
    tokens, ffn, e = batch * sequence, config.ffn_size, itemsize
    inner = ("gate", "silu(gate)", "up", "gated") if config.gated_ffn else ("up", "gelu(up)")
    return (
        *attention_activations(config, batch=batch, sequence=sequence, itemsize=e, fused_norms=fused_norms),
        Saved(name="ffn input", elements=tokens * config.hidden_size, itemsize=e, shared_by="gathered"),
        *(Saved(name=name, elements=tokens * ffn, itemsize=e, shared_by="tp") for name in inner),
    )


def attention_activations(
    config: ModelConfig, *, batch: int, sequence: int, itemsize: int, fused_norms: bool = False
) -> tuple[Saved, ...]:
    """What attention and a layer's norms keep, whatever its feed-forward blocks are.

    Raises: ValueError for a size below 1.
    """
    _check_sizes(batch=batch, sequence=sequence, itemsize=itemsize)
    tokens, H, e = batch * sequence, config.hidden_size, itemsize
    others = ("ffn norm", "norm after attention", "norm after ffn")[: config.norms_per_layer - 1]
    heads = _latent_heads if config.latent is not None else _heads
    turned = config.latent.rotary_size if config.latent is not None else config.head_size
    angles = Saved(name="rotations", elements=4 * sequence * turned, itemsize=e, shared_by="nothing")
    return (
        *_norm("attention norm", config, tokens, e, fused_norms),
        Saved(name="attention input", elements=tokens * H, itemsize=e, shared_by="gathered"),
        *heads(config, tokens, e, fused_norms),
        *((angles,) if config.positions == "rotary" else ()),
        Saved(name="attention output", elements=tokens * config.mixed_size, itemsize=e, shared_by="tp"),
        Saved(name="log-sum-exp of scores", elements=tokens * config.n_heads, itemsize=_FP32, shared_by="tp"),
        *(saved for name in others for saved in _norm(name, config, tokens, e, fused_norms)),
    )


def _heads(config: ModelConfig, tokens: int, itemsize: int, fused: bool) -> Iterator[Saved]:
    """Queries, keys and values as the scores read them, and what the norms of the first two read."""
    yield Saved(name="query", elements=tokens * config.query_size, itemsize=itemsize, shared_by="tp")
    for name in ("key", "value"):
        numbers, kv_heads = tokens * config.kv_size, config.n_kv_heads
        yield Saved(name=name, elements=numbers, itemsize=itemsize, shared_by="tp", heads=kv_heads)
    for name, width, count in (
        ("query", config.query_size, config.n_heads),
        ("key", config.kv_size, config.n_kv_heads),
    ):
        if config.qk_norm != "none":
            each = config.head_size if config.qk_norm == "head" else width
            for saved in _rms(f"{name} norm", tokens * width // each, each, itemsize, fused, "tp"):
                yield replace(saved, heads=count)


def _latent_heads(config: ModelConfig, tokens: int, itemsize: int, fused: bool) -> Iterator[Saved]:
    """What the maps up read, which every tp rank has whole, and the heads that they give.

    The values are a part of what comes up with the keys, so that all of it stays.
    """
    latent = config.latent
    assert latent is not None
    ranks = {"latent": latent.kv_rank} | ({"query latent": latent.query_rank} if latent.query_rank else {})
    for name, rank in ranks.items():
        yield from _rms(f"{name} norm", tokens, rank, itemsize, fused, "nothing")
        yield Saved(name=name, elements=tokens * rank, itemsize=itemsize, shared_by="nothing")
    up = config.n_heads * (latent.plain_size + latent.value_size)
    for name, width in {"query": config.query_size, "key": config.query_size, "key and value": up}.items():
        yield Saved(name=name, elements=tokens * width, itemsize=itemsize, shared_by="tp")


def head_activations(
    config: ModelConfig, *, batch: int, sequence: int, itemsize: int, fused_norms: bool = False
) -> tuple[Saved, ...]:
    """The tensors that embedding, last norm, head and loss keep.

    Cross-entropy keeps the logarithms of the probabilities in the format of the logits, (T, V): a model that turns
    its logits into fp32 first has itemsize 4 there.
    Raises: ValueError for a size below 1.
    """
    _check_sizes(batch=batch, sequence=sequence, itemsize=itemsize)
    tokens, H, e = batch * sequence, config.hidden_size, itemsize
    rows = Saved(name="positions", elements=sequence, itemsize=_INT64, shared_by="nothing")  # of a table
    return (
        Saved(name="tokens", elements=tokens, itemsize=_INT64, shared_by="nothing"),
        *((rows,) if config.positions == "learned" else ()),
        *_norm("last norm", config, tokens, e, fused_norms),
        Saved(name="head input", elements=tokens * H, itemsize=e, shared_by="gathered"),
        Saved(name="log-probabilities", elements=tokens * config.vocab_size, itemsize=e, shared_by="tp"),
        Saved(name="targets", elements=tokens, itemsize=_INT64, shared_by="nothing"),
    )


def checkpointed_activations(
    config: ModelConfig, *, batch: int, sequence: int, itemsize: int, partitioned: bool = False
) -> tuple[Saved, ...]:
    """What a layer keeps that is recomputed in backward: its input alone, of which tp ranks may keep a piece each.

    Source: Rajbhandari et al. 2020, ZeRO, section 6.1 (partitioned).
    Raises: ValueError for a size below 1.
    """
    _check_sizes(batch=batch, sequence=sequence, itemsize=itemsize)
    numbers = batch * sequence * config.hidden_size
    shared: Sharing = "tp" if partitioned else "sequence"
    return (Saved(name="layer input", elements=numbers, itemsize=itemsize, shared_by=shared),)


def activation_bytes(
    config: ModelConfig,
    *,
    batch: int,
    sequence: int,
    itemsize: int,
    recompute: Recompute = "none",
    fused_norms: bool = False,
) -> int:
    """What a whole decoder keeps when forward and loss are done.

    Where layers compute again each keeps its input, and all layers share one tensor of rotary angles in fp32.
    Raises: ValueError for a size below 1, or layers of another shape that keep more than their input.
    """
    if recompute == "layers":
        layer = checkpointed_activations(config, batch=batch, sequence=sequence, itemsize=itemsize)
    else:
        layer = layer_activations(config, batch=batch, sequence=sequence, itemsize=itemsize, fused_norms=fused_norms)
    head = head_activations(config, batch=batch, sequence=sequence, itemsize=itemsize, fused_norms=fused_norms)
    shared = _FP32 * sequence * config.head_size // 2 if recompute == "layers" and config.positions == "rotary" else 0
    return sum(saved.nbytes for saved in (*layer * config.n_layers, *head)) + shared


def _norm(name: str, config: ModelConfig, tokens: int, itemsize: int, fused: bool) -> Iterator[Saved]:
    """Of the stream between the blocks."""
    if config.norm == "rms":
        yield from _rms(name, tokens, config.hidden_size, itemsize, fused, "sequence")
        return
    of_token = _FP32 if fused else itemsize  # a CPU's LayerNorm keeps them in the model's format
    yield Saved(name=f"{name}: input", elements=tokens * config.hidden_size, itemsize=itemsize, shared_by="sequence")
    yield Saved(name=f"{name}: mean and 1/std", elements=2 * tokens, itemsize=of_token, shared_by="sequence")


def _rms(name: str, rows: int, width: int, itemsize: int, fused: bool, shared: Sharing) -> Iterator[Saved]:
    """Of so many rows, each of which is normalised by itself."""
    if fused:
        yield Saved(name=f"{name}: input", elements=rows * width, itemsize=itemsize, shared_by=shared)
    else:
        yield Saved(name=f"{name}: input in fp32", elements=rows * width, itemsize=_FP32, shared_by=shared)
        yield Saved(name=f"{name}: normalised in fp32", elements=rows * width, itemsize=_FP32, shared_by=shared)
    yield Saved(name=f"{name}: 1/rms", elements=rows, itemsize=_FP32, shared_by=shared)


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(four_parts("activations", f"{name}={size}", f"{name} is positive", f"give {name} >= 1"))
