"""11.9: adapters that a data-parallel wrapper does not know: what the ladder says of them, and how they are covered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib import comm
from course_lib.checks.kit.diagnosis import Diagnosis
from course_lib.checks.kit.hunt import RATE, Given, hunt_exercise, rows_of_steps
from course_lib.checks.kit.mended import Climbed, first_wrong, gradients_left, step_beside, trainers_ready
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.scene import in_dtype
from course_lib.checks.kit.spec import FP64, Level
from course_lib.comm.ledger import Ledger
from course_lib.config import TrainConfig
from course_lib.models.mlp import MLP
from course_lib.parallel.data.replicate import broadcast_tensors
from course_lib.parallel.table.mesh import make_mesh
from course_lib.savers.lora import add_lora
from course_lib.training.batches import Batch
from course_lib.training.setup import Setup
from course_lib.training.trainer import Trainer

_ADAPTERS = (".A", ".B")
_DIFFERENT = 4  # adapters that four ranks train
_Where = Literal["both layers", "one layer", "and a bias"]
_TARGETS: Mapping[_Where, tuple[str, ...]] = {
    "both layers": ("layer1", "layer2"), "one layer": ("layer1",), "and a bias": ("layer1", "layer2")
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AdaptersHunt:
    """So many steps by SGD, adapters of this rank beside some layers; or what the learner found."""

    world_size: int = 4
    where: _Where = "both layers"
    rank: int = 2
    rows: int = 8
    steps: int = 3
    diagnosis: bool = False
    look: bool = False  # at what is broadcast

    def __str__(self) -> str:
        if self.diagnosis:
            return "diagnosis"
        where = {"one layer": "beside one layer", "and a bias": "and a bias is trained"}.get(self.where, "")
        return ", ".join(filter(None, (plural(self.world_size, "rank"), f"r = {self.rank}", where)))


class _Covering(Trainer):
    """The exercise's trainer, mended unless a part is chosen otherwise."""

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        super().__init__(model, config, mesh=make_mesh(dp=dist.get_world_size()), apply=(self._replicated,))

    def diagnosis(self) -> tuple[str, float]:
        """Right."""
        return "gradients", _DIFFERENT

    def _replicated(self, setup: Setup) -> None:
        setup.begin("replicate", "dp")
        self.group = setup.take_over(experts=False)
        self.prepare(setup.model)

    def prepare(self, model: nn.Module) -> None:
        """Right."""
        self.covered = list(_trained(model))
        self.alike(self.covered)

    def alike(self, parameters: Sequence[Tensor]) -> None:
        """Rank 0's on all ranks."""
        broadcast_tensors([one.detach() for one in parameters], self.group, 0)

    def compute_gradients(self, batch: Batch) -> float:
        loss = super().compute_gradients(batch)
        for one in self.covered:
            if one.grad is not None:
                one.grad.copy_(comm.all_reduce(one.grad, group=self.group) / self.group.size())
        return loss


class _AsItWas(_Covering):
    def prepare(self, model: nn.Module) -> None:
        self.covered = [one for name, one in model.named_parameters() if not name.endswith(_ADAPTERS)]
        self.alike(self.covered)


class _NotAlike(_Covering):
    def prepare(self, model: nn.Module) -> None:
        self.covered = list(_trained(model))


class _NotAveraged(_Covering):
    def prepare(self, model: nn.Module) -> None:
        self.alike(list(_trained(model)))
        self.covered = []


class _Only(_Covering):
    kept = ""

    def prepare(self, model: nn.Module) -> None:
        self.covered = [one for name, one in model.named_parameters() if name.endswith(self.kept)]
        self.alike(list(_trained(model)))


class _OnlyA(_Only):
    kept = ".A"


class _OnlyB(_Only):
    kept = ".B"


class _AdaptersAlone(_Covering):
    def prepare(self, model: nn.Module) -> None:
        self.covered = [one for name, one in model.named_parameters() if name.endswith(_ADAPTERS)]
        self.alike(list(_trained(model)))


def _trained(model: nn.Module) -> Iterator[nn.Parameter]:
    return (one for one in model.parameters() if one.requires_grad)


