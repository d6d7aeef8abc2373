"""04.10: a tied embedding on the first and the last rank, whose two gradients belong together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.checks.kit.parts import Gradients, Guess, Place, gradients_on
from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.spec import Level
from course_lib.checks.kit.stages import FP32, Report, attempt_on, wrong_step
from course_lib.comm.ledger import Ledger
from course_lib.config import ModelConfig
from course_lib.costs.pipeline import pipeline_step
from course_lib.models.decoder import Decoder
from course_lib.parallel.stages import cut
from course_lib.training.batches import Batch

SMALL = ModelConfig(
    name="small Llama", hidden_size=8, n_layers=2, n_heads=2, n_kv_heads=1, ffn_size=12, vocab_size=20, tied=True
)
SIZES = {1: (4,), 2: (2, 2), 3: (1, 2, 1)}  # embedding, two layers, norm and head, by ranks
TABLE = FP32 * SMALL.vocab_size * SMALL.hidden_size


@dataclass(frozen=True, kw_only=True)
class Tied:
    """A pipeline of so many ranks, and a batch of sequences for it."""

    world_size: int
    batch: int = 2
    sequence: int = 5
    look_at_bytes: bool = False

    def __str__(self) -> str:
        return f"{self.world_size} rank{'s' * (self.world_size > 1)}, {self.batch} x {self.sequence} tokens"


class Given(NamedTuple):
    """The seed of the model, the batch, and the shape of what passes a cut."""

    seed: int
    batch: Batch
    shape: tuple[int, int, int]


def draw(case: Tied, seed: int) -> Given:
    """Tokens and the ones that follow them, the same on all ranks."""
    generator = torch.Generator().manual_seed(seed * 1009 + case.world_size)
    tokens = torch.randint(SMALL.vocab_size, (case.batch, case.sequence + 1), generator=generator)
    batch = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return Given(seed + 1, batch, (case.batch, case.sequence, SMALL.hidden_size))


def build(seed: int, *, tied: bool = True) -> Decoder:
    """The whole model; untied it starts from the same numbers."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Decoder(SMALL)
        if tied:
            return model
        apart = Decoder(replace(SMALL, tied=False))
    apart.load_state_dict(model.state_dict())
    return apart


def attempt(function: Callable[..., Any], given: Given) -> Report:
    """Runs on a rank."""
    stage = cut(build(given.seed), SIZES[dist.get_world_size()])[dist.get_rank()]
    return attempt_on(stage, lambda: function(stage, copy_of(stage), *given.batch, given.shape))


def copy_of(stage: nn.Module) -> nn.Parameter | None:
    """The tied weight, if a stage has it."""
    weight = stage.get_parameter("embedding.weight") if stage.embedding else None
    return weight if weight is not None else stage.get_parameter("head.weight") if stage.head else None


def verdict(case: Tied, given: Given, reports: tuple[Any, ...], book: Ledger) -> str | None:
    """Gradients and loss, then bytes."""
    p = case.world_size
    want, loss = _on_one_device(given, p)
    causes = [(0.5, "an average of the two copies' gradients, where their sum belongs"), (2, "is it added twice?")]
    guesses = _guesses(given, p, _not_added(p, reports, book)) if p > 1 else []
    reason = wrong_step(reports, want, loss, book, guesses=guesses, causes=causes)
    if reason is None and case.look_at_bytes:
        reason = _wrong_bytes(case, book)
    return f"{case}: {reason}" if reason else None


def _wrong_bytes(case: Tied, book: Ledger) -> str | None:
    p = case.world_size
    one = FP32 * case.batch * case.sequence * SMALL.hidden_size
    target = pipeline_step([one] * (p - 1), n_ranks=p, n_microbatches=1, tied_bytes=TABLE).sent_bytes
    if p > 1 and all(book.bytes_sent(rank) == target[rank] - TABLE for rank in (0, p - 1)):
        found = "values right, but the ledger has no message for the tied weight"
        return f"{found}: use comm.isend and comm.irecv, not torch.distributed's own calls"
    for rank, limit in enumerate(target):
        if (got := book.bytes_sent(rank)) != limit:
            extra = f"values right, but rank {rank} sends {got} bytes, target {limit}"
            advice = "besides what passes the cuts, only the first and the last rank send, one gradient each"
            everyone = p > 2 and any(e.operation == "all_reduce" and 0 < e.rank < p - 1 for e in book.events)
            meeting = ". All ranks take part in your all_reduce, also those without a copy" if everyone else ""
            return f"{extra}: {advice}, {TABLE} bytes{meeting}"
    return None


