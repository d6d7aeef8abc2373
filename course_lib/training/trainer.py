"""One trainer for one device and for every mesh: techniques change the model and say where its parameters lie."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib import comm
from course_lib.comm.call import device_of
from course_lib.comm.switches import active
from course_lib.config import TrainConfig
from course_lib.parallel.pipelines.stages import skeleton
from course_lib.parallel.table import agreement
from course_lib.parallel.table.local import Local, laid_as, own_part
from course_lib.savers.adam8bit import AdamW8bit
from course_lib.training import step as steps
from course_lib.training.batches import Batch
from course_lib.training.checkpoint import check_names, on_first_rank, read, write
from course_lib.training.engine import Engine
from course_lib.training.kept import is_beside
from course_lib.training.refusals import bad_loss, check_counts, check_filled, check_numbers, check_trained
from course_lib.training.setup import Setup, Technique


class Trainer:
    """Trains `model` on whole batches: on one device, or on the ranks of `mesh` by the techniques in `apply`.

    On a mesh every method is called on all ranks, each with the whole batch: a rank takes its own share, the rows of
    its coordinate on "dp", and of that on "ep" where ranks share experts. `model` is what is called here, wrapped or
    cut; `local` are this rank's parts of it by the model's own names, and `local.layout` says where everything lies.
    `init` fills a model that is on meta once it is cut, by a rule (`initial.drawn`) or from a checkpoint, as
    `partial(load_pieces, folder=…)`.

    Cost: besides what the techniques send, two all-gathers over the shares of one row of numbers from each: samples and
    targets before the first forward, since they weigh the loss, and the losses after the last backward.
    Raises: ValueError if nothing is trained, if techniques and mesh do not fit each other, and if something on meta
        gets no numbers.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        *,
        mesh: DeviceMesh | None = None,
        apply: Sequence[Technique] = (),
        init: Callable[[Trainer], object] | None = None,
    ) -> None:
        check_trained(model)
        self.config, self.local = config, Local(model, mesh)
        self.persistent = tuple(model.state_dict())
        check_numbers(self.local, init)
        setup = Setup(
            model=model,
            local=self.local,
            config=config,
            engine=Engine(model, config.accumulation),
            skeleton=model if mesh is None else skeleton(model),
        )
        # Each technique writes into the table where parameters lie, and then cuts, wraps or hooks the model.
        for technique in apply:
            technique(setup)
        setup.check_axes()
        self.local.give_memory()
        self.local.check_table()
        self.model, self.engine, self.skeleton = setup.model, setup.engine, setup.skeleton
        first = self.local.layout.first_name  # of what has several names
        self.apart = setup.apart  # what ranks have different on purpose
        self.saved = tuple(name for name in self.persistent if first.get(name, name) not in setup.unsaved)
        self.norm = math.nan  # of the last step's gradients, before they were clipped
        # Only now, since a technique may have put others in the parameters' places.
        self.trained: list[str] = []
        parameters = []
        for name, parameter in self.local.parameters.items():
            if parameter.requires_grad:
                self.trained.append(name)
                parameters.append(parameter)
        optimizer = make_optimizer(parameters, config)
        self.optimizer = setup.shared(optimizer)
        if init is not None and self.local.absent:
            init(self)
            check_filled(self.local)

    @property
    def n_microbatches(self) -> int:
        """Into how many parts a rank cuts its share of a batch."""
        return self.engine.n_microbatches

    @torch.no_grad()
    def output(self, inputs: Tensor) -> Tensor:
        """The model's output for the whole batch, on every rank."""
        *larger, mine = self._shared(inputs)
        self._check_shares(inputs=mine)
        output = self.engine.output(mine)
        for axis, before in zip(reversed(self.local.layout.row_axes), reversed(larger), strict=True):
            if self.local.size(axis) > 1:
                group = self.local.group(axis)
                output = comm.all_gather(output.contiguous(), length=len(before), group=group)
        return output

    def compute_gradients(self, batch: Batch) -> float:
        """Add the gradients of the whole batch's mean loss to `.grad`, and return that loss.

        Each loss is a sum over targets, divided by the number of targets of the *whole* batch: a mean of means would
        weigh a target in a short share or micro-batch more than others. Where gradients are averaged over ranks, that
        divides once more, so the loss is multiplied by their number first.

        Raises: ValueError, the same on all ranks, for a batch that cannot be shared out or has no target, and for a
            loss that is not finite, which leaves no gradients behind.
        """
        local = self.local
        mine = batch
        for axis in local.layout.row_axes:
            mine = share(mine, local.rank(axis), local.size(axis))
        inputs, targets = mine
        self._check_shares(inputs=inputs, targets=targets)
        # Of each share of the batch, its rows and how many of its targets count.
        rows, counts = self.over_shares([len(inputs), steps.count_targets(mine)])
        check_counts(local, rows, counts)
        self.engine.check_rows(rows)
        parts = self.engine.cut(mine)
        averaged_over = prod(local.size(axis) for axis in local.layout.averaged)
        weight = averaged_over * self.engine.ends.factor() / sum(counts)
        summed = 0.0

        def loss(output: Tensor, number: int) -> Tensor:
            nonlocal summed
            _, targets = parts[number]
            one = self.engine.ends.loss(output, targets)
            summed += one.item()
            return one * weight

        with local.partial_sums(), self.engine.ends.around():
            self.engine.run([inputs for inputs, _ in parts], loss)
        return self.mean_loss(summed, sum(counts))

    def mean_loss(self, summed: float, targets: float) -> float:
        """The whole batch's loss from what this rank summed up, and the number of all targets."""
        share_of_loss = self.engine.shared(summed)  # a pipeline's last rank tells the others
        (losses,) = self.over_shares([share_of_loss])
        problem = bad_loss(self.local, losses, self.engine.last)
        if problem:
            self.zero_grad()
            raise ValueError(problem)
        return sum(losses) / targets

    def over_shares(self, numbers: Sequence[float]) -> list[list[float]]:
        """For each of a few numbers the values of all shares of the batch."""
        rows = torch.tensor([numbers], dtype=torch.float64)  # (1, numbers)
        for axis in reversed(self.local.layout.row_axes):
            if self.local.size(axis) > 1:
                group = self.local.group(axis)
                rows = comm.all_gather(rows.to(device_of(group)), group=group)  # (shares, numbers)
        return rows.T.tolist()

    def gradients(self) -> dict[str, Tensor]:
        """The gradients that there are, whole, by the model's own names; where ranks have their own, the mean."""
        return self.local.whole(self.apart.mean(self.local.gradients()))

    def parameters(self) -> dict[str, Tensor]:
        """The weights, whole, by the model's own names; tied ones once. Where ranks have their own, the mean."""
        parts = {}
        for name, parameter in self.local.parameters.items():
            parts[name] = own_part(parameter.detach())
        own = {name: parts[name] for name in self.trained}  # what is frozen is the same on all ranks
        return self.local.whole(parts | self.apart.mean(own))

    def buffers(self) -> dict[str, Tensor]:
        """The buffers by the model's own names."""
        return self.local.whole(self.local.buffers)

    def clip(self) -> float:
        """Scale the gradients down to the global norm `config.max_norm`, if it is given; return the norm before."""
        norm = self.local.global_norm().item()
        most = self.config.max_norm
        if most is not None and norm > most:
            for gradient in self.local.gradients().values():
                gradient.mul_(most / norm)
        return norm

    def update(self) -> None:
        """Let the optimizer use the gradients, then drop them."""
        self.engine.ends.stepping()
        self.optimizer.step()
        self.engine.ends.stepped()
        self.engine.ends.updated()
        self.zero_grad()

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self.local.parameters.values():
            parameter.grad = None

    def step(self, batch: Batch) -> float:
        """Train on one batch and return its mean loss per target."""
        loss = self.compute_gradients(batch)
        self.norm = self.clip()
        self.update()
        return loss

    def parts(self) -> dict[str, dict[str, Tensor]]:
        """What this rank has, by name: under "" the weight or buffer, under their own names the optimizer's states.

        Where ranks differ on purpose there is more: `training.kept`.
        """
        parts: dict[str, dict[str, Tensor]] = {}
        for name, parameter in self.local.parameters.items():
            parts[name] = {"": own_part(parameter.detach())}
        for name, buffer in self.local.buffers.items():
            parts[name] = {"": buffer}
        # An optimizer knows parameters by their place in its list, and has no state of one before its first step.
        for place, states in self.optimizer.state_dict()["state"].items():
            for kind, x in states.items():
                parts[self.trained[place]][kind] = own_part(x)
        return self.apart.written(parts, self.trained)

    @torch.no_grad()
    def take(self, parts: Mapping[str, Mapping[str, Tensor]], options: dict[str, Any]) -> None:
        """Go on from what `parts` gave, here or where the model lay alike; `options` are the optimizer's."""
        local = self.local
        here = {**local.parameters, **local.buffers}
        parts = self.apart.read(parts, here)
        for name, x in here.items():
            if name in self.saved:
                own_part(x).copy_(parts[name][""])
        states: dict[int, dict[str, Tensor]] = {}
        for place, name in enumerate(self.trained):
            parameter = local.parameters[name]
            kinds = {kind: laid_as(parameter, x) for kind, x in parts[name].items() if kind}
            if kinds:
                states[place] = kinds
        group = options | {"params": list(range(len(self.trained)))}
        self.optimizer.load_state_dict({"state": states, "param_groups": [group]})
        self.engine.ends.updated()

    def set_learning_rate(self, rate: float) -> None:
        """Let the next updates take steps of this size."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    @property
    def options(self) -> dict[str, Any]:
        """The optimizer's, as learning rate and weight decay."""
        options = dict(self.optimizer.param_groups[0])
        del options["params"]
        return options

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds, on every rank: what one device would save, so that any layout can go on from it."""
        layout = self.local.layout
        found = self.local.whole_once(self.apart.spread(self.parts()))
        model = {}
        for name in self.saved:
            first = layout.first_name.get(name, name)  # of what has several names
            model[name] = found[first][""]
        states = {}
        for number, name in enumerate(layout.trained):
            kinds = {kind: x for kind, x in found[name].items() if kind and not is_beside(kind)}
            if kinds:
                states[number] = kinds
        group = self.options | {"params": list(range(len(layout.trained)))}
        optimizer = {"state": states, "param_groups": [group]}
        beside = {name: {kind: x for kind, x in found[name].items() if is_beside(kind)} for name in layout.trained}
        return {"model": model, "optimizer": optimizer} | ({"beside": beside} if any(beside.values()) else {})

    def restore(self, saved: dict[str, Any]) -> None:
        """Take this rank's part of what `state` gave.

        Raises: ValueError if it is another model's.
        """
        local, weights, optimizer = self.local, saved["model"], saved["optimizer"]
        shapes = self.shapes()
        check_names(weights, {name: shapes[name] for name in self.saved})
        numbers = {name: number for number, name in enumerate(local.layout.trained)}
        parts = {}
        for name in (*local.parameters, *local.buffers):
            if name in self.saved:
                states = optimizer["state"].get(numbers.get(name), {})
                whole = {"": weights[name], **states, **saved.get("beside", {}).get(name, {})}
                mine = [kind for kind in whole if self.apart.asks_for(kind, whole)]
                parts[name] = {kind: local.part(name, whole[kind]) for kind in mine}
        self.take(parts, optimizer["param_groups"][0])

    def save(self, folder: str | Path) -> None:
        """Write `state`; the first rank writes, and if it cannot, all ranks raise its error."""
        state = self.state()
        on_first_rank(lambda: write(state, folder), self.local.everyone)

    def load(self, folder: str | Path) -> None:
        """Go on from what `save` wrote, at this or any other layout.

        Raises: ValueError if there is nothing, or another model's.
        """
        self.restore(read(folder))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of everything by all of its names."""
        layout = self.local.layout
        shapes = {name: place.shape for name, place in layout.places.items()}
        for name, first in layout.first_name.items():
            shapes[name] = shapes[first]
        return shapes

    def _shared(self, x: Tensor) -> list[Tensor]:
        """A batch's rows, and what each axis that shares them leaves this rank; the last is its share."""
        found = [x]
        for axis in self.local.layout.row_axes:
            found.append(found[-1].tensor_split(self.local.size(axis))[self.local.rank(axis)])
        return found

    def _check_shares(self, **tensors: Tensor) -> None:
        """In teaching mode let ranks that work on one share compare what they were given: sums hide a difference."""
        local = self.local
        if active.guard and local.everyone is not None and max(local.size("tp"), local.size("cp")) > 1:
            number = 0
            for axis in local.layout.row_axes:
                number = number * local.size(axis) + local.rank(axis)
            agreement.same_shares("Trainer", tensors, number, local.everyone)


def share(batch: Batch, rank: int, world_size: int) -> Batch:
    """One rank's rows of a batch, as `torch.tensor_split` cuts them."""
    inputs, targets = batch
    mine = inputs.tensor_split(world_size)[rank]
    return mine, targets.tensor_split(world_size)[rank]


def make_optimizer(parameters: Sequence[nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    """The configured optimizer; there may be nothing for it, on a rank with a frozen part."""
    trained = [{"params": list(parameters)}]
    rate, decay = config.learning_rate, config.weight_decay
    if config.optimizer == "adamw8bit":
        return AdamW8bit(trained, lr=rate, weight_decay=decay, eps=config.adam_eps)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(trained, lr=rate, weight_decay=decay, eps=config.adam_eps)
    return torch.optim.SGD(trained, lr=rate, weight_decay=decay)
