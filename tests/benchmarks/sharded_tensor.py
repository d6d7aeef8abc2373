"""Our FSDP x TP against PyTorch's FSDP2 x DTensor, in tokens per second: whole steps with AdamW, two by two ranks."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import ddp
import pipeline
import torch
import torch.distributed as dist
from all_reduce import slowest
from ddp import BATCH, MODEL, STEPS
from measure import Comparison, Verdict, in_turn, mean_ratio
from page import TIMES, TOKENS, Benchmark, gate_row, table, tokens_row
from pipeline import SEQUENCES
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.profiler import ProfilerActivity, profile

from course_lib import comm
from course_lib.comm import ledger
from course_lib.config import TrainConfig
from course_lib.models.decoder import Decoder
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import run_ranks
from course_lib.training.batches import Batch
from course_lib.training.setup import Technique
from course_lib.training.sharding import fully_shard
from course_lib.training.tensor_technique import tensor
from course_lib.training.torch_sharding import torch_fully_shard
from course_lib.training.torch_techniques import torch_tensor
from course_lib.training.trainer import Trainer
from course_lib.verify.equality import deviation

DP, TP = 2, 2
ROUNDS = 11
ALGORITHMS = ("native", "ring")  # ours by gloo's own collectives, as the peer's, and by the course's
PEER = "torch"


@dataclass(frozen=True, kw_only=True)
class ShardedTensorCell:
    """One length of the sequences, one transport of ours."""

    sequence: int
    algorithm: str
    calls: tuple[int, int]  # collectives of a step on a rank, ours and torch's
    comparison: Comparison

    @property
    def tokens_per_s(self) -> tuple[float, float]:
        """Ours and torch's, by their median steps."""
        tokens = BATCH * self.sequence
        return tokens / median(self.comparison.ours_s), tokens / median(self.comparison.peer_s)


def compare() -> list[ShardedTensorCell]:
    """Every sequence."""
    import all_reduce
    import measure
    import sharded_tensor

    measure.travel_along(all_reduce, ddp, measure, pipeline, sharded_tensor)
    return [cell for sequence in SEQUENCES for cell in compare_at(sequence, ROUNDS)]


def compare_at(sequence: int, rounds: int) -> list[ShardedTensorCell]:
    """Seconds of a step of ours and of torch's, in turn."""
    by_rank = run_ranks(take_turns, DP * TP, sequence, rounds, timeout=600)
    calls, _ = by_rank[0]
    times = {who: slowest([seconds[who] for _, seconds in by_rank]) for who in (*ALGORITHMS, PEER)}
    return [
        ShardedTensorCell(
            sequence=sequence,
            algorithm=algorithm,
            calls=(calls[algorithm], calls[PEER]),
            comparison=Comparison(
                name=f"sequences of {sequence}, {algorithm}", ours_s=times[algorithm], peer_s=times[PEER]
            ),
        )
        for algorithm in ALGORITHMS
    ]


def take_turns(sequence: int, rounds: int) -> tuple[dict[str, int], dict[str, list[float]]]:
    """On a rank: the collectives of each one's step, and each round's seconds for a step of each."""
    torch.manual_seed(0)
    mesh, everyone = make_mesh(dp=DP, tp=TP), dist.new_group()
    tokens = torch.randint(MODEL.vocab_size, (BATCH, sequence + 1))
    batch = tokens[:, :-1], tokens[:, 1:]
    apply: dict[str, tuple[Technique, ...]] = {
        one: (tensor(sequence_parallel="keep", algorithm=one), fully_shard(algorithm=one)) for one in ALGORITHMS
    }
    apply[PEER] = torch_tensor(sequence_parallel="keep"), torch_fully_shard()
    with comm.settings(guard=False, ledger=False):
        trainers = {who: trainer_of(mesh, techniques) for who, techniques in apply.items()}
        check(trainers, batch)
        calls = {who: collectives(trainer, batch) for who, trainer in trainers.items()}
        more = sum("norm" in name for name in trainers[PEER].trained) - 1  # gradients of norms, in ours one row
        assert all(calls[who] + more == calls[PEER] for who in ALGORITHMS), calls
        steps = {who: partial(timed, trainer, batch, everyone) for who, trainer in trainers.items()}
        return calls, in_turn(steps, rounds)


