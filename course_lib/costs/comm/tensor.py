"""What tensor parallelism sends: every collective of a decoder's step, and its bytes on each of the tp ranks.

Two places make ranks talk. Where activations *enter* matrices that are cut by columns, each rank's backward finds a
part of their gradient. Where they *leave* matrices that are cut by rows, each rank's forward finds a part of a sum. A
block (attention, feed-forward) enters and leaves; the embedding only leaves, the head only enters. Sequence
parallelism keeps a piece of the sequence between the blocks, and sends an all-reduce's two halves at different places.

    place   without                  sequence parallelism
    enter   backward all_reduce      forward all_gather, backward reduce_scatter ("regather": one more all_gather)
    leave   forward all_reduce       forward reduce_scatter, backward all_gather

Layers that are recomputed send once more in backward what they sent in forward; if each rank keeps a piece of their
input (ZeRO-R), that is gathered before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from course_lib.config import ModelConfig
from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.traffic import CommTime
from course_lib.costs.model.kv_cache import kv_heads_on_rank
from course_lib.costs.model.parameters import Weight, layer_weights, outer_weights
from course_lib.costs.model.units import Shape
from course_lib.errors import four_parts
from course_lib.split import split_sizes

When = Literal["forward", "backward", "step"]  # with every micro-batch, or once a step
SequenceParallel = Literal["keep", "regather"]  # what a block keeps of its input: all that was gathered, or its piece
_Recompute = Literal["none", "full", "partitioned"]  # layers keep everything, their input, or each rank a piece of that


@dataclass(frozen=True, kw_only=True)
class TensorRow:
    """One row of the table: a call of the tp ranks, and how often they make it.

    An "exchange" is no collective: the `copies` of a kv head send each other their parts of a gradient, and add them.
    """

    where: str
    when: When
    operation: Literal["all_reduce", "all_gather", "reduce_scatter", "exchange"]
    shape: Shape  # of the whole tensor
    times: int = 1
    cut: int | None = None  # the dim along which a gather or a scatter cuts it
    copies: int = 1

    def traffic(self, *, tp: int, itemsize: int, algorithm: str = "ring") -> CommTime:
        """What one call sends; `algorithm` is that of all-reduces, a gather or a scatter goes round the ring."""
        if self.operation == "exchange":
            return self._exchange(tp, itemsize)
        length = prod(self.shape) if self.cut is None else self.shape[self.cut]
        return comm_time(
            self.operation,
            algorithm if self.operation == "all_reduce" else "ring",
            world_size=tp,
            length=length,
            itemsize=itemsize * prod(self.shape) // length,
        )

    def _exchange(self, tp: int, itemsize: int) -> CommTime:
        """Each copy's part goes to the others straight away, as in a naive all-gather; all kv heads do so at once."""
        one = comm_time(
            "all_gather",
            "naive",
            world_size=self.copies,
            length=self.copies,
            itemsize=itemsize * prod(self.shape),
        )
        heads = tp // self.copies
        return CommTime(
            sent_bytes=one.sent_bytes * heads,
            received_bytes=one.received_bytes * heads,
            messages=one.messages * heads,
            path=one.path,
        )

    def __str__(self) -> str:
        shape = ", ".join(f"{size:,}" for size in self.shape)
        return f"{self.where:<22} {self.when:<8} {self.times:>4} x {self.operation:<14} ({shape})"


def rows_traffic(rows: Iterable[TensorRow], *, tp: int, itemsize: int = 4, algorithm: str = "ring") -> CommTime:
    """What these rows send together, one after the other."""
    total = CommTime.nothing(tp)
    for row in rows:
        total += row.traffic(tp=tp, itemsize=itemsize, algorithm=algorithm) * row.times
    return total


