"""04.10: a tied embedding on the first and the last rank, whose two gradients belong together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib import comm
from course_lib.checks.kit.runner import Trial
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.scene import Report, Scene
from course_lib.checks.kit.spec import FP32, Level
from course_lib.checks.kit.step import ALL_ZEROS, Words, step_exercise
from course_lib.comm.ledger import Ledger
from course_lib.config import ModelConfig
from course_lib.costs.comm.pipeline import pipeline_step
from course_lib.models.decoder import Decoder
from course_lib.parallel.pipelines.stages import cut

SMALL = ModelConfig(
    name="small Llama", hidden_size=8, n_layers=2, n_heads=2, n_kv_heads=1, ffn_size=12, vocab_size=20, tied=True
)
SIZES = {1: (4,), 2: (2, 2), 3: (1, 2, 1)}  # embedding, two layers, norm and head, by ranks
_TABLE = FP32 * SMALL.vocab_size * SMALL.hidden_size
COMES_BACK = (
    "rank {}'s copy has its own part twice: it came back in what rank {} sent. "
    "Was that the sum already, or was something added to tied.grad before its send had ended?"
)
HALF_WAY = "only rank {}'s copy has the sum; rank {}'s keeps its own part, so the two drift apart"


@dataclass(frozen=True, kw_only=True)
class Tied:
    """A pipeline of so many ranks, and a batch of sequences for it."""

    world_size: int
    batch: int = 2
    sequence: int = 5
    look: bool = False

    def __str__(self) -> str:
        return f"{plural(self.world_size, 'rank')}, {self.batch} x {self.sequence} tokens"


def _scene(case: Tied, seed: int) -> Scene:
    """Tokens and the ones that follow them, the same on all ranks."""
    p, shape = case.world_size, (case.batch, case.sequence, SMALL.hidden_size)
    generator = torch.Generator().manual_seed(seed * 1009 + p)
    tokens = torch.randint(SMALL.vocab_size, (case.batch, case.sequence + 1), generator=generator)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    with torch.random.fork_rng():
        torch.manual_seed(seed + 1)
        model = Decoder(SMALL)
    return Scene(
        parts=cut(model, SIZES[p]),
        arguments=lambda stage, rank: (stage, _copy_of(stage), inputs, targets, shape),
        loss=lambda: F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()),
        told=(p - 1,),
    )


def _copy_of(stage: nn.Module) -> nn.Parameter | None:
    """The tied weight, if a stage has it."""
    weight = stage.get_parameter("embedding.weight") if stage.embedding else None
    return weight if weight is not None else stage.get_parameter("head.weight") if stage.head else None


def tied_step(
    stage: nn.Module, tied: nn.Parameter | None, inputs: Tensor, targets: Tensor, shape: Sequence[int]
) -> float | None:
    """The exercise's own, with its bug."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    x = inputs if rank == 0 else comm.recv(torch.empty(shape), rank - 1).requires_grad_()
    y = stage(x)
    if rank == last:
        y = F.cross_entropy(y.flatten(0, 1), targets.flatten())
        y.backward()
    else:
        comm.send(y.detach(), rank + 1)
        y.backward(comm.recv(torch.empty_like(y), rank + 1))
    if rank > 0:
        assert x.grad is not None
        comm.send(x.grad, rank - 1)
    return float(y.item()) if rank == last else None


def _mended(change: Callable[[Tensor, Tensor, bool], Tensor], *given: Any) -> float | None:
    """The step, then what `change` makes of a copy's own gradient and the other's; true on the first rank."""
    loss, tied, last = tied_step(*given), given[1], dist.get_world_size() - 1
    if tied is not None and last:
        theirs, other = torch.empty_like(tied), last - dist.get_rank()
        for handle in [comm.irecv(theirs, other), comm.isend(tied.grad, other)]:
            handle.wait()
        tied.grad = change(tied.grad, theirs, dist.get_rank() == 0)
    return loss


