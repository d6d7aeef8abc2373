"""09.9: gradients averaged over ranks that share experts: which of four complaints is true, and how it is mended."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from course_lib import comm
from course_lib.checks.kit.diagnosis import Diagnosis
from course_lib.checks.kit.hunt import RATE, Given, hunt_exercise
from course_lib.checks.kit.mended import Climbed, first_wrong, gradients_left, step_beside, trainers_ready
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.spec import Level
from course_lib.comm.ledger import Ledger
from course_lib.config import ModelConfig, TrainConfig
from course_lib.models.moe import MoEDecoder
from course_lib.parallel.data.replicate import broadcast_state
from course_lib.parallel.table.mesh import make_mesh
from course_lib.training.balance import balanced
from course_lib.training.batches import Batch
from course_lib.training.expert_technique import experts
from course_lib.training.setup import Setup
from course_lib.training.trainer import Trainer

_WORDS, _LENGTH, _FACTOR = 19, 6, 0.01
_EXPERTS = ".experts."
_TRUE = 3  # of the complaints


@dataclass(frozen=True, kw_only=True)
class ExpertsHunt:
    """So many steps by SGD on dp x ep ranks; or what the learner found."""

    dp: int = 2
    ep: int = 2
    experts: int = 4
    rows: int = 8
    steps: int = 2
    diagnosis: bool = False

    @property
    def world_size(self) -> int:
        """All ranks of the mesh."""
        return self.dp * self.ep

    def __str__(self) -> str:
        if self.diagnosis:
            return "diagnosis"
        return f"dp {self.dp} x ep {self.ep}, {plural(self.experts, 'expert')}, {plural(self.rows, 'row')}"


class _Complaints(Diagnosis):
    """The number of the complaint that is true comes first, then the rung and the ratio."""

    def why_wrong(self, found: Any) -> str | None:
        if not isinstance(found, tuple | list) or len(found) != 3:
            return f"returned {found!r}: give three things, a complaint's number, the rung's name, and {self.name}"
        if found[0] != _TRUE:
            return _RULED_OUT.get(found[0], f"{found[0]!r} is no complaint's number: they are 1 to 4")
        return super().why_wrong(found[1:])


_RULED_OUT: Mapping[Any, str] = {
    1: "complaint 1 is true of what `log` prints, but `log` changes nothing: no rung of the ladder can fail by it",
    2: "complaint 2: then the router's gradient would be wrong. Which parameters does the ladder name?",
    4: "complaint 4: then every gradient would be too large. Which parameters does the ladder name?",
}


class _Average(Trainer):
    """The exercise's trainer, mended unless a part is chosen otherwise: over which ranks it adds up, and divides."""

    def __init__(self, model: MoEDecoder, config: TrainConfig, dp: int, ep: int) -> None:
        apply = experts(), balanced(_FACTOR), self._averaged
        super().__init__(model, config, mesh=make_mesh(dp=dp, ep=ep), apply=apply)

    def diagnosis(self) -> tuple[int, str, float]:
        """Right."""
        return _TRUE, "gradients", 2

    def _averaged(self, setup: Setup) -> None:
        setup.begin("replicate", "dp")
        self.everyone, self.replicas = setup.take_over(experts=True), setup.local.group("dp")
        broadcast_state(setup.model, self.replicas, setup.local.name_of(**{**setup.local.at, "dp": 0}))

    def compute_gradients(self, batch: Batch) -> float:
        loss = super().compute_gradients(batch)
        for name, parameter in self.local.parameters.items():
            assert parameter.grad is not None
            parameter.grad.copy_(self.average(name, parameter.grad))
        return loss

    def average(self, name: str, gradient: Tensor) -> Tensor:
        """Right."""
        group = self.replicas if _EXPERTS in name else self.everyone
        return comm.all_reduce(gradient, group=group) / self.everyone.size()


class _AsItWas(_Average):
    def average(self, name: str, gradient: Tensor) -> Tensor:
        group = self.replicas if _EXPERTS in name else self.everyone
        return comm.all_reduce(gradient, group=group) / group.size()


class _AllAlike(_Average):
    def average(self, name: str, gradient: Tensor) -> Tensor:
        return comm.all_reduce(gradient, group=self.everyone) / self.everyone.size()


class _ReplicasAlone(_Average):
    def average(self, name: str, gradient: Tensor) -> Tensor:
        return comm.all_reduce(gradient, group=self.replicas) / self.everyone.size()


class _NotSummed(_Average):
    def average(self, name: str, gradient: Tensor) -> Tensor:
        total = gradient if _EXPERTS in name else comm.all_reduce(gradient, group=self.everyone)
        return total / self.everyone.size()


