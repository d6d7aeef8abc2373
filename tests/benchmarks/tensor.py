"""Our tensor parallelism against DTensor's `parallelize_module`, in tokens per second: forward and backward."""

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
from pipeline import ROUNDS, SEQUENCES, WORLD_SIZES, gradients, timed
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

from course_lib import comm
from course_lib.models.decoder import Decoder
from course_lib.parallel.table.layout import Layout
from course_lib.parallel.table.mesh import mesh_of
from course_lib.parallel.tensors.conjugate import Operators
from course_lib.parallel.tensors.cutting import TensorParallel
from course_lib.parallel.tensors.plan import plan_for
from course_lib.parallel.tensors.region import Region
from course_lib.parallel.tensors.styles import styles_of
from course_lib.parallel.tensors.vocabulary import vocab_parallel_cross_entropy
from course_lib.ranks import run_ranks
from course_lib.training.step import loss_of

ROWS = 8
MODEL = ddp.MODEL
ALGORITHMS = ("native", "ring")  # ours by gloo's own all-reduce, as the peer's, and by the course's


@dataclass(frozen=True, kw_only=True)
class TensorCell:
    """One number of ranks, one length of the sequences, one all-reduce of ours."""

    world_size: int
    sequence: int
    algorithm: str
    comparison: Comparison

    @property
    def tokens_per_s(self) -> tuple[float, float]:
        """Ours and torch's, by their median steps."""
        tokens = ROWS * self.sequence
        return tokens / median(self.comparison.ours_s), tokens / median(self.comparison.peer_s)


def compare() -> list[TensorCell]:
    """Every number of ranks with every sequence."""
    import all_reduce
    import measure
    import tensor

    measure.travel_along(all_reduce, ddp, measure, pipeline, tensor)
    return [
        cell
        for world_size in WORLD_SIZES
        for sequence in SEQUENCES
        for cell in compare_at(world_size, sequence, ROUNDS)
    ]


def compare_at(world_size: int, sequence: int, rounds: int) -> list[TensorCell]:
    """Seconds of a step of ours and of torch's, in turn."""
    by_rank = run_ranks(take_turns, world_size, sequence, rounds, timeout=600)
    return [
        TensorCell(
            world_size=world_size,
            sequence=sequence,
            algorithm=algorithm,
            comparison=Comparison(
                name=f"{world_size} ranks, sequences of {sequence}, {algorithm}",
                ours_s=slowest([times[algorithm] for times in by_rank]),
                peer_s=slowest([times["torch"] for times in by_rank]),
            ),
        )
        for algorithm in ALGORITHMS
    ]


def take_turns(sequence: int, rounds: int) -> dict[str, list[float]]:
    """On a rank: each round's seconds for a step of each."""
    torch.manual_seed(0)
    whole = Decoder(MODEL)
    group = dist.group.WORLD
    tokens = torch.randint(MODEL.vocab_size, (ROWS, sequence + 1))
    with comm.settings(guard=False, ledger=False):
        steps = {algorithm: our_step(copy.deepcopy(whole), tokens, group, algorithm) for algorithm in ALGORITHMS}
        steps["torch"] = their_step(copy.deepcopy(whole), tokens, group)
        check(steps)
        return in_turn({who: partial(timed, step, model, group) for who, (model, step) in steps.items()}, rounds)


Steps = tuple[nn.Module, Callable[[], None]]


def our_step(model: nn.Module, tokens: Tensor, group: ProcessGroup, algorithm: str) -> Steps:
    """Forward and backward by the course's layers."""
    operators = Operators(group=group, algorithm=algorithm)
    layout = Layout(model, {"tp": group.size()})
    cutting = TensorParallel(model, layout, {"tp": group.rank()}, Region(operators=operators))
    cutting.cut(styles_of(model, plan_for(model)))
    inputs, targets, words = tokens[:, :-1], tokens[:, 1:], cutting.words
    assert words is not None
    return model, lambda: vocab_parallel_cross_entropy(model(inputs), targets, operators, words).sum().backward()


def their_step(model: nn.Module, tokens: Tensor, group: ProcessGroup) -> Steps:
    """The same by torch's, whose plan adds up a block's input gradient once; the loss is that of the logits' parts."""
    rest = PrepareModuleInput(input_layouts=(Replicate(), None), desired_input_layouts=(Replicate(), None))
    one = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),))
    plan = {"layers.*.attention": rest, "layers.*.ffn": one}
    for name in ("attention.q_proj", "attention.k_proj", "attention.v_proj", "ffn.gate_proj", "ffn.up_proj"):
        plan[f"layers.*.{name}"] = ColwiseParallel()
    plan |= {"layers.*.attention.o_proj": RowwiseParallel(), "layers.*.ffn.down_proj": RowwiseParallel()}
    plan["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())
    plan["head"] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, mesh_of(group, "tp"), plan)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]

    def step() -> None:
        with loss_parallel():
            loss_of(model(inputs), targets).backward()

    return model, step


def check(steps: dict[str, Steps]) -> None:
    """Refuse to time a step with other gradients than torch's; it warms all up too."""
    found = {who: gradients(model, step) for who, (model, step) in steps.items()}
    for who in ALGORITHMS:
        assert found[who].keys() == found["torch"].keys() != set(), who
        for name, gradient in found[who].items():
            theirs = found["torch"][name]
            if isinstance(theirs, DTensor):  # of the embedding it is whole on every rank, which took no message
                theirs = theirs.redistribute(placements=steps["torch"][0].get_parameter(name).placements).to_local()
            assert torch.allclose(gradient, theirs, rtol=1e-3, atol=1e-3), f"{who}: {name}"


def verdicts(cells: list[TensorCell]) -> list[Verdict]:
    """Of each all-reduce, the geometric mean over ranks and sequences."""
    return [
        Verdict(
            figure=f"tensor parallelism, all-reduce {algorithm}, against DTensor's, tokens/s",
            ratio=mean_ratio([cell.comparison for cell in cells if cell.algorithm == algorithm]),
            gate=1.05,
            goal=1.3,
        )
        for algorithm in ALGORITHMS
    ]


def sections(cells: list[TensorCell]) -> list[str]:
    """A row for each number of ranks, length of the sequences and all-reduce."""
    rows = [tokens_row(f"{c.world_size} | {c.sequence} | {c.algorithm}", c) for c in cells]
    about = f"{MODEL.n_layers} layers of {MODEL.hidden_size}, {ROWS} sequences, no optimizer; guard and ledger off"
    return [
        f"## Tensor parallelism against DTensor's parallelize_module ({about})",
        table([["ranks", "sequence", "our all-reduce", *TIMES, *TOKENS], *rows]),
    ]


BENCHMARK = Benchmark(
    lesson=5,
    title="tensor parallelism against DTensor",
    compare=compare,
    gates=lambda cells: [gate_row(verdict) for verdict in verdicts(cells)],
    sections=sections,
)
