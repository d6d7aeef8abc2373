"""The technique of tensor parallelism: the ranks along "tp" share the matrices of every layer."""

from __future__ import annotations

from typing import Any, get_args

from torch import Tensor, nn

from course_lib.errors import four_parts
from course_lib.models.decoder import Decoder, rotary_angles
from course_lib.parallel.data import replicate as broadcast
from course_lib.parallel.table.layout import Layout
from course_lib.parallel.tensors.conjugate import Operators
from course_lib.parallel.tensors.cutting import AXIS, TensorParallel
from course_lib.parallel.tensors.dropout import spread_dropout
from course_lib.parallel.tensors.plan import plan_for
from course_lib.parallel.tensors.region import SEQUENCE, Region, SequenceParallel
from course_lib.parallel.tensors.styles import Plan, styles_of
from course_lib.parallel.tensors.vocabulary import check_words, vocab_parallel_cross_entropy
from course_lib.training.batches import IGNORED
from course_lib.training.engine import Ends
from course_lib.training.setup import Setup, Technique


def tensor(
    plan: Plan | None = None,
    *,
    sequence_parallel: SequenceParallel | None = None,
    algorithm: str = "ring",
) -> Technique:
    """The ranks along "tp" share the modules that `plan` names, by default that of `plan_for`.

    With `sequence_parallel` they also share what lies between the blocks, each with some positions of the sequence;
    "keep" keeps a block's gathered input for backward, "regather" gathers it again there.

    Cost: `course_lib.costs.comm.tensor`.
    Raises: ValueError for another form of sequence parallelism, and, the same on all ranks, for a plan that does not
        fit the model, and for sequence parallelism of another model than a decoder whose vocabulary is cut.
    """
    if sequence_parallel not in (None, *get_args(SequenceParallel)):
        rule = "a block's gathered input is kept until backward, or gathered again there"
        values, way_out = f"sequence_parallel={sequence_parallel!r}", "choose 'keep' or 'regather', or leave it out"
        raise ValueError(four_parts("tensor", values, rule, way_out))

    def apply(setup: Setup) -> None:
        setup.begin("tensor", AXIS)
        local, model = setup.local, setup.model
        styles = styles_of(model, plan_for(model) if plan is None else plan)
        operators = Operators(group=local.group(AXIS), algorithm=algorithm)
        region = Region(operators=operators, sequence_parallel=sequence_parallel)
        broadcast.broadcast_state(model, operators.group, local.name_of(**{**local.at, AXIS: 0}))
        cutting = TensorParallel(model, local.layout, local.at, region)
        cutting.cut(styles)
        spread_dropout(model, styles, region)
        if cutting.words is not None:
            _cut_logits(setup.engine.ends, operators, cutting.words, cutting.vocab_size)
        if sequence_parallel:
            _spread(model, local.layout, region, setup.engine.ends, cutting.words)
            setup.shares_positions = True

    return apply


def _cut_logits(ends: Ends, operators: Operators, words: range, vocab_size: int) -> None:
    """Compute the loss of this rank's logits; put them together only where somebody asks for the output."""

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        check_words("vocab_parallel_cross_entropy", targets[targets != IGNORED], vocab_size)
        return vocab_parallel_cross_entropy(logits, targets, operators, words).sum()

    def whole(logits: Tensor) -> Tensor:
        return operators.gathered(logits, -1, vocab_size)

    ends.loss, ends.whole = loss, whole


def _spread(model: nn.Module, layout: Layout, region: Region, ends: Ends, words: range | None) -> None:
    """Between blocks let each rank have some positions: from the embedding, which adds up its terms, to the head."""
    if not isinstance(model, Decoder) or words is None or not layout.places["embedding.weight"].shard:
        values = f"a {type(model).__name__}{' whose plan leaves the vocabulary whole' * isinstance(model, Decoder)}"
        rule = "the sequence is cut where the embedding adds up its terms, and gathered by the head"
        raise ValueError(four_parts("tensor", values, rule, "give a Decoder and its own plan, or no sequence_parallel"))
    operators, config = region.operators, model.config

    def told(inputs: Tensor) -> None:
        region.length = inputs.shape[SEQUENCE]

    def of_whole_sequence(_: nn.Module, args: Any) -> Any:
        """What a stage takes for the sequence is its input's length; attention sees all of it."""
        x, angles = args
        if angles is not None and len(angles) != region.length:
            angles = rotary_angles(region.length, config.head_size, x.device, config.rotary_base)
        return x, angles

    ends.told, ends.boundary = told, lambda x: operators.cut(x, SEQUENCE)
    for layer in model.layers:
        layer.get_submodule("attention").register_forward_pre_hook(of_whole_sequence)
    if model.positions is not None:
        model.positions.register_forward_hook(lambda _, args, y: operators.scatter_to_region(y, 0))
    for name in layout.trained:
        place = layout.places[name]
        if AXIS not in place.shard and not name.startswith("positions"):  # of those scattering gathers the gradient
            layout.write(name, partial=place.partial | {AXIS})
