"""How 07.6 and 07.7 are judged: trainers on two axes that the learner mended, step by step beside one device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isclose
from typing import Any, NamedTuple

import torch

from course_lib.checks.kit import models
from course_lib.checks.kit.hunt import RATE, Given, hunt_exercise
from course_lib.checks.kit.mended import MendedStep, first_wrong, step_beside, trainers_ready
from course_lib.checks.kit.said import plural, wrong_kind
from course_lib.checks.kit.scene import in_dtype
from course_lib.checks.kit.spec import Level
from course_lib.comm.ledger import Ledger
from course_lib.config import TrainConfig
from course_lib.training.trainer import Trainer
from course_lib.verify.numbers import number_of, whole_numbers
from course_lib.verify.ratios import times

_MAX_NORM = 0.01  # so that every step is clipped


@dataclass(frozen=True, kw_only=True)
class MeshHunt:
    """So many steps by SGD on dp x tp ranks, with `rows` rows in each batch; or what the learner found."""

    dp: int = 1
    tp: int = 1
    rows: int = 8
    steps: int = 2
    diagnosis: bool = False

    @property
    def world_size(self) -> int:
        """All ranks of the mesh."""
        return self.dp * self.tp

    def __str__(self) -> str:
        if self.diagnosis:
            return "diagnosis"
        return f"dp {self.dp} x tp {self.tp}, {plural(self.rows, 'row')}"


class _Norm(NamedTuple):
    """What a rank clips by, one device's, and what it would be if squares were added up otherwise."""

    got: float | str
    right: float
    others: Mapping[str, float]


class _Hunted(NamedTuple):
    """One rank: the diagnosis, or its steps, the norms of these, and the rows that every rank reads."""

    diagnosis: Any
    steps: Sequence[MendedStep] = ()
    norms: Sequence[_Norm] = ()
    rows: Sequence[list[int] | str] = ()


def _pair(answer: Callable[..., Any], given: Given, config: TrainConfig) -> tuple[Any, Trainer]:
    """Runs on a rank: the learner's trainer and one device's, of the same model."""
    case = given.case
    model = models.build("gelu", given.seed, torch.float64)
    alone = Trainer(copy.deepcopy(model), config)
    return answer(model, config, case.dp, case.tp), alone


def _clipped_steps(answer: Callable[..., Any], given: Given) -> _Hunted:
    """Runs on a rank: `answer` is a class of trainers, whose norm is looked at in each step."""
    with in_dtype(torch.float64):
        trainer, alone = _pair(answer, given, TrainConfig(learning_rate=RATE, max_norm=_MAX_NORM))
        if given.case.diagnosis:
            return _Hunted(trainer.diagnosis())
        norms = []
        for batch in given.batches:
            alone.compute_gradients(batch)
            trainer.compute_gradients(batch)
            others = _other_norms(trainer)
            norms.append(_Norm(_norm_of(trainer), alone.clip(), others))
            for one in (trainer, alone):
                one.update()
    return _Hunted(None, norms=norms)


def _norm_of(trainer: Any) -> float | str:
    """What it clips by; the type of what is no number."""
    squares = trainer.squares()
    number = number_of(squares)
    if number is None:
        return type(squares).__name__
    trainer.clip()
    return float(number) ** 0.5


def _other_norms(trainer: Trainer) -> Mapping[str, float]:
    """Roots of sums that somebody might take for the norm's; all ranks compute them from what every rank has."""
    local = trainer.local
    mine = {name: float(g.square().sum()) for name, g in local.gradients().items()}
    whole = {name for name, place in local.layout.places.items() if "tp" not in place.shard}
    rows: list[Any] = [None] * len(local.members)
    torch.distributed.all_gather_object(rows, (local.at, mine))
    at = local.at

    def root(*axes: str, copies: bool = True) -> float:
        """Over the ranks that differ from this one along the axes alone."""
        others = [row for place, row in rows if all(place[axis] == at[axis] for axis in place if axis not in axes)]
        return sum(square for row in others for name, square in row.items() if copies or name not in whole) ** 0.5

    once = [[square for name, square in row.items() if name not in whole or place["tp"] == 0] for place, row in rows]
    norms = sum(square**0.5 for row in once for square in row)
    of_ranks = sum(sum(row) ** 0.5 for row in once)
    return {
        "those are the squares of this rank's own numbers": root(),
        "squares were added up along dp alone: the ranks along tp have other parts of the same matrices": root("dp"),
        "squares were added up along tp alone: the ranks along dp have other pieces": root("tp"),
        "what tp leaves whole counts once from every rank along tp": root("dp", "tp"),
        "what tp leaves whole is missing": root("dp", "tp", copies=False),
        "the parameters' norms were added up. Squares add up, norms do not": norms**0.5,
        "the parameters' norms were added up, and then squared. Squares add up, norms do not": norms,
        "the ranks' norms were added up. Squares add up, norms do not": of_ranks**0.5,
        "the ranks' norms were added up, and then squared. Squares add up, norms do not": of_ranks,
    }