def trainer_of(mesh: DeviceMesh, techniques: Iterable[Technique]) -> Trainer:
    """The same weights for all; one kernel of AdamW for all parameters."""
    torch.manual_seed(0)
    trainer = Trainer(Decoder(MODEL), TrainConfig(optimizer="adamw"), mesh=mesh, apply=tuple(techniques))
    parameters = [trainer.local.parameters[name] for name in trainer.trained]
    trainer.optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True)
    return trainer


def step(trainer: Trainer, batch: Batch) -> None:
    """A whole step without the gradient's norm."""
    trainer.compute_gradients(batch)
    trainer.update()


def timed(trainer: Trainer, batch: Batch, group: ProcessGroup) -> float:
    """Seconds of one step, averaged over a few."""
    dist.barrier(group)
    started = time.perf_counter()
    for _ in range(STEPS):
        step(trainer, batch)
    return (time.perf_counter() - started) / STEPS


def check(trainers: dict[str, Trainer], batch: Batch) -> None:
    """Refuse to time a step with other gradients than torch's; it warms all up too."""
    found: dict[str, dict[str, Any]] = {}
    for who, trainer in trainers.items():
        trainer.compute_gradients(batch)
        found[who] = {name: gradient.clone() for name, gradient in trainer.gradients().items()}
        trainer.update()
    for who in ALGORITHMS:
        assert found[who].keys() == found[PEER].keys() != set(), who
        for name, gradient in found[who].items():
            assert deviation(gradient, found[PEER][name]) < 1e-4, f"{who}: {name}"


def collectives(trainer: Trainer, batch: Batch) -> int:
    """Of this rank's step: the course's, each of which is sends and receives, and PyTorch's own."""
    ledger.clear()
    with comm.settings(ledger=True), profile(activities=[ProfilerActivity.CPU]) as found:
        step(trainer, batch)
    own = {event.call for event in ledger.current() if event.kind == "send"}
    calls = [event.name.removeprefix("c10d::") for event in found.events() if event.name.startswith("c10d::")]
    return len(own) + sum(call not in ("send", "recv_") for call in calls)


def verdicts(cells: list[ShardedTensorCell]) -> list[Verdict]:
    """Of each transport, the geometric mean over the sequences."""
    return [
        Verdict(
            figure=f"FSDP x TP, {algorithm}, against FSDP2 x DTensor, tokens/s",
            ratio=mean_ratio([cell.comparison for cell in cells if cell.algorithm == algorithm]),
            gate=1.05,
            goal=1.25,
        )
        for algorithm in ALGORITHMS
    ]


def sections(cells: list[ShardedTensorCell]) -> list[str]:
    """A row for each length of the sequences and transport."""
    rows = [tokens_row(f"{c.sequence} | {c.algorithm} | {c.calls[0]} | {c.calls[1]}", c) for c in cells]
    about = (
        f"dp={DP} x tp={TP}, both with sequence parallelism; {MODEL.n_layers} layers of {MODEL.hidden_size}, "
        f"{BATCH} sequences, AdamW; guard and ledger off; PyTorch adds up each norm's gradient in a call of its own"
    )
    head = ["sequence", "our transport", "our calls", "torch's calls", *TIMES, *TOKENS]
    return [f"## FSDP x TP against PyTorch's FSDP2 x DTensor ({about})", table([head, *rows])]


BENCHMARK = Benchmark(
    lesson=7,
    title="FSDP x TP against FSDP2 x DTensor",
    compare=compare,
    gates=lambda cells: [gate_row(verdict) for verdict in verdicts(cells)],
    sections=sections,
)
