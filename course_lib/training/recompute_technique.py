"""The technique of activation checkpointing: layers keep their input alone, and compute a second time in backward.

trainer = Trainer(model, config, mesh=make_mesh(pp=2, dp=2), apply=(stages(schedule), recompute(), replicate()))
"""

from __future__ import annotations

from contextlib import nullcontext

from course_lib.errors import four_parts
from course_lib.parallel.tensors.conjugate import Operators
from course_lib.parallel.tensors.partitioned import in_pieces
from course_lib.savers.checkpointing import checkpoint_layers
from course_lib.savers.kept_results import Keep
from course_lib.training.parts_here import runs_of_layers
from course_lib.training.setup import Setup, Technique

_NAME = "recompute"


def recompute(*, group: int = 1, keep: Keep = "nothing", partitioned: bool = False) -> Technique:
    """Every `group` of layers keeps the input of its first one, and of all else the results that `keep` names.

    A group ends where a pipeline's stage ends. It comes after what cuts layers, whose messages are sent once more, and
    before what shares weights: these are gathered where layers compute again. With `partitioned` each rank along "tp"
    keeps a piece of what all have, the input (`parallel.tensors.partitioned`).

    Cost: `costs.model.checkpointing` in bytes; in messages those of a second forward, and with `partitioned` an
        all-gather of each input.
    Raises: ValueError for a group without layers and an unknown `keep`; with `partitioned` also without a tensor
        technique, and with sequence parallelism, under which an input is a piece already.
    """

    def apply(setup: Setup) -> None:
        setup.begin(_NAME)
        stored = in_pieces(_operators(setup)) if partitioned else nullcontext()
        for layers in runs_of_layers(setup):
            checkpoint_layers(layers, group=group, keep=keep, stored=stored)

    return apply


def _operators(setup: Setup) -> Operators:
    """Of the ranks that have the same input."""
    if "tensor" not in setup.applied or setup.shares_positions:
        values = "sequence parallelism" if setup.shares_positions else "no tensor technique"
        rule, way_out = "pieces are cut from an input that all ranks along tp have whole", "leave partitioned out"
        raise ValueError(four_parts(_NAME, f"partitioned with {values}", rule, way_out))
    return Operators(group=setup.local.group(setup.applied["tensor"]))
