"""How 05.9 and 05.10 are judged: a tensor-parallel trainer that the learner mended, step by step against one device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn

from course_lib.checks.kit.hunt import RATE, Given, Wrong, hunt_exercise, rows_of_steps
from course_lib.checks.kit.mended import MendedStep, first_wrong, step_beside, trainers_ready
from course_lib.checks.kit.said import besides, plural
from course_lib.checks.kit.scene import in_dtype
from course_lib.checks.kit.spec import Level
from course_lib.checks.kit.step import Cause, possible
from course_lib.comm.ledger import Ledger
from course_lib.config import ModelConfig, TrainConfig
from course_lib.models.decoder import Decoder
from course_lib.models.mlp import MLP
from course_lib.training.batches import Batch
from course_lib.training.trainer import Trainer

Kind = Literal["normed", "zero biases", "llama", "one kv head"]
_OF_THE_LOSS = 3  # all-reduces of a step: a maximum, a sum of powers, the target's logit
_WORDS: Mapping[Kind, str] = {
    "normed": "a norm and the 6-4-2 MLP",
    "zero biases": "a norm and the 6-4-2 MLP, whose biases start at zero",
    "llama": "a small Llama",
    "one kv head": "a small Llama with one kv head",
}
_COURSE_SUMS = (
    "right gradients, but the course's trainer added them up, in local.partial_sums(), as its own compute_gradients "
    "does. Call super().compute_gradients(batch), which is Spread's, and write the sum after it with comm"
)
_TALKS_ITSELF = (
    "a layer was called, and what tensor() has hung on it talks to the other ranks by itself. Here self.operators does "
    "that: compute with layer.weight and layer.bias, as Suspect does"
)
_LLAMA = ModelConfig(
    name="small", hidden_size=12, n_layers=2, n_heads=6, n_kv_heads=6, ffn_size=10, vocab_size=17, tied=False
)


class _Normed(MLP):
    """With a norm before it, which every rank has whole."""

    def __init__(self) -> None:
        super().__init__(gelu=True)
        self.norm = nn.RMSNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x))


@dataclass(frozen=True, kw_only=True)
class Hunt:
    """So many steps by SGD, with `rows` rows or sequences in each batch; or what the learner found."""

    world_size: int
    model: Kind
    rows: int = 6
    sequence: int = 6
    steps: int = 2
    diagnosis: bool = False
    look: bool = False  # at the calls

    def __str__(self) -> str:
        if self.diagnosis:
            return "diagnosis"
        tokens = f"{self.rows} x {self.sequence} tokens" if _is_text(self.model) else plural(self.rows, "row")
        return f"{plural(self.world_size, 'rank')}, {_WORDS[self.model]}, {tokens}"


class Hunted(NamedTuple):
    """One rank: the diagnosis, or its steps, and whether the course's trainer added up what lies on several ranks."""

    diagnosis: Any
    steps: list[MendedStep]
    course_sums: bool
    layers_called: bool = False


def step_by_step(causes: Sequence[Cause], *, own_sums: bool = False) -> Wrong:
    """Judges a trainer beside one device; with `own_sums` the learner adds up what lies on several ranks."""

    def wrong(given: Given, reports: Sequence[Hunted], book: Ledger, levels: Mapping[str, Level]) -> str | None:
        case = given.case
        reason = first_wrong([report.steps for report in reports], possible(causes, case, levels))
        if any(report.layers_called for report in reports):
            reason = besides(reason, _TALKS_ITSELF) if reason else f"right gradients, but {_TALKS_ITSELF}"
        if own_sums and not reason and any(report.course_sums for report in reports):
            reason = _COURSE_SUMS
        return reason or (_too_many_sums(case, book) if case.look else None)

    return wrong


def _too_many_sums(case: Hunt, book: Ledger) -> str | None:
    calls = len(book.of("all_reduce").calls()) / case.steps - _OF_THE_LOSS
    if calls == 1:
        return None
    if calls < 1:
        return "right gradients, but the ledger has no all-reduce for them: use comm.all_reduce"
    found = f"{calls:g} all-reduces in a step besides those of the loss, target 1"
    return f"right gradients, but {found}: short tensors cost a latency each, so put them into one vector"


def _is_text(model: Kind) -> bool:
    return model in ("llama", "one kv head")


def _batches(case: Hunt, source: torch.Generator) -> list[Batch]:
    if not _is_text(case.model):
        return rows_of_steps(case, source)
    shape = case.steps, case.rows, case.sequence + 1
    tokens = torch.randint(_LLAMA.vocab_size, shape, generator=source)
    return [(each[:, :-1].contiguous(), each[:, 1:].contiguous()) for each in tokens]


def _build(case: Hunt, seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if _is_text(case.model):
            return Decoder(replace(_LLAMA, n_kv_heads=1 if case.model == "one kv head" else 6))
        model = _Normed()
        for name, parameter in model.named_parameters():
            if case.model == "zero biases" and name.endswith("bias"):
                nn.init.zeros_(parameter)
        return model


def _attempt(answer: Callable[..., Any], given: Given) -> Hunted:
    """Runs on a rank: `answer` is the class of a trainer; beside it one device trains on the same batches."""
    case = given.case
    with in_dtype(torch.float64):
        model, config = _build(case, given.seed), TrainConfig(learning_rate=RATE)
        alone, trainer = Trainer(copy.deepcopy(model), config), answer(model, config)
        if case.diagnosis:
            return Hunted(trainer.diagnosis(), [], course_sums=False)
        called: list[nn.Module] = []
        for layer in (model.layer1, model.layer2) if isinstance(model, _Normed) else ():
            layer.register_forward_pre_hook(lambda layer, inputs: called.append(layer))
        with patch.object(trainer.local, "partial_sums", wraps=trainer.local.partial_sums) as sums:
            found = [step_beside(trainer, alone, batch, of_inputs=not _is_text(case.model)) for batch in given.batches]
    return Hunted(None, found, sums.called, bool(called))


hunt = partial(hunt_exercise, batches=_batches, probe=_attempt, warm_up=partial(trainers_ready, "tensor_technique"))
