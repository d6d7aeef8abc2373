"""What a rank keeps in a step of FSDP x TP by PyTorch's own code, at the instants among which the peak is.

The tp ranks of a node share every matrix, and with sequence parallelism what lies between the blocks; the dp ranks
share what is left of every unit, a block or the root, as FSDP2 does. T = B S are the tokens of a dp rank's batch.

    instant      beside what lasts from step to step, there are
    start        nothing
    loss         the root's unit; all that backward will read
    logits       the same, and what the loss's backward makes of the logits
    last block   root, this block and the next; gradients of the head and of the block's last matrix; what all layers
                 keep, with checkpointing also all that this one has; what its backward works with
    last but one the same without the last; the row of the block before, in which gradients are added up; and pieces
    second block the same, where two layers are left
    embedding    root, and its gradient, with tp > 1 of the whole vocabulary; the first block's row; pieces
    root         the root's gradient, and its row; pieces
    averaged     the root's row, and the piece of it that comes back; pieces
    gradients    pieces of all gradients

What embedding and head share has two gradients: the head's waits for the embedding's, and then both and their sum are
there. With dp > 1 PyTorch's loop over the gradients of a unit holds on to the last one while its row is averaged.

With offload what lasts, and the pieces of gradients, are in the host's memory. Kernels' own memory, the allocator's
gaps and NCCL's rooms are in none of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod

from course_lib.config import ModelConfig, ParallelConfig
from course_lib.costs.model.activations import (
    Saved,
    bytes_on_rank,
    checkpointed_activations,
    head_activations,
    layer_activations,
)
from course_lib.costs.model.conventions import Convention, find_convention
from course_lib.costs.model.step_memory import Moment
from course_lib.costs.model.units import UnitShapes, decoder_units

_FP32 = 4


@dataclass(frozen=True, kw_only=True)
class TwoAxes:
    """How a model is trained on dp x tp ranks, and what is assumed of the code that does it."""

    dp: int
    tp: int = 1
    batch: int = 1  # sequences of a dp rank at a time
    states: Convention = field(default_factory=lambda: find_convention("fp32"))  # bytes that last, of each parameter
    computing: int = 2  # bytes of a number as it is gathered and computed with
    reducing: int = 4  # and as gradients are added up
    logits: int = 4  # and of a logit in the loss
    logit_copies: int = 0  # of all logits, that somebody else still holds when backward begins
    checkpointing: bool = False  # each layer keeps its input and computes once more in backward
    offload: bool = False  # what lasts is in the host's memory
    sequence_parallel: bool = True  # the tp ranks share what lies between the blocks
    loss_parallel: bool = True  # and the logits
    overlap: bool = True  # in a block's backward the next one is gathered, and gradients of the one before added up
    score_bytes: int = 0  # that attention keeps of each score; a flash or memory-efficient kernel keeps none
    fused_norms: bool = False  # PyTorch's RMSNorm on a GPU; a CPU's keeps its input and result in fp32

    @property
    def parallel(self) -> ParallelConfig:
        """The degrees."""
        return ParallelConfig(dp=self.dp, tp=self.tp, sequence_parallel=self.sequence_parallel and self.tp > 1)


def two_axes_moments(config: ModelConfig, run: TwoAxes, *, sequence: int) -> dict[str, Moment]:
    """The instants by name, in their order.

    "start", "loss" and "gradients" are exact for a decoder on a CPU whose pieces last in fp32, as traces of the real
    code show, and the largest of all is its peak to 0.01 % in bf16. What scores, offload, copies of the logits and
    steps without overlap change is the formula's alone.
    Raises: ValueError if the model does not divide so, or its layers are of a shape that is not counted.
    """
    run.parallel.check(config, sequence=sequence)
    step = _Step(config, run, sequence)
    return {moment.name: moment for moment in step.moments()}


class _Step:
    """The bytes of each thing, then what is there when."""

    def __init__(self, config: ModelConfig, run: TwoAxes, sequence: int) -> None:
        self.config, self.run, self.sequence = config, run, sequence
        *self.blocks, self.root = _units(config, run.tp)
        self.tokens = run.batch * sequence
        self.logits = self.tokens * config.vocab_size // (run.tp if run.loss_parallel else 1)

    def moments(self) -> Iterator[Moment]:
        """In the order of a step."""
        run, blocks, root = self.run, self.blocks, self.run.computing * self._row(self.root)
        opening, rest = self._gradients_of_root()
        both = opening if self.config.tied else 0  # and their sum
        at_loss, row = self._kept(self.config.n_layers) + self._kept_by_head(), run.reducing * self._row(blocks[0])
        yield self._moment("start")
        yield self._moment("loss", gathered=root, activations=at_loss)
        yield self._moment("logits", gathered=root, activations=at_loss + self._of_logits() * run.logits * self.logits)
        yield self._at_block("last block", len(blocks) - 1, root)
        yield self._at_block("last but one", max(0, len(blocks) - 2), root)
        yield self._at_block("second block", min(1, len(blocks) - 1), root)
        yield self._moment("embedding", blocks, gathered=root, gradients=opening + rest + both, reducing=row)
        yield self._moment(
            "root",
            blocks,
            gradients=self.run.computing * self.root.numbers(trained=True),
            reducing=run.reducing * self._row(self.root),
        )
        last = self.run.computing * prod(self.root.trained[-1]) if run.dp > 1 else 0
        averaged = run.reducing * (self._row(self.root) + self._piece(self.root))
        yield self._moment("averaged", blocks, gradients=last, reducing=averaged)
        yield self._moment("gradients", [*blocks, self.root])

    def _of_logits(self) -> int:
        """The tensors that the backward of cross-entropy makes of them; PyTorch's of logits in parts makes one more."""
        return 3 if self.run.tp > 1 and self.run.loss_parallel else 2

    def _at_block(self, name: str, number: int, root: int) -> Moment:
        """Half-way through the feed-forward's backward, when its last matrix and its inner tensors have gradients."""
        run, config, block = self.run, self.config, self._row(self.blocks[number])
        reduced, ahead = self.blocks[number + 1 :], number > 0 and run.overlap
        down = config.ffn_size // run.tp * config.hidden_size
        inner = self.tokens * (2 * config.ffn_size // run.tp + config.hidden_size)
        return self._moment(
            name,
            reduced,
            gathered=root + run.computing * block * (1 + ahead),
            gradients=self._gradients_of_root()[1] + run.computing * down,
            reducing=run.reducing * block if reduced and run.overlap else 0,
            activations=self._kept(number + 1) + (self._layer() if run.checkpointing else 0) + run.computing * inner,
        )

    def _kept(self, layers: int) -> int:
        """What backward will read of so many layers."""
        run, config = self.run, self.config
        if not run.checkpointing:
            return layers * self._layer()
        kept = checkpointed_activations(config, batch=run.batch, sequence=self.sequence, itemsize=run.computing)
        angles = _FP32 * self.sequence * config.head_size // 2  # which all layers share
        return layers * bytes_on_rank(kept, run.parallel) + angles

    def _layer(self) -> int:
        """What one layer keeps, or with checkpointing that in which backward is."""
        run, config = self.run, self.config
        sizes = {"batch": run.batch, "sequence": self.sequence, "itemsize": run.computing}
        found = list(layer_activations(config, **sizes, fused_norms=run.fused_norms))
        if run.score_bytes:
            scores = self.tokens * self.sequence * config.n_heads
            found.append(Saved(name="scores", elements=scores, itemsize=run.score_bytes, shared_by="tp"))
        return bytes_on_rank(found, run.parallel, keep_gathered=True)

    def _kept_by_head(self) -> int:
        """Of last norm, head and loss; the loss and what it was divided by are two numbers."""
        run = self.run
        sizes = {"batch": run.batch, "sequence": self.sequence, "itemsize": run.computing}
        found = head_activations(self.config, **sizes, fused_norms=run.fused_norms)
        others = [saved for saved in found if saved.name not in ("tokens", "log-probabilities", "targets")]
        lasting = bytes_on_rank(others, run.parallel, keep_gathered=True)
        return lasting + run.logits * ((1 + run.logit_copies) * self.logits + 2)

    def _gradients_of_root(self) -> tuple[int, int]:
        """The embedding's and the others'. With tp > 1 PyTorch gives a rank all of an embedding's, then its part."""
        opening = sum(map(prod, self.root.opening))
        rest = self.root.numbers(trained=True) - (0 if self.config.tied else opening)
        whole = self.config.vocab_size * self.config.hidden_size if self.run.tp > 1 else 0
        return self.run.computing * (opening + whole), self.run.computing * rest

    def _moment(self, name: str, reduced: Sequence[UnitShapes] = (), **there: int) -> Moment:
        """What lasts, and what is there; the units that are `reduced` have pieces of gradients."""
        pieces = {} if self.run.offload else self._pieces(reduced)
        return Moment(name=name, **pieces, **there)

    def _pieces(self, reduced: Sequence[UnitShapes]) -> dict[str, int]:
        states = self.run.states
        lasting = sum(self._piece(unit) for unit in (*self.blocks, self.root))
        return {
            "weights": states.weights * lasting,
            "optimizer": states.optimizer * lasting,
            "gradient_pieces": states.gradients * sum(self._piece(unit) for unit in reduced),
        }

    def _piece(self, unit: UnitShapes) -> int:
        return self._row(unit) // self.run.dp

    def _row(self, unit: UnitShapes) -> int:
        """FSDP2 pads each tensor, so that all ranks have as many of its rows."""
        return unit.numbers(trained=True, shards=self.run.dp, padding="tensor")


@cache  # the longest sequence is looked for with the same ones
def _units(config: ModelConfig, tp: int) -> tuple[UnitShapes, ...]:
    return decoder_units(config, tp=tp)
