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
from course_lib.errors import four_parts
from course_lib.parallel.pipelines.stages import skeleton
from course_lib.parallel.table import agreement
from course_lib.parallel.table.local import Local, laid_as, own_part
from course_lib.training import step as steps
from course_lib.training.batches import IGNORED, Batch
from course_lib.training.checkpoint import check_names, on_first_rank, read, write
from course_lib.training.engine import Engine
from course_lib.training.setup import Setup, Technique


class Trainer:
    """Trains `model` on whole batches: on one device, or on the ranks of `mesh` by the techniques in `apply`.

    On a mesh every method is called on all ranks, each with the whole batch: a rank takes its own share, the rows of
    its coordinate on "dp". `model` is what is called here, wrapped or cut; `local` are this rank's parts of it by the
    model's own names, and `local.layout` says where everything lies. `init` fills a model that is on meta once it is
    cut, by a rule (`initial.drawn`) or from a checkpoint, as `partial(load_pieces, folder=…)`.

    Cost: besides what the techniques send, two all-gathers along "dp" of one row of numbers from each rank: samples
    and targets before the first forward, since they weigh the loss, and the losses after the last backward.
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
        _check_trained(model)
        self.config, self.local = config, Local(model, mesh)
        self.persistent = tuple(model.state_dict())
        _check_numbers(self.local, init)
        setup = Setup(
            model=model,
            local=self.local,
            config=config,
            engine=Engine(model, config.accumulation),
            skeleton=model if mesh is None else skeleton(model),
        )
        for technique in apply:
            technique(setup)
        setup.check_axes()
        self.local.give_memory()
        self.local.check_table()
        self.model, self.engine, self.skeleton = setup.model, setup.engine, setup.skeleton
        self.trained = [name for name, p in self.local.parameters.items() if p.requires_grad]
        self.norm = math.nan  # of the last step's gradients, before they were clipped
        self.optimizer = setup.shared(make_optimizer([self.local.parameters[name] for name in self.trained], config))
        if init is not None and self.local.absent:
            self._begin(init)

    def _begin(self, init: Callable[[Trainer], object]) -> None:
        """Let `init` fill what came without numbers, and see that it did."""
        init(self)
        here = {**self.local.parameters, **self.local.buffers}
        left = [name for name in self.local.absent if name in here and own_part(here[name].detach()).isnan().any()]
        problem = f"init leaves {agreement.listing(left)} without numbers" if left else ""
        rule, way_out = "init fills every tensor that is on meta, norms and buffers too", "give it a rule"
        agreement.no_problem("Trainer", problem, rule, way_out, self.local.everyone, compare=True)

    @property
    def n_microbatches(self) -> int:
        """Into how many parts a rank cuts its share of a batch."""
        return self.engine.n_microbatches

    @torch.no_grad()
    def output(self, inputs: Tensor) -> Tensor:
        """The model's output for the whole batch, on every rank."""
        rank, size = self.local.rank("dp"), self.local.size("dp")
        share_of_inputs = inputs.tensor_split(size)[rank]
        self._check_shares(inputs=share_of_inputs)
        mine = self.engine.output(share_of_inputs)
        if size == 1:
            return mine
        return comm.all_gather(mine.contiguous(), length=len(inputs), group=self.local.group("dp"))

    def compute_gradients(self, batch: Batch) -> float:
        """Add the gradients of the whole batch's mean loss to `.grad`, and return that loss.

        Each loss is a sum over targets, divided by the number of targets of the *whole* batch: a mean of means would
        weigh a target in a short share or micro-batch more than others. Where gradients are averaged over ranks, that
        divides once more, so the loss is multiplied by their number first.

        Raises: ValueError, the same on all ranks, for a batch that cannot be shared out or has no target, and for a
            loss that is not finite, which leaves no gradients behind.
        """
        mine = share(batch, self.local.rank("dp"), self.local.size("dp"))
        self._check_shares(inputs=mine[0], targets=mine[1])
        rows, targets = self.over_shares([len(mine[0]), steps.count_targets(mine)])
        self.check_counts(rows, targets)
        self.engine.check_rows(rows)
        parts = self.engine.cut(mine)
        weight = prod(self.local.size(axis) for axis in self.local.layout.averaged) / sum(targets)
        summed = 0.0

        def loss(output: Tensor, number: int) -> Tensor:
            nonlocal summed
            one = self.engine.ends.loss(output, parts[number][1])
            summed += one.item()
            return one * weight

        with self.local.partial_sums(), self.engine.ends.around():
            self.engine.run([inputs for inputs, _ in parts], loss)
        return self.mean_loss(summed, sum(targets))

    def mean_loss(self, summed: float, targets: float) -> float:
        """The whole batch's loss from what this rank summed up, and the number of all targets."""
        (losses,) = self.over_shares([self.engine.shared(summed)])
        bad = [share for share, loss in enumerate(losses) if not math.isfinite(loss)]
        if bad:
            self.zero_grad()
            values = f"loss {losses[bad[0]]} on {self.in_words(bad, **self.engine.last)}"
            rule = "one such loss would spoil the weights of all ranks"
            way_out = "look at that rank's batch, or lower the learning rate"
            raise ValueError(four_parts("Trainer", values, rule, way_out))
        return sum(losses) / targets

    def over_shares(self, numbers: Sequence[float]) -> list[list[float]]:
        """For each of a few numbers the values of all shares of the batch."""
        if self.local.size("dp") == 1:
            return [[number] for number in numbers]
        group = self.local.group("dp")
        mine = torch.tensor([numbers], dtype=torch.float64, device=device_of(group))
        return comm.all_gather(mine, group=group).T.tolist()

    def gradients(self) -> dict[str, Tensor]:
        """The gradients that there are, whole, by the model's own names."""
        return self.local.whole(self.local.gradients())

    def parameters(self) -> dict[str, Tensor]:
        """The weights, whole, by the model's own names; tied ones once."""
        return self.local.whole({name: own_part(p.detach()) for name, p in self.local.parameters.items()})

    def buffers(self) -> dict[str, Tensor]:
        """The buffers by the model's own names."""
        return self.local.whole(self.local.buffers)

    def clip(self) -> float:
        """Scale the gradients down to the global norm `config.max_norm`, if it is given; return the norm before."""
        norm, most = self.local.global_norm().item(), self.config.max_norm
        if most is not None and norm > most:
            for gradient in self.local.gradients().values():
                gradient.mul_(most / norm)
        return norm

    def update(self) -> None:
        """Let the optimizer use the gradients, then drop them."""
        self.optimizer.step()
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
        """What this rank has, by name: under "" the weight or buffer, under their own names the optimizer's states."""
        own = self.optimizer.state_dict()["state"]
        states = {
            name: {kind: own_part(x) for kind, x in own[place].items()}
            for place, name in enumerate(self.trained)
            if place in own
        }
        here = {name: own_part(p.detach()) for name, p in self.local.parameters.items()} | self.local.buffers
        return {name: {"": x, **states.get(name, {})} for name, x in here.items()}

    @torch.no_grad()
    def take(self, parts: Mapping[str, Mapping[str, Tensor]], options: dict[str, Any]) -> None:
        """Go on from what `parts` gave, here or where the model lay alike; `options` are the optimizer's."""
        local = self.local
        for name, x in (*local.parameters.items(), *local.buffers.items()):
            if name in self.persistent:
                own_part(x).copy_(parts[name][""])
        states = {
            place: {kind: laid_as(local.parameters[name], x) for kind, x in parts[name].items() if kind}
            for place, name in enumerate(self.trained)
            if len(parts[name]) > 1
        }
        groups = [options | {"params": [*range(len(self.trained))]}]
        self.optimizer.load_state_dict({"state": states, "param_groups": groups})
        self.engine.ends.updated()

    def set_learning_rate(self, rate: float) -> None:
        """Let the next updates take steps of this size."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    @property
    def options(self) -> dict[str, Any]:
        """The optimizer's, as learning rate and weight decay."""
        return {name: x for name, x in self.optimizer.param_groups[0].items() if name != "params"}

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds, on every rank: what one device would save, so that any layout can go on from it."""
        layout = self.local.layout
        found = self.local.whole_once(self.parts())
        weights = {name: kinds[""] for name, kinds in found.items()}
        weights |= {name: weights[first] for name, first in layout.first_name.items()}
        states = {name: {kind: x for kind, x in kinds.items() if kind} for name, kinds in found.items()}
        trained = {number: states[name] for number, name in enumerate(layout.trained) if states[name]}
        groups = [self.options | {"params": [*range(len(layout.trained))]}]
        model = {name: weights[name] for name in self.persistent}
        return {"model": model, "optimizer": {"state": trained, "param_groups": groups}}

    def restore(self, saved: dict[str, Any]) -> None:
        """Take this rank's part of what `state` gave.

        Raises: ValueError if it is another model's.
        """
        local, weights, states = self.local, saved["model"], saved["optimizer"]["state"]
        shapes = self.shapes()
        check_names(weights, {name: shapes[name] for name in self.persistent})
        numbers = {name: number for number, name in enumerate(local.layout.trained)}
        here = [name for name in (*local.parameters, *local.buffers) if name in self.persistent]
        whole = {name: {"": weights[name], **states.get(numbers.get(name), {})} for name in here}
        parts = {name: {kind: local.part(name, x) for kind, x in kinds.items()} for name, kinds in whole.items()}
        self.take(parts, saved["optimizer"]["param_groups"][0])

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
        own = {name: place.shape for name, place in layout.places.items()}
        return own | {name: own[first] for name, first in layout.first_name.items()}

    def check_counts(self, rows: Sequence[float], targets: Sequence[float]) -> None:
        """Raise the four-part error if a share has no rows, or the whole batch no target."""
        empty = [share for share, number in enumerate(rows) if not number]
        if empty:
            values = (
                f"{int(sum(rows))} samples in {len(rows)} share{'s' * (len(rows) > 1)}, none for {self.in_words(empty)}"
            )
            way_out = f"give at least {len(rows)}"
            raise ValueError(four_parts("Trainer", values, "every rank needs a sample", way_out))
        if not sum(targets):
            values, way_out = f"{int(sum(rows))} samples without a target", f"mark fewer targets as {IGNORED}"
            raise ValueError(
                four_parts("Trainer", values, "the mean loss is taken over the targets that count", way_out)
            )

    def _check_shares(self, **tensors: Tensor) -> None:
        """In teaching mode let ranks with parts of one matrix compare what they were given: sums hide a difference."""
        everyone = self.local.everyone
        if active.guard and everyone is not None and self.local.size("tp") > 1:
            agreement.same_shares("Trainer", tensors, self.local.rank("dp"), everyone)

    def in_words(self, shares: Sequence[int], **at: int) -> str:
        """The ranks that have these shares: rank 2, or ranks 1, 2."""
        ranks = [str(self.local.name_of(dp=share, **at)) for share in shares]
        return f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}"


def share(batch: Batch, rank: int, world_size: int) -> Batch:
    """One rank's rows of a batch, as `torch.tensor_split` cuts them."""
    inputs, targets = batch
    return inputs.tensor_split(world_size)[rank], targets.tensor_split(world_size)[rank]


def make_optimizer(parameters: Sequence[nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    """The configured optimizer; there may be nothing for it, on a rank with a frozen part."""
    trained = [{"params": list(parameters)}]
    rate, decay = config.learning_rate, config.weight_decay
    if config.optimizer == "adamw":
        return torch.optim.AdamW(trained, lr=rate, weight_decay=decay, eps=config.adam_eps)
    return torch.optim.SGD(trained, lr=rate, weight_decay=decay)


def _check_numbers(local: Local, init: object) -> None:
    """Raise the four-part error if something is on meta and nobody says what its numbers are."""
    if local.absent and init is None:
        rule, way_out = "what has no numbers cannot be trained", "give Trainer init=…, or build the model off meta"
        raise ValueError(four_parts("Trainer", f"on meta: {agreement.listing([*local.absent])}", rule, way_out))


def _check_trained(model: nn.Module) -> None:
    """Raise the four-part error if everything is frozen."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        rule, way_out = "an optimizer needs something to train", "set requires_grad on at least one parameter"
        raise ValueError(four_parts("Trainer", "every parameter is frozen", rule, way_out))
