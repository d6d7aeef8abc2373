"""FSDP x TP on up to 1,024 ranks that do not exist: PyTorch's own code keeps and sends what the formulas say."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod

import pytest

from course_lib import presets
from course_lib.config import load_model
from course_lib.costs.comm.sharding import sharding_rows
from course_lib.costs.comm.tensor import tensor_rows
from course_lib.costs.model.parameters import layer_parameters
from course_lib.costs.model.step_memory import peak
from course_lib.costs.model.two_axes import TwoAxes, two_axes_moments
from course_lib.costs.model.units import decoder_units
from course_lib.gauges.fake_scale import Calls, FsdpCase, Held, recorded, trace
from tools.trace_scale import MESHES, MODELS

EXACT = ("start", "loss", "gradients")
SMALL = [
    ("llama3_1_8b", 2, {"dp": 1, "sequence": 512}),
    ("llama3_1_8b", 2, {"dp": 2, "sequence": 512}),
    ("llama3_1_8b", 2, {"dp": 8}),
    ("llama3_1_8b", 3, {"dp": 8}),
    ("llama3_1_8b", 2, {"dp": 24, "tp": 8}),  # rows that 24 ranks cannot share evenly
    ("llama3_1_8b", 2, {"dp": 2, "tp": 4, "sequence_parallel": False, "loss_parallel": False, "computing": "fp32"}),
    ("llama3_1_70b", 3, {"dp": 8, "checkpointing": True}),
    ("llama3_1_70b", 2, {"dp": 128, "tp": 8, "sequence": 2048, "checkpointing": True}),
]


def cases():
    return [FsdpCase(config=replace(load_model(name), n_layers=layers), **mesh) for name, layers, mesh in SMALL]


@pytest.fixture(scope="module")
def traced():
    """All of them in one process: ten seconds."""
    return list(zip(cases(), trace(cases()), strict=True))


@pytest.fixture(scope="module")
def written():
    return [(row.case, row.trace) for row in recorded()]


def itemsize(case):
    return {"bf16": 2, "fp32": 4}[case.computing]


def moments(case):
    run = TwoAxes(
        dp=case.dp,
        tp=case.tp,
        computing=itemsize(case),
        checkpointing=case.checkpointing,
        sequence_parallel=case.sequence_parallel,
        loss_parallel=case.loss_parallel,
    )
    return two_axes_moments(case.config, run, sequence=case.sequence)


def step_counts(case):
    """PyTorch's Adam counts its steps for each tensor, in fp32."""
    return 4 * sum(len(unit.trained) + len(unit.opening) for unit in decoder_units(case.config, tp=case.tp))


def as_held(case, moment):
    """As the tracker names it."""
    return Held(
        weights=moment.weights + moment.gathered,
        gradients=moment.gradients + moment.gradient_pieces,
        optimizer=moment.optimizer + step_counts(case),
        activations=moment.activations,
        temporary=0,
    )


def predicted_calls(case):
    """The tables of sharding and of tensor parallelism, and what checkpointing and DTensor do besides."""
    layers, e, shared = case.config.n_layers, itemsize(case), case.sequence_parallel
    units = decoder_units(case.config, tp=case.tp)
    shares = {"strategy": "FULL_SHARD", "world_size": case.dp, "itemsize": e, "reduce_itemsize": 4}
    times, nbytes = Counter(), Counter()

    def add(axis, operation, count, of_one):
        times[axis, operation] += count
        nbytes[axis, operation] += count * of_one

    for row in sharding_rows(units, **shares, padding="tensor"):
        add("dp", row.operation, row.times, row.numbers * row.itemsize)
    sizes = {"tp": case.tp, "batch": 1, "sequence": case.sequence, "sequence_parallel": "keep" if shared else None}
    for row in tensor_rows(case.config, **sizes) if case.tp > 1 else ():
        if row.where != "loss":
            add("tp", row.operation, row.times, prod(row.shape) * e)
        elif case.loss_parallel:
            add("tp", row.operation, row.times, prod(row.shape) * 4)
    if case.tp > 1 and not case.loss_parallel:
        add("tp", "all_gather", 1, 4 * case.sequence * case.config.vocab_size)
    if case.tp > 1 and shared:
        times["tp", "all_reduce"] += 2 * layers  # the gradient of each norm by itself, not all as one row
    if case.tp > 1 and case.checkpointing:  # forward once more, up to the last tensor that backward reads
        between = e * case.sequence * case.config.hidden_size
        add("tp", "all_gather", 2 * layers, between)
        add("tp", "reduce_scatter", layers, between)
    return tuple(Calls(axis=a, operation=o, times=times[a, o], nbytes=nbytes[a, o]) for a, o in sorted(times))


@pytest.mark.parametrize("source", ["traced", "written"])
def test_what_lasts_and_what_backward_reads_is_as_the_formulas_say(source, request):
    for case, found in request.getfixturevalue(source):
        expected = moments(case)
        assert {name: found.held[name] for name in EXACT} == {name: as_held(case, expected[name]) for name in EXACT}


@pytest.mark.parametrize("source", ["traced", "written"])
def test_the_peak_is_one_of_the_instants_of_the_formula(source, request):
    for case, found in request.getfixturevalue(source):
        most = peak([*moments(case).values()]).total + step_counts(case)
        assert most == pytest.approx(found.held["peak"].total, rel=1e-4), case


@pytest.mark.parametrize("source", ["traced", "written"])
def test_collectives_are_those_of_the_two_tables(source, request):
    for case, found in request.getfixturevalue(source):
        assert found.calls == predicted_calls(case)


def test_a_layer_adds_its_pieces_and_what_it_keeps(traced):
    (_, two), (_, three) = traced[2:4]
    before, after = two.held["loss"], three.held["loss"]
    assert after.weights - before.weights == 4 * layer_parameters(load_model("llama3_1_8b")) // 8
    assert after.activations - before.activations == 893_943_808


def test_the_file_has_every_mesh_with_and_without_checkpointing(written):
    found = [(case.config, case.dp, case.tp, case.checkpointing) for case, _ in written]
    assert found == [(load_model(name), *mesh, again) for name in MODELS for mesh in MESHES for again in (False, True)]
    assert presets.read("trace", "fsdp_tp")["command"] == "python -m tools.trace_scale"
