"""Two pipelines of two stages, gradients averaged, against torch's pipelining with `replicate` around each stage."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

import ddp
import pipeline
import torch
import torch.distributed as dist
from all_reduce import slowest
from measure import Comparison, Verdict, in_turn, mean_ratio
from page import TIMES, TOKENS, Benchmark, gate_row, table, tokens_row
from pipeline import MODEL, ROUNDS, ROWS, SEQUENCES, gradients, timed
from torch import Tensor, nn
from torch.distributed import ProcessGroup, pipelining
from torch.distributed._composable.replicate_with_fsdp import replicate

from course_lib import comm
from course_lib.models.decoder import Decoder
from course_lib.parallel.data.options import Plan
from course_lib.parallel.data.stage_reducer import StageReducer
from course_lib.parallel.pipelines import stages
from course_lib.parallel.pipelines.executor import Pipeline
from course_lib.parallel.table.mesh import make_mesh, mesh_of
from course_lib.ranks import run_ranks
from course_lib.schedules import make_schedule
from course_lib.split import split_sizes
from course_lib.training.step import loss_of

PP, DP = 2, 2
MICROBATCHES = 2 * PP
PEERS = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B"}  # ours and torch's, the same order of computing


@dataclass(frozen=True, kw_only=True)
class TwoAxesCell:
    """One length of the sequences and one schedule."""

    sequence: int
    schedule: str
    comparison: Comparison

    @property
    def tokens_per_s(self) -> tuple[float, float]:
        """Ours and torch's, by their median steps."""
        tokens = DP * ROWS * MICROBATCHES * self.sequence
        return tokens / median(self.comparison.ours_s), tokens / median(self.comparison.peer_s)


def compare() -> list[TwoAxesCell]:
    """Every sequence and schedule on four ranks."""
    import all_reduce
    import measure
    import two_axes

    measure.travel_along(all_reduce, ddp, measure, pipeline, two_axes)
    return [cell for sequence in SEQUENCES for cell in compare_at(sequence, ROUNDS)]


def compare_at(sequence: int, rounds: int) -> list[TwoAxesCell]:
    """Seconds of a step with every schedule, of ours and of torch's, in turn."""
    by_rank = run_ranks(take_turns, PP * DP, sequence, rounds, timeout=600)
    return [
        TwoAxesCell(
            sequence=sequence,
            schedule=name,
            comparison=Comparison(
                name=f"sequences of {sequence}, {name}",
                ours_s=slowest([times[f"our {name}"] for times in by_rank]),
                peer_s=slowest([times[f"their {name}"] for times in by_rank]),
            ),
        )
        for name in PEERS
    ]


def take_turns(sequence: int, rounds: int) -> dict[str, list[float]]:
    """On a rank: each round's seconds for a step of every schedule, ours and torch's side by side."""
    torch.manual_seed(0)
    mesh = make_mesh(pp=PP, dp=DP)
    pp, dp = mesh.get_group("pp"), mesh.get_group("dp")
    whole = Decoder(MODEL)
    parts = stages.cut(whole, split_sizes(len(stages.layers_of(whole)), PP))
    model = parts[pp.rank()]
    tokens = torch.randint(MODEL.vocab_size, (DP, ROWS * MICROBATCHES, sequence + 1))[dp.rank()]
    shapes = stages.passed_on(
        stages.cut(stages.skeleton(whole), split_sizes(len(stages.layers_of(whole)), PP)), tokens[:ROWS, :-1]
    )
    models = {"our": model, "their": replicate(copy.deepcopy(model), mesh=mesh_of(dp, "replicate"))}
    with comm.settings(guard=False, ledger=False):
        steps: dict[str, Callable[[], None]] = {}
        for name in PEERS:
            steps[f"our {name}"] = our_step(name, model, tokens, shapes, pp, dp)
            steps[f"their {name}"] = their_step(name, models["their"], tokens, pp)
        check(models, steps)
        everyone = dist.new_group()
        turns = {who: partial(timed, step, models[who.split()[0]], everyone) for who, step in steps.items()}
        return in_turn(turns, rounds)


def our_step(
    name: str, model: nn.Module, tokens: Tensor, shapes: list[Tensor], pp: ProcessGroup, dp: ProcessGroup
) -> Callable[[], None]:
    """Forward and backward by the course's executor; a stage is averaged when its last backward is through."""
    engine = Pipeline({pp.rank(): model}, make_schedule(name, PP, MICROBATCHES), pp)
    reducer = StageReducer(engine, Plan(group=dp), together=dp)
    engine.stage_complete = reducer.mark_stage_ready
    inputs, targets = tokens[:, :-1].chunk(MICROBATCHES), tokens[:, 1:].chunk(MICROBATCHES)

    def step() -> None:
        reducer.prepare_for_backward()
        engine.run(inputs, [shapes] * MICROBATCHES, lambda output, which: loss_of(output, targets[which]))
        reducer.finalize_backward()

    return step


def their_step(name: str, model: nn.Module, tokens: Tensor, pp: ProcessGroup) -> Callable[[], None]:
    """The same by torch's, which averages in the last micro-batch's backward."""
    stage = pipelining.PipelineStage(model, pp.rank(), PP, torch.device("cpu"), group=pp)
    schedule = getattr(pipelining, PEERS[name])(stage, MICROBATCHES, loss_fn=loss_of, scale_grads=False)
    args = [tokens[:, :-1]] if pp.rank() == 0 else []
    return lambda: schedule.step(*args, target=tokens[:, 1:], return_outputs=False)


def check(models: dict[str, nn.Module], steps: dict[str, Callable[[], None]]) -> None:
    """Refuse to time a step with other gradients than torch's; it warms both up too."""
    for name in PEERS:
        ours, theirs = (gradients(model, steps[f"{who} {name}"]) for who, model in models.items())
        assert ours.keys() == theirs.keys() != set(), name
        for parameter, gradient in ours.items():
            same = torch.allclose(gradient, theirs[parameter].to_local(), rtol=1e-3, atol=1e-3)
            assert same, f"{name}: {parameter}"


def verdicts(cells: list[TwoAxesCell]) -> list[Verdict]:
    """Of each schedule, the geometric mean over the sequences."""
    return [
        Verdict(
            figure=f"dp={DP} x pp={PP}, {name}, against torch's {theirs} with `replicate`, tokens/s",
            ratio=mean_ratio([cell.comparison for cell in cells if cell.schedule == name]),
            gate=0.95,
            goal=1.05,
        )
        for name, theirs in PEERS.items()
    ]


def sections(cells: list[TwoAxesCell]) -> list[str]:
    """A row for each length of the sequences and schedule."""
    rows = [tokens_row(f"{cell.sequence} | {cell.schedule}", cell) for cell in cells]
    about = f"{DP} pipelines of {PP} stages, {MICROBATCHES} micro-batches of {ROWS} sequences in each, no optimizer"
    return [
        f"## Data parallelism over pipelines, against torch's pipelining with `replicate` ({about}; guard, ledger off)",
        table([["sequence", "schedule", *TIMES, *TOKENS], *rows]),
    ]


BENCHMARK = Benchmark(
    lesson=4,
    title="data parallelism over pipelines against torch's",
    compare=compare,
    gates=lambda cells: [gate_row(verdict) for verdict in verdicts(cells)],
    sections=sections,
)