def tensor_step(
    config: ModelConfig,
    *,
    tp: int,
    batch: int,
    sequence: int,
    itemsize: int = 4,
    sequence_parallel: SequenceParallel | None = None,
    recompute: _Recompute = "none",
    algorithm: str = "ring",
    microbatches: int = 1,
) -> CommTime:
    """What forward and backward of a training step send, the gradient's norm and the loss's report apart.

    The step's `batch` is cut in `microbatches`, as `torch.tensor_split` does. All weights are trained.
    Raises: ValueError as `tensor_rows`, and for more micro-batches than sequences.
    """
    if not 1 <= microbatches <= batch:
        values, rule = f"microbatches={microbatches}, batch={batch}", "each micro-batch has a sequence"
        raise ValueError(four_parts("tensor_step", values, rule, f"choose microbatches in 1..{batch}"))

    def traffic(size: int, *, once: bool) -> CommTime:
        rows = tensor_rows(
            config,
            tp=tp,
            batch=size,
            sequence=sequence,
            sequence_parallel=sequence_parallel,
            recompute=recompute,
        )
        wanted = (row for row in rows if (row.when == "step") == once)
        return rows_traffic(wanted, tp=tp, itemsize=itemsize, algorithm=algorithm)

    total = traffic(batch, once=True)
    for size, count in Counter(split_sizes(batch, microbatches)).items():
        total += traffic(size, once=False) * count
    return total


def tensor_rows(
    config: ModelConfig,
    *,
    tp: int,
    batch: int,
    sequence: int,
    sequence_parallel: SequenceParallel | None = None,
    recompute: _Recompute = "none",
) -> tuple[TensorRow, ...]:
    """The whole table for one micro-batch of `batch` sequences: forward, then backward from the loss to the embedding,
    then what is done once a step.

    Source: Shoeybi et al. 2019, section 3 (blocks, embedding, loss); Korthikanti et al. 2022, section 4.2.2 (sequence
    parallelism, whose second gather is "regather"); Rajbhandari et al. 2020, ZeRO, section 6.1 (partitioned).
    Raises: ValueError for a size below 1, heads that tp cannot share, experts or latent attention, and for partitioned
        inputs with sequence parallelism, under which they are pieces.
    """
    _check(config, batch=batch, sequence=sequence)
    copies = tp * kv_heads_on_rank(config, tp) // config.n_kv_heads
    hidden, layers = (batch, sequence, config.hidden_size), config.n_layers
    of_layers = (
        *_enter("attention", hidden, layers, sequence_parallel),
        *_norms_of_heads(config, hidden[:2]),
        *_leave("attention", hidden, layers, sequence_parallel),
        *_enter("feed-forward", hidden, layers, sequence_parallel),
        *_leave("feed-forward", hidden, layers, sequence_parallel),
    )
    passes = (
        *_leave("embedding", hidden, 1, sequence_parallel),
        *_positions(config, sequence, sequence_parallel),
        *of_layers,
        *_again(of_layers, recompute, prod(hidden), layers, sequence_parallel),
        *_enter("head", hidden, 1, sequence_parallel),
        TensorRow(where="loss", when="forward", operation="all_reduce", shape=hidden[:2], times=3),
    )
    return (*_there_and_back(passes), *_gradients_in_parts(config, tp, copies, sequence_parallel is not None))


def block_rows(
    where: str,
    inputs: Shape,
    outputs: Shape,
    *,
    times: int = 1,
    sequence_parallel: SequenceParallel | None = None,
    input_gradient: bool = True,
) -> tuple[TensorRow, ...]:
    """A block from `inputs` to `outputs`: first matrices cut by columns, then one cut by rows, anything between.

    A model's own input needs no gradient: without `input_gradient` its backward sends nothing for it.
    Shapes: (..., features); with sequence parallelism (B, S, H), cut along S.
    """
    enter = _enter(where, inputs, times, sequence_parallel, input_gradient)
    return _there_and_back((*enter, *_leave(where, outputs, times, sequence_parallel)))


def _there_and_back(rows: Sequence[TensorRow]) -> tuple[TensorRow, ...]:
    """Rows by place, in the order of time."""
    backward = (row for row in reversed(rows) if row.when == "backward")
    return (*(row for row in rows if row.when == "forward"), *backward)


def _enter(
    where: str, shape: Shape, times: int, kept: SequenceParallel | None, input_gradient: bool = True
) -> Iterator[TensorRow]:
    """Activations that matrices cut by columns read."""
    if kept is None:
        if input_gradient:
            yield TensorRow(where=where, when="backward", operation="all_reduce", shape=shape, times=times)
        return
    yield TensorRow(where=where, when="forward", operation="all_gather", shape=shape, times=times, cut=1)
    if input_gradient:
        yield TensorRow(where=where, when="backward", operation="reduce_scatter", shape=shape, times=times, cut=1)
    if kept == "regather":  # before that: the weights' gradient needs all of the input again
        yield TensorRow(where=where, when="backward", operation="all_gather", shape=shape, times=times, cut=1)


