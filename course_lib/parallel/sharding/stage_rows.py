"""ZeRO-1 under a pipeline: a stage's gradients are averaged when its last backward is through, each rank its piece.

Weights stay whole, so that nothing happens before; after the optimizer's step they are gathered from the pieces.
Source: Rajbhandari et al. 2020, ZeRO, section 5; Narayanan et al. 2021, Megatron-LM, section 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from torch import nn

from course_lib.parallel.pipelines.executor import Pipeline
from course_lib.parallel.sharding.flat_row import Sharing
from course_lib.parallel.sharding.units import sharing_of
from course_lib.parallel.sharding.zero import ResidentRow


class StageRows:
    """The rows of a pipeline's stages on this rank; train `pieces`, which are by name this rank's pieces of them.

    A row that two stages of this rank use is complete with the later one.
    """

    def __init__(self, pipeline: Pipeline, rows: Sequence[Mapping[str, nn.Parameter]], sharing: Sharing) -> None:
        # The stage whose backward is the last to add to a parameter's gradient.
        complete_with: dict[nn.Parameter, int] = {}
        for stage in sorted(pipeline.stages, key=pipeline.ends.__getitem__):
            for parameter in pipeline.stages[stage].parameters():
                complete_with[parameter] = stage
        self.rows: dict[int, list[ResidentRow]] = {stage: [] for stage in pipeline.stages}
        for row in rows:
            stages = [complete_with[parameter] for parameter in row.values()]
            last = max(stages, key=pipeline.ends.__getitem__)
            self.rows[last].append(ResidentRow(row, sharing_of(row, sharing)))
        self.all = list(chain(*self.rows.values()))
        self.pieces: dict[str, nn.Parameter] = {}
        for one in self.all:
            self.pieces |= one.pieces

    def prepare_for_backward(self) -> None:
        """Before a step: nobody waits for a step that raised."""
        for row in self.all:
            row.give_up()

    def mark_stage_ready(self, stage: int) -> None:
        """Start averaging what is complete with this stage, while others still compute."""
        for row in self.rows[stage]:
            row.reduce(async_op=True)

    def finalize_backward(self) -> None:
        """All stages are through: wait for the averages."""
        for row in self.all:
            row.finish_reduce()

    def updated(self) -> None:
        """After the optimizer's step: rows are gathered from the pieces."""
        for row in self.all:
            row.gather()
            row.wait()
