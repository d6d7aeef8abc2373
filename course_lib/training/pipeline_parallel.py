"""Training on several ranks, each with a part of the model's layers and every micro-batch of a batch."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib import comm
from course_lib.comm.call import resolve
from course_lib.config import TrainConfig
from course_lib.errors import four_parts
from course_lib.parallel import agreement, replicate, stages
from course_lib.parallel.pipeline import Pipeline
from course_lib.parallel.ties import Ties, canonical_names
from course_lib.schedules import Durations, Schedule, durations_by_rank, problems
from course_lib.split import split_sizes
from course_lib.training import step as steps
from course_lib.training.batches import Batch
from course_lib.training.data_parallel import on_first_rank
from course_lib.training.trainer import Trainer, check_counts, check_losses, write

OPERATION = "PipelineTrainer"


class PipelineTrainer(Trainer):
    """Cuts the model into stages and runs `schedule` on them; with one micro-batch it is plain model parallelism.

    `sizes` says how many layers each stage gets, as `parallel.stages.cut` takes them; without it they get equally
    many. `durations`, one for all ranks or for each, lets computations last that long, for the emulated clock.
    `module` is the model without its numbers; `model` holds this rank's stages.

    Cost: the first rank's weights are copied at the start. A step sends what `costs.pipeline_step` says, the
    loss (a broadcast of one number) and the gradient's norm (an all-reduce of one number).
    Raises: ValueError, the same on all ranks, if schedule, sizes, model and group do not fit each other.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        *,
        schedule: Schedule,
        sizes: Sequence[int] | None = None,
        durations: Durations | Sequence[Durations] | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        self.group = resolve(group, OPERATION)
        self.schedule, self.sizes = schedule, sizes
        self.durations = durations_by_rank(durations, schedule.n_ranks, operation=OPERATION) if durations else None
        self._shapes: dict[tuple[torch.Size, torch.dtype], list[Tensor]] = {}
        super().__init__(model, config)

    def wrap(self, model: nn.Module) -> nn.ModuleDict:
        """Cut the model, and keep this rank's stages."""
        lists = zlib.crc32(repr(self.schedule).encode())
        same = {"schedule": f"{self.schedule.name} (lists {lists:x})", "sizes": self.sizes, "config": self.config}
        agreement.same_model(OPERATION, model, same, self.group)
        check_schedule(self.schedule, self.group.size(), self.config.accumulation)
        sizes = self.sizes or split_sizes(len(stages.layers_of(model)), self.schedule.n_stages)
        self.module = stages.skeleton(model)
        self.skeletons = stages.cut(self.module, sizes)
        replicate.broadcast_state(model, self.group, dist.get_process_group_ranks(self.group)[0])
        all_stages = stages.cut(model, sizes)
        mine = {number: all_stages[number] for number in self.schedule.stages_of(self.group.rank())}
        durations = self.durations[self.group.rank()] if self.durations else None
        self.pipeline = Pipeline(mine, self.schedule, self.group, durations=durations)
        self.canonical = canonical_names(self.module)
        self.ties = Ties(self._own_parameters(), self._holders(), self.group)
        return nn.ModuleDict({str(number): stage for number, stage in mine.items()})

    @property
    def n_microbatches(self) -> int:
        """Into how many parts the schedule cuts a batch."""
        return self.schedule.n_microbatches

    @torch.no_grad()
    def output(self, inputs: Tensor) -> Tensor:
        """The model's output for the whole batch, on every rank: it passes the stages in one piece."""
        shapes = self._passed_on(inputs)
        mine = self.pipeline.forward(inputs, shapes)
        last = self.pipeline.peer(self.schedule.n_stages - 1)
        if dist.get_rank() != last:
            mine = torch.empty_like(shapes[-1], device=self.pipeline.device)
        return comm.broadcast(mine.contiguous(), src=last, group=self.group)

    def compute_gradients(self, batch: Batch) -> float:
        """Add the gradients of the whole batch's mean loss, those of this rank's weights, and return that loss.

        Each micro-batch's loss is its sum over the number of targets of the *whole* batch: the mean of the
        micro-batches' own means weighs a target in a micro-batch with few of them more than others.

        Raises: ValueError on all ranks if the batch cannot be cut evenly, or its loss is not finite.
        """
        total = steps.count_targets(batch)
        check_counts([len(batch[0])], [total])
        check_rows(len(batch[0]), self.schedule.n_microbatches)
        inputs, targets = (tensor.chunk(self.schedule.n_microbatches) for tensor in batch)
        summed = 0.0

        def loss(output: Tensor, number: int) -> Tensor:
            nonlocal summed
            one = steps.loss_of(output, targets[number])
            summed += one.item()
            return one * loss_weight(steps.count_targets((inputs[number], targets[number])), total)

        with self.ties.summed():
            self.pipeline.run(inputs, self._passed_on(inputs[0]), loss)
        return self._shared_loss(summed) / total

    def gradients(self) -> dict[str, Tensor]:
        """The gradients that there are, of all stages."""
        mine = {name: p.grad for name, p in self._own_parameters().items() if p.grad is not None}
        return self._whole(mine, dict(self.module.named_parameters()))

    def parameters(self) -> dict[str, Tensor]:
        """The weights of all stages."""
        mine = {name: p.detach() for name, p in self._own_parameters().items()}
        return self._whole(mine, dict(self.module.named_parameters()))

    def buffers(self) -> dict[str, Tensor]:
        """The buffers of all stages."""
        mine = {name: buffer for stage in self.pipeline.stages.values() for name, buffer in stage.named_buffers()}
        return self._whole(mine, dict(self.module.named_buffers()))

    def clip(self) -> float:
        """Scale the gradients to the norm of all stages' gradients; what lies on two ranks counts on the first."""
        holders, rank = self._holders(), self.group.rank()
        own = {name: p.grad for name, p in self._own_parameters().items() if p.grad is not None}
        squares = torch.zeros(1, dtype=torch.float64, device=self.pipeline.device)
        for name, gradient in own.items():
            if holders[name][0] == rank:
                squares += gradient.double().square().sum()
        norm = comm.all_reduce(squares, group=self.group).sqrt().item()
        if self.config.max_norm is not None and norm > self.config.max_norm:
            for gradient in own.values():
                gradient.mul_(self.config.max_norm / norm)
        return norm

    def state(self) -> dict[str, Any]:
        """What one device's trainer would save: any number of stages can go on from it."""
        weights = {name: x for stage in self.pipeline.stages.values() for name, x in stage.state_dict().items()}
        own = self.optimizer.state_dict()
        states = {name: own["state"][place] for place, name in enumerate(self._own_trained()) if place in own["state"]}
        weights, states = self._merged([weights, states])
        trained = [name for name, p in self.module.named_parameters() if p.requires_grad]
        return {
            "model": weights,
            "optimizer": {
                "state": {number: states[name] for number, name in enumerate(trained) if name in states},
                "param_groups": [own["param_groups"][0] | {"params": [*range(len(trained))]}],
            },
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Take this rank's part of it."""
        for stage in self.pipeline.stages.values():
            stage.load_state_dict({name: saved["model"][name] for name in stage.state_dict()})
        trained = [name for name, p in self.module.named_parameters() if p.requires_grad]
        places = [trained.index(name) for name in self._own_trained()]
        states = saved["optimizer"]["state"]
        group = saved["optimizer"]["param_groups"][0] | {"params": [*range(len(places))]}
        mine = {number: states[place] for number, place in enumerate(places) if place in states}
        self.optimizer.load_state_dict({"state": mine, "param_groups": [group]})

    def save(self, folder: str | Path) -> None:
        """The first rank writes; if it cannot, all ranks raise its error."""
        state = self.state()
        on_first_rank(lambda: write(state, folder), self.group)

    def _passed_on(self, inputs: Tensor) -> list[Tensor]:
        """What each stage takes for such inputs; every rank finds it out for itself, once."""
        kind = (inputs.shape, inputs.dtype)
        if kind not in self._shapes:
            self._shapes[kind] = stages.passed_on(self.skeletons, inputs)
        return self._shapes[kind]

    def _own_parameters(self) -> dict[str, nn.Parameter]:
        """This rank's parameters, each once, by its first name in the model."""
        named = chain.from_iterable(stage.named_parameters() for stage in self.pipeline.stages.values())
        return {self.canonical[name]: parameter for name, parameter in named}

    def _own_trained(self) -> list[str]:
        return [name for name, parameter in self._own_parameters().items() if parameter.requires_grad]

    def _holders(self) -> dict[str, list[int]]:
        """By parameter the ranks that hold it; what is tied over stages may have several."""
        found: dict[str, list[int]] = {}
        for number, stage in enumerate(self.skeletons):
            for name, _ in stage.named_parameters():
                ranks = found.setdefault(self.canonical[name], [])
                ranks += {self.schedule.rank_of(number)}.difference(ranks)
        return {name: sorted(ranks) for name, ranks in found.items()}

    def _shared_loss(self, summed: float) -> float:
        """The last stage's loss, on all ranks; one that is not finite leaves no gradients behind."""
        last = self.schedule.rank_of(self.schedule.n_stages - 1)
        mine = torch.tensor([summed], dtype=torch.float64, device=self.pipeline.device)
        loss = comm.broadcast(mine, src=self.pipeline.names[last], group=self.group).item()
        try:
            check_losses([0.0] * last + [loss])
        except ValueError:
            self.optimizer.zero_grad()
            raise
        return loss

    def _merged(self, mine: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Dictionaries put together from those of all ranks, outside the ledger."""
        everyone = [mine] * self.group.size()
        dist.all_gather_object(everyone, mine, group=self.group)
        return [dict(chain.from_iterable(one.items() for one in ones)) for ones in zip(*everyone, strict=True)]

    def _whole(self, mine: dict[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
        (found,) = self._merged([mine])
        return {name: found[name] for name in names if name in found}


def loss_weight(targets: int, total: int) -> float:
    """What a micro-batch's summed loss is multiplied by; its own number of targets plays no part."""
    return 1 / total


def check_schedule(schedule: Schedule, world_size: int, accumulation: int) -> None:
    """Raise the four-part error for a schedule that these ranks cannot run."""
    if schedule.n_ranks != world_size:
        values = f"a schedule for {schedule.n_ranks} ranks, {world_size} ranks in the group"
        way_out = f"make it with n_ranks={world_size}"
        raise ValueError(four_parts(OPERATION, values, "every rank has its own list", way_out))
    if found := problems(schedule):
        values = agreement.listing(found)
        rule, way_out = "the ranks must come to the end of their lists", "let `schedules.problems` look at the schedule"
        raise ValueError(four_parts(OPERATION, values, rule, way_out))
    if accumulation > 1:
        values, rule = f"accumulation={accumulation}", "the schedule says into how many micro-batches a batch is cut"
        raise ValueError(four_parts(OPERATION, values, rule, "give n_microbatches to make_schedule"))


def check_rows(rows: int, n_microbatches: int) -> None:
    """Raise the four-part error unless a batch can be cut into equally many rows."""
    if rows % n_microbatches:
        values = f"{rows} samples, {n_microbatches} micro-batches"
        rule, above = "all micro-batches have equally many", (rows // n_microbatches + 1) * n_microbatches
        fitting = [number for number in range(1, rows + 1) if rows % number == 0]
        way_out = f"give {above} samples, or choose n_microbatches in {fitting}"
        raise ValueError(four_parts(OPERATION, values, rule, way_out))