def _model(case: AdaptersHunt, seed: int, rank: int) -> nn.Module:
    """The same model on all ranks, and adapters that each rank has drawn for itself."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MLP(gelu=True)
        torch.manual_seed(1000 * seed + rank)
        add_lora(model, rank=case.rank, targets=_TARGETS[case.where])
    if case.where == "and a bias":
        model.get_parameter("layer2.base.bias").requires_grad_()
    return model


def _attempt(answer: Callable[..., Any], given: Given) -> Climbed:
    """Runs on a rank: `answer` is a class of trainers; beside it one device trains rank 0's model."""
    case, config = given.case, TrainConfig(learning_rate=RATE)
    with in_dtype(torch.float64):
        alone = Trainer(_model(case, given.seed, 0), config)
        trainer = answer(_model(case, given.seed, dist.get_rank()), config)
        if case.diagnosis:
            return Climbed(trainer.diagnosis())
        return Climbed(None, [step_beside(trainer, alone, batch) for batch in given.batches])


def _wrong(given: Given, reports: Sequence[Climbed], book: Ledger, levels: Mapping[str, Level]) -> str | None:
    case = given.case
    return first_wrong([report.steps for report in reports], ()) or (_too_much(case, book) if case.look else None)


def _too_much(case: AdaptersHunt, book: Ledger) -> str | None:
    with in_dtype(torch.float64):
        due = sum(one.nbytes for one in _trained(_model(case, 0, 0)))
    sent = sum(one.nbytes for one in book.events if one.operation == "broadcast" and one.kind == "send")
    sent //= max(case.world_size - 1, 1)
    if sent == due:
        return None
    found = f"{sent // FP64} numbers are broadcast to each rank, and {due // FP64} are trained"
    return f"right gradients, but {found}: what is frozen was read from the same file on all ranks"


_ADAPTERS_ALIKE = hunt_exercise(
    key="11.9",
    title="find the bug: one adapter a rank",
    answer=Diagnosis(
        rung="gradients",
        number=_DIFFERENT,
        name="how many different adapters four ranks train",
        way_out="whose A does a rank have at the start, and whose gradient does it use?",
    ),
    probe=_attempt,
    wrong=_wrong,
    left=gradients_left,
    batches=rows_of_steps,
    warm_up=partial(trainers_ready, "techniques"),
    slips={
        "the adapters are as they were: each rank begins with its own A, and goes its own way": _AsItWas,
        "gradients are averaged, but each rank still begins with an A of its own. An average over different adapters "
        "belongs to none of them": _NotAlike,
        "all begin with the same adapters, and then each rank follows its own rows: nobody averages": _NotAveraged,
        "all begin alike, and B's gradients are not averaged": _OnlyA,
        "all begin alike, and A's gradients are not averaged. They are 0 in the first step, as long as B is": _OnlyB,
        "what is trained besides A and B is not averaged: ask a parameter whether it is trained, not its name": (
            _AdaptersAlone
        ),
    },
    levels={
        "diagnosis": Level(
            points=1,
            cases=(AdaptersHunt(diagnosis=True),),
            alone=True,
            praise="with B = 0 all ranks compute the same output, and the next rung sees that they are not the same",
        ),
        "steps": Level(
            points=2,
            again=True,
            cases=(AdaptersHunt(where="and a bias"), AdaptersHunt(world_size=2), AdaptersHunt(world_size=3, rows=7)),
            praise="one adapter on all ranks, and in each step the gradient of all rows",
        ),
        "wire": Level(
            points=1,
            cases=(
                AdaptersHunt(world_size=2, look=True),
                AdaptersHunt(world_size=3, rank=1, where="one layer", look=True),
            ),
            praise="and what is frozen does not travel",
        ),
    },
    hints=(
        "climb(Suspect) names the first rung that fails. The one before it compares outputs, and a new adapter with "
        "B = 0 adds nothing to them, whatever A is.",
        "`prepare` collects what the wrapper covers. It looks for names of the model as it was before adapters came. "
        "What is trained now is none of these.",
        "Two things are missing for what is trained: the ranks begin with different A, and nobody averages. Both "
        "follow from one list.",
        "self.covered = [p for p in model.parameters() if p.requires_grad], and then broadcast_tensors of their "
        ".data from rank 0.",
    ),
)