class _RouterToo(_Average):
    def average(self, name: str, gradient: Tensor) -> Tensor:
        group = self.replicas if _EXPERTS in name or "router" in name else self.everyone
        return comm.all_reduce(gradient, group=group) / self.everyone.size()


class _NotDivided(_Average):
    def average(self, name: str, gradient: Tensor) -> Tensor:
        group = self.replicas if _EXPERTS in name else self.everyone
        return comm.all_reduce(gradient, group=group) / (1 if _EXPERTS in name else self.everyone.size())


def _model(case: ExpertsHunt, seed: int) -> MoEDecoder:
    config = ModelConfig(
        name="small",
        hidden_size=8,
        n_layers=1,
        n_heads=2,
        n_kv_heads=2,
        ffn_size=10,
        vocab_size=_WORDS,
        tied=False,
        n_experts=case.experts,
        experts_per_token=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MoEDecoder(config).double()


def _texts(case: ExpertsHunt, source: torch.Generator) -> list[Batch]:
    found = []
    for _ in range(case.steps):
        tokens = torch.randint(0, _WORDS, (case.rows, _LENGTH + 1), generator=source)
        found.append((tokens[:, :-1], tokens[:, 1:]))
    return found


def _attempt(answer: Callable[..., Any], given: Given) -> Climbed:
    """Runs on a rank: `answer` is a class of trainers; beside it one device trains on the same batches."""
    case, model = given.case, _model(given.case, given.seed)
    config = TrainConfig(learning_rate=RATE)
    alone = Trainer(copy.deepcopy(model), config, apply=(balanced(_FACTOR),))
    trainer = answer(model, config, case.dp, case.ep)
    if case.diagnosis:
        return Climbed(trainer.diagnosis())
    return Climbed(None, [step_beside(trainer, alone, batch) for batch in given.batches])


def _wrong(given: Given, reports: Sequence[Climbed], book: Ledger, levels: Mapping[str, Level]) -> str | None:
    return first_wrong([report.steps for report in reports], ())


_AVERAGE = hunt_exercise(
    key="09.9",
    title="find the bug: what the loss does not show",
    answer=_Complaints(
        rung="gradients",
        number=2,
        name="how many times too large these gradients are",
        way_out="the ladder's line says it",
    ),
    probe=_attempt,
    wrong=_wrong,
    left=gradients_left,
    batches=_texts,
    warm_up=partial(trainers_ready, "techniques"),
    slips={
        "experts are divided by some of the ranks alone. Their gradient has the rows of all dp · ep ranks in it, and "
        "each rank's loss was multiplied by the number of all of them": _AsItWas,
        "experts' gradients are added up over all ranks, and along ep these have other experts": _AllAlike,
        "nothing is added up along ep, and all but the experts have other rows' terms there": _ReplicasAlone,
        "experts are not added up over dp: there other rows went through the same experts": _NotSummed,
        "the router is taken for an expert. It is on every rank and sees this rank's tokens alone": _RouterToo,
        "experts are not divided at all. Each rank's loss was multiplied by the number of all ranks": _NotDivided,
    },
    levels={
        "diagnosis": Level(
            points=2,
            cases=(ExpertsHunt(diagnosis=True),),
            alone=True,
            praise="experts alone, exactly twice; and what stands in the log twice trains as it should",
        ),
        "steps": Level(
            points=2,
            again=True,
            cases=(ExpertsHunt(), ExpertsHunt(dp=1, ep=3, experts=7, rows=9)),
            praise="the gradients of one device: experts add up over fewer ranks, and all divide by the same number",
        ),
        "edges": Level(
            points=1,
            cases=(
                ExpertsHunt(dp=1, ep=4, experts=6),
                ExpertsHunt(dp=3, ep=1, rows=7),
                ExpertsHunt(dp=1, ep=1, rows=3),
            ),
            praise="also with another number of experts on each rank, and without ep",
        ),
    },
    hints=(
        "climb(Suspect) names the rung, the parameters, and a ratio. A complaint about other parameters, or about "
        "something that no rung looks at, is not it.",
        "Take one expert, and one row of a rank that does not have it. The row travels to the expert, so its term is "
        "in the expert's gradient before anything is averaged. For the embedding that is not so.",
        "Each rank's loss was multiplied by the number of all ranks, dp · ep, because a mean over all of them divides "
        "by it again. By what is an expert's gradient divided in `average`?",
        "What differs between experts and the rest: over whom to add up, by what to divide, or both? Only the first: "
        "all ranks have multiplied their loss by the same number.",
    ),
)
