"""Memory formulas against measured tensors, on shapes that no formula was made from."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from page import Benchmark, table

from course_lib.cli.memory_rows import pass_once
from course_lib.config import ModelConfig
from course_lib.costs import activation_bytes, find_convention, model_parameters, state_bytes
from course_lib.gauges.plain_zero import Formats
from course_lib.gauges.zero_run import ZeroRun, train_sharded
from course_lib.models.decoder import Decoder
from course_lib.ranks import run_ranks
from course_lib.savers.checkpointing import checkpoint_layers
from course_lib.training.batches import Batches
from course_lib.units import format_bytes

SEQUENCE = 96
WITHIN = {"states": 0.005, "activations": 0.01}
GROUPED = ModelConfig(
    name="grouped", hidden_size=384, n_layers=2, n_heads=12, n_kv_heads=3, ffn_size=1000, vocab_size=256, tied=False
)
SHAPES = (GROUPED, replace(GROUPED, name="as many kv heads, tied", hidden_size=258, n_heads=3, n_kv_heads=3, tied=True))


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Bytes by formula and of tensors; of the rank that is furthest off."""

    kind: str
    name: str
    formula: int
    measured: int

    @property
    def off(self) -> float:
        """The share by which the formula misses."""
        return abs(self.formula / self.measured - 1)

    @property
    def words(self) -> str:
        """Met or not."""
        return "gate met" if self.off <= WITHIN[self.kind] else "NOT MET"


def compare() -> list[Agreement]:
    """States of all stages on 3 ranks, activations in both formats with and without recompute."""
    text = bytes(torch.randint(256, (4096,), generator=torch.Generator().manual_seed(0)).tolist())
    batches = Batches(text=text, batch_size=3, sequence=SEQUENCE)
    return [one for model in SHAPES for one in (*states(model, batches), *activations(model, batches))]


def states(model: ModelConfig, batches: Batches) -> list[Agreement]:
    """Every convention and stage."""
    found, shards = [], 3
    for convention in (find_convention("fp32"), find_convention("zero")):
        formats = Formats.of_bytes(convention.weights, convention.gradients)
        run = ZeroRun(model=model, formats=formats, batches=batches, steps=1)
        for stage in range(4):
            traces = run_ranks(train_sharded, shards, run, stage, timeout=300)
            formula = state_bytes(model_parameters(model), convention, zero_stage=stage, shards=shards).total
            measured = max((trace.states.total for trace in traces), key=lambda nbytes: abs(nbytes - formula))
            name = f"{model.name}, {convention.name}, ZeRO stage {stage}, {shards} ranks"
            found.append(Agreement(kind="states", name=name, formula=formula, measured=measured))
    return found


def activations(model: ModelConfig, batches: Batches) -> list[Agreement]:
    """Both formats, both ways."""
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        for way in ("none", "layers"):
            decoder = Decoder(model).to(dtype)
            if way == "layers":
                checkpoint_layers(decoder.layers)
            measured = pass_once(decoder, batches.batch(0))[0]
            formula = activation_bytes(
                model,
                batch=3,
                sequence=SEQUENCE,
                itemsize=dtype.itemsize,
                recompute=way,
            )
            name = f"{model.name}, {str(dtype).removeprefix('torch.')}, recompute {way}"
            found.append(Agreement(kind="activations", name=name, formula=formula, measured=measured))
    return found


def worst(agreements: list[Agreement]) -> list[Agreement]:
    """Of each kind the one that is furthest off."""
    return [max((one for one in agreements if one.kind == kind), key=lambda one: one.off) for kind in WITHIN]


def gate_rows(agreements: list[Agreement]) -> list[list[str]]:
    """Lines for the table of gates."""
    return [
        [
            f"memory formulas, {one.kind}",
            f"{one.off:.3%} off",
            f"{WITHIN[one.kind]:.1%}",
            "on a GPU: not run",
            one.words,
        ]
        for one in worst(agreements)
    ]


def table_rows(agreements: list[Agreement]) -> list[list[str]]:
    """All of them."""
    head = ["what", "formula", "measured", "off"]
    body = [[one.name, format_bytes(one.formula), format_bytes(one.measured), f"{one.off:.3%}"] for one in agreements]
    return [head, *body]


BENCHMARK = Benchmark(
    lesson=1,
    title="memory formulas against tensors",
    compare=compare,
    gates=gate_rows,
    sections=lambda agreements: ["## Memory formulas against measured tensors", table(table_rows(agreements))],
)