def _not_added(p: int, reports: tuple[Any, ...], book: Ledger) -> str:
    """What was done in place of adding, if each copy has the gradient of its own use alone."""
    copies = f"rank 0's copy has the gradient of looking tokens up, rank {p - 1}'s that of the head"
    if any(report.weights_written for report in reports):
        return f"{copies}: the *weights* were written, which are equal anyway; add the gradients"
    if any(event.operation == "all_reduce" for event in book.events):
        return f"{copies}: what comm.all_reduce returns is the sum, its input stays as it is; where does the sum go?"
    if any(event.kind == "recv" and event.nbytes == TABLE for event in book.events):
        return f"{copies}: {TABLE} bytes came in, but tied.grad is what it was; what is sent, and where is it added?"
    return f"{copies}: nobody adds them"


def _on_one_device(given: Given, p: int, *, tied: bool = True) -> tuple[dict[Place, Tensor | None], float]:
    """Gradients by rank, and the loss; both copies of what is tied have the whole gradient."""
    model = build(given.seed, tied=tied)
    loss = F.cross_entropy(model(given.batch[0]).flatten(0, 1), given.batch[1].flatten())
    loss.backward()
    stages = cut(model, SIZES[p])
    return {place: x for rank in range(p) for place, x in gradients_on(rank, stages[rank]).items()}, loss.item()


def _guesses(given: Given, p: int, not_added: str) -> list[Guess]:
    """What the two copies hold if their gradients are not added, or only half of the way."""
    apart, (whole, _) = _on_one_device(given, p, tied=False)[0], _on_one_device(given, p)
    first, last = (0, "embedding.weight"), (p - 1, "head.weight")
    looked_up, multiplied, both = apart[first], apart[last], whole[first]
    assert looked_up is not None and multiplied is not None and both is not None

    def copies(one: Tensor | None, other: Tensor | None) -> Gradients:
        return {first: one, last: other}

    back = "rank {}'s copy has its own part twice: it came back in what rank {} sent. "
    back += "Was that the sum already, or was something added to tied.grad before its send had ended?"
    half = "only rank {}'s copy has the sum; rank {}'s keeps its own part, so the two drift apart"
    return [
        (copies(looked_up, multiplied), not_added),
        (copies(both, multiplied), half.format(0, p - 1)),
        (copies(looked_up, both), half.format(p - 1, 0)),
        (copies(both + looked_up, both), back.format(0, p - 1)),
        (copies(both, both + multiplied), back.format(p - 1, 0)),
        (copies(multiplied, looked_up), "the two copies changed places: add what comes in, do not put it in place"),
        (copies(2 * looked_up, 2 * multiplied), "each copy has twice its own gradient: add the *other* rank's"),
        (
            copies(looked_up + multiplied / 2, multiplied + looked_up / 2),
            "each copy has its own part and half of the other's: the gradient of two uses is their sum",
        ),
        (copies(multiplied, multiplied), f"both copies have rank {p - 1}'s part alone: add, do not replace"),
        (copies(looked_up, looked_up), "both copies have rank 0's part alone: add, do not replace"),
    ]


TIED = ProbeExercise(
    key="04.10",
    title="find the bug: one weight, two ranks",
    inputs=draw,
    probe=attempt,
    verdict=verdict,
    levels={
        "gradients": Level(
            points=3, cases=(Tied(world_size=2), Tied(world_size=3)), praise="both copies have the whole gradient"
        ),
        "bytes": Level(
            points=1,
            cases=(Tied(world_size=2, look_at_bytes=True), Tied(world_size=3, batch=1, look_at_bytes=True)),
            praise="and only their two ranks send for it, once",
        ),
        "edges": Level(
            points=1,
            cases=(Tied(world_size=1), Tied(world_size=3, sequence=1, look_at_bytes=True)),
            praise="right on one rank, where there is one copy, and for one token",
        ),
    },
    hints=(
        "On one device the weight is used twice, and autograd adds the gradients of both uses. "
        "Who adds them when each use is on another rank?",
        "After backward: the first rank needs the last one's tied.grad, and the other way round. "
        "`tied is None` on the ranks between, and on one rank there is nothing to do.",
        "Both must receive and send: start comm.irecv(theirs, other), then comm.isend(tied.grad, other), "
        "then wait for both. Two ranks that both begin with comm.send wait for each other forever.",
        "other = last - rank. Add only after both waits: tied.grad += theirs.",
    ),
)
