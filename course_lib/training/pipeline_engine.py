"""How a rank of a pipeline computes outputs and gradients: its stages, in the order of a schedule."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib import comm
from course_lib.errors import four_parts
from course_lib.parallel.data.stage_reducer import StageReducer
from course_lib.parallel.pipelines import stages
from course_lib.parallel.pipelines.executor import Pipeline
from course_lib.parallel.sharding.stage_rows import StageRows
from course_lib.training.engine import Engine, Loss


class PipelineEngine(Engine):
    """Runs a pipeline's schedule; `skeletons` are the model's stages without their numbers.

    `reducer` averages the gradients of each stage, once they are complete, over the ranks that hold the same stages.
    """

    def __init__(self, pipeline: Pipeline, skeletons: Sequence[nn.Module], group: ProcessGroup) -> None:
        super().__init__(nn.ModuleDict({str(n): stage for n, stage in pipeline.stages.items()}), 1)
        self.pipeline, self.skeletons, self.group = pipeline, skeletons, group
        self.schedule = pipeline.schedule
        self.n_microbatches = self.schedule.n_microbatches
        self.last_rank = self.schedule.rank_of(self.schedule.n_stages - 1)
        self.reducer: StageReducer | StageRows | None = None
        self._shapes: dict[tuple[torch.Size, torch.dtype], list[Tensor]] = {}

    @property
    def last(self) -> dict[str, int]:
        """The last stage's ranks."""
        return {"pp": self.last_rank}

    def check_rows(self, rows: Sequence[float]) -> None:
        """Refuse a share with fewer rows than micro-batches: every entry of the lists needs one.

        Raises: ValueError, the same on all ranks.
        """
        least, m = int(min(rows)), self.n_microbatches
        if least < m:
            values = f"{least} samples{' in a share' * (len(rows) > 1)}, {m} micro-batches"
            way_out = f"give at least {m * len(rows)} samples, or choose n_microbatches <= {least}"
            raise ValueError(four_parts("stages", values, "every micro-batch has a sample", way_out))

    def output(self, inputs: Tensor) -> Tensor:
        """The output for a share, which passes the stages in one piece, on every rank of the pipeline."""
        whole = self.passed_on(inputs)[-1]  # of all positions, where ranks share them
        mine = self.ends.mine(inputs)
        self.ends.told(mine)
        output = self.pipeline.forward(mine, self.passed_on(mine))
        last = self.pipeline.peer(self.schedule.n_stages - 1)
        mine = self.ends.whole(output) if dist.get_rank() == last else self.pipeline.room(whole)
        return comm.broadcast(mine.contiguous(), src=last, group=self.group)

    def run(self, inputs: Sequence[Tensor], loss: Loss) -> None:
        """Add the gradients of this rank's stages to `.grad`, averaged if there is a reducer."""
        if self.reducer is not None:
            self.reducer.prepare_for_backward()
        self.ends.told(inputs[0])  # micro-batches differ in their rows alone
        self.pipeline.run(inputs, [self.passed_on(x) for x in inputs], loss)
        if self.reducer is not None:
            self.reducer.finalize_backward()

    def shared(self, summed: float) -> float:
        """The last stage's loss. Cost: a broadcast of one number."""
        mine = torch.tensor([summed], dtype=torch.float64, device=self.pipeline.device)
        names = dist.get_process_group_ranks(self.group)
        of_stage = comm.broadcast(mine, src=names[self.last_rank], group=self.group).item()
        return self.ends.summed(of_stage)

    def passed_on(self, inputs: Tensor) -> list[Tensor]:
        """What each stage takes for such inputs; every rank finds it out for itself, once."""
        kind = (inputs.shape, inputs.dtype)
        if kind not in self._shapes:
            first, *between, last = stages.passed_on(self.skeletons, inputs)
            self._shapes[kind] = [first, *map(self.ends.boundary, between), last]
        return self._shapes[kind]