def _leave(where: str, shape: Shape, times: int, kept: SequenceParallel | None) -> Iterator[TensorRow]:
    """Parts of a sum that a matrix cut by rows leaves."""
    if kept is None:
        yield TensorRow(where=where, when="forward", operation="all_reduce", shape=shape, times=times)
        return
    yield TensorRow(where=where, when="forward", operation="reduce_scatter", shape=shape, times=times, cut=1)
    yield TensorRow(where=where, when="backward", operation="all_gather", shape=shape, times=times, cut=1)


def _again(
    of_layers: Iterable[TensorRow], recompute: _Recompute, numbers: int, layers: int, kept: SequenceParallel | None
) -> Iterator[TensorRow]:
    """What layers send that are recomputed, before they go backward; the last comes first."""
    if recompute == "none":
        return
    yield from reversed([replace(row, when="backward") for row in of_layers if row.when == "forward"])
    if recompute == "partitioned":
        if kept is not None:
            values, rule = f"recompute={recompute!r}, sequence_parallel={kept!r}", "a layer's input is a piece already"
            raise ValueError(four_parts("tensor_rows", values, rule, "choose recompute='full'"))
        yield TensorRow(
            where="layer input", when="backward", operation="all_gather", shape=(numbers,), times=layers, cut=0
        )


def _positions(config: ModelConfig, sequence: int, kept: SequenceParallel | None) -> Iterator[TensorRow]:
    """With a piece of the sequence, a rank adds and finds the gradient of its rows of the table alone."""
    if config.positions == "learned" and kept is not None:
        shape = (sequence, config.hidden_size)
        yield TensorRow(where="positions", when="backward", operation="all_gather", shape=shape, cut=0)


def _norms_of_heads(config: ModelConfig, tokens: Shape) -> Iterator[TensorRow]:
    """A norm of all heads together needs a number of each token from every rank: its squares, and in backward the
    gradient's share along the normalised numbers."""
    if config.qk_norm == "full":
        for when in ("forward", "backward"):
            times = 2 * config.n_layers
            yield TensorRow(where="norms of q and k", when=when, operation="all_reduce", shape=tokens, times=times)


def _gradients_in_parts(config: ModelConfig, tp: int, copies: int, sequence_parallel: bool) -> Iterator[TensorRow]:
    """Once a step: the gradients of which several ranks have terms, as one row for all that the same ranks share.

    Each copy of a kv head serves its rank's queries; where some ranks alone have one, they send each other the terms.
    """

    def parts(weights: Sequence[Weight]) -> int:
        return sum(weight.parameters for weight in weights if _is_left_in_parts(weight, config, sequence_parallel))

    numbers = config.n_layers * parts(layer_weights(config)) + parts(outer_weights(config))
    if copies == tp > 1:
        numbers += _of_kv_head(config)
    elif copies > 1:
        shape = (_of_kv_head(config),)
        yield TensorRow(where="copies of kv heads", when="step", operation="exchange", shape=shape, copies=copies)
    if numbers:
        yield TensorRow(where="replicated weights", when="step", operation="all_reduce", shape=(numbers,))


def _of_kv_head(config: ModelConfig) -> int:
    """Numbers that make one head's keys and values, in all layers."""
    weights = 2 * config.hidden_size  # of k and of v, for each of the head's numbers
    biases = 2 * ("qkv" in config.biases)
    norm = int(config.qk_norm == "full")  # of k
    return config.n_layers * config.head_size * (weights + biases + norm)


def _is_left_in_parts(weight: Weight, config: ModelConfig, sequence_parallel: bool) -> bool:
    """The norm of each head meets its rank's heads; what stands between the blocks, a piece of the sequence."""
    if weight.name in ("attention.query_norm", "attention.key_norm"):
        return config.qk_norm == "head"  # a norm of all heads is cut as they are
    return sequence_parallel and weight.split is None and weight.name != "positions"


def _check(config: ModelConfig, **sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(four_parts("tensor_rows", f"{name}={size}", f"{name} is positive", f"give {name} >= 1"))
    config.check_sequence(sizes["sequence"])
    if config.n_experts > 1 or config.latent is not None:
        rule = "the rows are those of one feed-forward block and of heads with keys and values"
        raise ValueError(four_parts("tensor_rows", config.name, rule, "choose a model without experts and latent"))