def _wrong_bytes(case: Tied, given: Scene, reports: Sequence[Report], book: Ledger) -> str | None:
    p = case.world_size
    one = FP32 * case.batch * case.sequence * SMALL.hidden_size
    target = pipeline_step([one] * (p - 1), n_ranks=p, n_microbatches=1, tied_bytes=_TABLE).sent_bytes
    if p > 1 and all(book.bytes_sent(rank) == target[rank] - _TABLE for rank in (0, p - 1)):
        found = "values right, but the ledger has no message for the tied weight"
        return f"{found}: use comm.isend and comm.irecv, not torch.distributed's own calls"
    for rank, limit in enumerate(target):
        if (got := book.bytes_sent(rank)) != limit:
            extra = f"values right, but rank {rank} sends {got} bytes, target {limit}"
            advice = "besides what passes the cuts, only the first and the last rank send, one gradient each"
            everyone = p > 2 and any(e.operation == "all_reduce" and 0 < e.rank < p - 1 for e in book.events)
            meeting = ". All ranks take part in your all_reduce, also those without a copy" if everyone else ""
            return f"{extra}: {advice}, {_TABLE} bytes{meeting}"
    return None


def _not_added(case: Tied, trial: Trial) -> str:
    """What was done in place of adding, if each copy has the gradient of its own use alone."""
    copies = f"rank 0's copy has the gradient of looking tokens up, rank {case.world_size - 1}'s that of the head"
    if any(report.written for report in trial.reports):
        return f"{copies}: the *weights* were written, which are equal anyway; add the gradients"
    if any(event.operation == "all_reduce" for event in trial.events):
        return f"{copies}: what comm.all_reduce returns is the sum, its input stays as it is; where does the sum go?"
    if any(event.kind == "recv" and event.nbytes == 2 * _TABLE for event in trial.events):
        return f"{copies}: the other's came in, but tied.grad is what it was; what is sent, and where is it added?"
    return f"{copies}: nobody adds them"


_TIED = step_exercise(
    key="04.10",
    title="find the bug: a loss that falls too fast",
    scene=_scene,
    slips={
        _not_added: tied_step,
        lambda case, trial: HALF_WAY.format(0, case.world_size - 1): partial(
            _mended, lambda own, theirs, first: own + theirs if first else own
        ),
        lambda case, trial: HALF_WAY.format(case.world_size - 1, 0): partial(
            _mended, lambda own, theirs, first: own if first else own + theirs
        ),
        lambda case, trial: COMES_BACK.format(0, case.world_size - 1): partial(
            _mended, lambda own, theirs, first: 2 * own + theirs if first else own + theirs
        ),
        lambda case, trial: COMES_BACK.format(case.world_size - 1, 0): partial(
            _mended, lambda own, theirs, first: own + theirs if first else 2 * own + theirs
        ),
        "the two copies changed places: add what comes in, do not put it in place": partial(
            _mended, lambda own, theirs, first: theirs
        ),
        "each copy has twice its own gradient: add the *other* rank's": partial(
            _mended, lambda own, theirs, first: 2 * own
        ),
        "each copy has its own part and half of the other's: the gradient of two uses is their sum": partial(
            _mended, lambda own, theirs, first: own + theirs / 2
        ),
        lambda case, trial: f"both copies have rank {case.world_size - 1}'s part alone: add, do not replace": partial(
            _mended, lambda own, theirs, first: theirs if first else own
        ),
        "both copies have rank 0's part alone: add, do not replace": partial(
            _mended, lambda own, theirs, first: own if first else theirs
        ),
    },
    causes=(
        (0.5, "an average of the two copies' gradients, where their sum belongs"),
        (2, "is it added twice?"),
        ALL_ZEROS,
    ),
    look=_wrong_bytes,
    words=Words(means="comm.isend and comm.irecv, not torch.distributed's own"),
    levels={
        "gradients": Level(
            points=3,
            again=True,
            cases=(Tied(world_size=2), Tied(world_size=3)),
            praise="both copies have the whole gradient",
        ),
        "bytes": Level(
            points=1,
            cases=(Tied(world_size=2, look=True), Tied(world_size=3, batch=1, look=True)),
            praise="and only their two ranks send for it, once",
        ),
        "edges": Level(
            points=1,
            cases=(Tied(world_size=1), Tied(world_size=3, sequence=1, look=True)),
            praise="right on one rank, where there is one copy, and for one token",
        ),
    },
    hints=(
        "On one device the weight is used twice, and autograd adds up the gradients of both uses. Who adds them up "
        "here, where each use is on a rank of its own?",
        "After backward the first rank needs the last one's tied.grad, and the last one needs the first one's. On "
        "the ranks between `tied` is None, and on a single rank nothing has to be done.",
        "Both ranks have to send and to receive. If both began with comm.send, they would wait for each other "
        "forever. So start comm.irecv(theirs, other) and comm.isend(tied.grad, other), where other = last - rank, "
        "and then wait for both.",
        "Add only after both waits, because until then your own gradient is still on its way out: tied.grad += theirs.",
    ),
)