def _same_norms(given: Given, reports: Sequence[_Hunted], book: Ledger, levels: Mapping[str, Level]) -> str | None:
    """What is said of the first norm that is not one device's."""
    for number, norms in enumerate(zip(*(report.norms for report in reports), strict=True), start=1):
        for rank, norm in enumerate(norms):
            if isinstance(norm.got, str):
                return f"step {number}: squares() on rank {rank} {wrong_kind(norm.got, 'one number')}"
            if not isclose(norm.got, norm.right, rel_tol=1e-9):
                same = (says for says, other in norm.others.items() if isclose(norm.got, other, rel_tol=1e-9))
                because = next(same, "")
                found = f"step {number}: the norm on rank {rank} is {times(norm.got / norm.right)} one device's"
                return f"{found}{f': {because}' if because else _by_ratio(given.case, norm)}"
    return None


def _by_ratio(case: MeshHunt, norm: _Norm) -> str:
    """Of squares, the norm's own, or those of all ranks."""
    assert not isinstance(norm.got, str)
    if isclose(norm.got, norm.right**0.5, rel_tol=1e-9):
        return ": is the root taken twice? squares() returns the sum, and global_norm() its root"
    if isclose(norm.got, norm.right / case.world_size**0.5, rel_tol=1e-9):
        return ": the sum was divided by the number of ranks. They have different numbers, so nothing is averaged"
    return ""


def _read_steps(answer: Callable[..., Any], given: Given) -> _Hunted:
    """Runs on a rank: `answer` is a class of trainers, which choose the rows that they read."""
    with in_dtype(torch.float64):
        trainer, alone = _pair(answer, given, TrainConfig(learning_rate=RATE))
        if given.case.diagnosis:
            return _Hunted(trainer.diagnosis())
        rows: list[Any] = [None] * given.case.world_size
        torch.distributed.all_gather_object(rows, whole_numbers(trainer.rows(given.case.rows)))
        steps = () if _wrong_rows(given.case, rows) else [step_beside(trainer, alone, one) for one in given.batches]
    return _Hunted(None, steps, rows=rows)


def _same_rows(given: Given, reports: Sequence[_Hunted], book: Ledger, levels: Mapping[str, Level]) -> str | None:
    """What is said of rows that are read by the wrong ranks, then of gradients."""
    return _wrong_rows(given.case, reports[0].rows) or first_wrong([report.steps for report in reports], ())


def _wrong_rows(case: MeshHunt, rows: Sequence[list[int] | str]) -> str | None:
    """Along tp the same ones, along dp each once; with others the ranks would wait for each other, so none trains."""
    for rank, mine in enumerate(rows):
        if isinstance(mine, str):
            return f"rows() on rank {rank} {wrong_kind(mine, 'a list of whole numbers')}"
        first = rank // case.tp * case.tp
        if mine != rows[first]:
            both = f"ranks {first} and {rank} have parts of the same matrices and read rows {rows[first]} and {mine}"
            return f"{both}: what they add up is then of no row at all"
    read = [row for rank in range(0, case.world_size, case.tp) for row in rows[rank]]
    if outside := [row for row in read if row not in range(case.rows)]:
        return f"row {outside[0]} is read, and there are {case.rows}"
    for row in range(case.rows):
        often = read.count(row)
        if often != 1:
            who = [rank for rank in range(0, case.world_size, case.tp) if row in rows[rank]]
            told = "by nobody" if not often else f"{often} times, by ranks {', '.join(map(str, who))}"
            return f"row {row} is read {told}: the ranks along dp share the rows, and each row counts once"
    return None


_ready = partial(trainers_ready, "tensor_technique", "sharding")
clipping = partial(hunt_exercise, probe=_clipped_steps, wrong=_same_norms, warm_up=_ready)
reading = partial(hunt_exercise, probe=_read_steps, wrong=_same_rows, warm_up=_ready)
