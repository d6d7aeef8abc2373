"""Layers to stages: five methods on the same problems, against the best of all assignments."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

import pytest

from course_lib.config import LLAMA_3_1_8B, load_model
from course_lib.costs import find_convention, forward_flops, model_parameters, outer_weights
from course_lib.planner import (
    METHODS,
    Assignment,
    Layer,
    StageGpu,
    StageProblem,
    assign_stages,
    compare_methods,
    stage_problem,
)
from course_lib.planner.stage_exact import n_assignments
from course_lib.split import balanced_sizes


def problem(flops, gpus, *, states=None, kept=0.0, m=4):
    states = states or [1.0] * len(flops)
    layers = [
        Layer(name=f"layer {k}", flops=f, state_bytes=s, kept_bytes=kept)
        for k, (f, s) in enumerate(zip(flops, states, strict=True))
    ]
    return StageProblem(layers=tuple(layers), gpus=tuple(gpus), n_microbatches=m)


def gpu(name, speed, n_stages, room=inf):
    return StageGpu(name=name, flops_per_s=speed, n_stages=n_stages, room_bytes=room)


def drawn(seed, n_layers, gpus):
    random = Random(seed)
    return problem([random.choice([1, 1, 2, 5]) * random.uniform(0.9, 1.1) for _ in range(n_layers)], gpus)


PROBLEMS = {
    "a heavy head": problem([0.1, 1, 1, 1, 1, 1, 1, 1, 1, 2.6], [gpu("A", 1, 4)]),
    "uneven layers": drawn(1, 12, [gpu("A", 1, 4)]),
    "two kinds": drawn(2, 11, [gpu("A", 1.0, 2), gpu("B", 2.2, 2)]),
    "little room on the fast ones": problem([1.0] * 10, [gpu("A", 1, 2, 5.0), gpu("B", 3, 2, 3.0)]),
    "early stages keep more": problem([1.0] * 9, [gpu("A", 1, 3, 6.5)], kept=0.5),
    "three kinds": drawn(3, 9, [gpu("A", 1, 1), gpu("B", 2, 2), gpu("C", 0.7, 1)]),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_method_finds_the_best_of_all_assignments(name):
    runs = {run.method: run for run in compare_methods(PROBLEMS[name])}
    assert {*runs} == {*METHODS}
    best_s = runs["exhaustive"].slowest_s
    for method, run in runs.items():
        assert run.slowest_s == pytest.approx(best_s, rel=1e-6), method
        assert PROBLEMS[name].value(run.answer) == (0, run.slowest_s)
        assert sum(run.answer.sizes) == len(PROBLEMS[name].layers)
        assert sorted(run.answer.gpus) == PROBLEMS[name].gpu_of_each_stage()
    assert [run.is_proven for run in runs.values()] == [True, True, True, False, False]
    assert runs["dynamic"].over_bound >= 1


def test_a_model_on_two_kinds_of_gpu_gives_the_fast_ones_more_layers():
    cut = stage_problem(LLAMA_3_1_8B, {"h100_sxm_80": 2, "a100_sxm_80": 2}, sequence=8192)
    runs = compare_methods(cut)
    assert [run.slowest_s for run in runs] == pytest.approx([runs[0].slowest_s] * len(runs))
    layers = [0, 0]
    for size, gpu_index in zip(runs[0].answer.sizes, runs[0].answer.gpus, strict=True):
        layers[gpu_index] += size
    assert layers[0] > 2 * layers[1] and sum(layers) == 34  # embedding and head among them


def test_a_model_s_layers_are_all_its_parameters_and_operations():
    for name in ("llama3_1_8b", "gpt3_medium", "deepseek_v2", "gemma2_9b"):
        model = load_model(name)
        cut = stage_problem(model, {"h100_sxm_80": 2}, sequence=1024)
        forward = forward_flops(model, sequence=1024, causal=True)
        assert sum(layer.flops for layer in cut.layers) == pytest.approx(3 * 1024 * forward.total)
        beside = sum(
            w.parameters for w in outer_weights(model) if w.name in ("last_norm", "last_norm.bias", "positions")
        )
        copies = next(w.parameters for w in outer_weights(model) if w.name == "embedding") if model.tied else 0
        numbers = sum(layer.state_bytes for layer in cut.layers) / find_convention("megatron").bytes_per_parameter
        assert numbers == pytest.approx(model_parameters(model) - beside + copies)
    with pytest.raises(ValueError, match=r"^ParallelConfig: tp=3; tp divides n_heads=32; "):
        stage_problem(LLAMA_3_1_8B, {"h100_sxm_80": 2}, sequence=1024, tp=3)


def test_on_one_kind_of_gpu_with_room_it_is_the_balanced_cut():
    flops = [8.0, 1, 1, 1, 5, 2, 2]
    found = assign_stages(problem(flops, [gpu("A", 1, 3)]))
    sizes = balanced_sizes(flops, 3)
    assert problem(flops, [gpu("A", 1, 3)]).value(found) == (0, 8)
    assert max(sum(flops[: sizes[0]]), sum(flops[-sizes[2] :])) == 8


def test_a_fast_gpu_takes_more_layers_and_a_full_one_fewer():
    fast = problem([1.0] * 9, [gpu("A", 1, 1), gpu("B", 2, 1)])
    found = assign_stages(fast)
    assert dict(zip(found.gpus, found.sizes, strict=True)) == {0: 3, 1: 6}
    full = replace(fast, gpus=(fast.gpus[0], replace(fast.gpus[1], room_bytes=4.0)))
    found = assign_stages(full)
    assert dict(zip(found.gpus, found.sizes, strict=True)) == {0: 5, 1: 4}


def test_the_first_stage_has_fewer_layers_where_activations_fill_it():
    """Each stage has room for 9; stage 0 of 3 keeps three micro-batches, the last one: 4 bytes a layer against 2."""
    tight = problem([1.0] * 8, [gpu("A", 1, 3, 9.0)], kept=1.0)
    assert assign_stages(tight).sizes == (2, 3, 3)
    assert tight.value(Assignment(sizes=(3, 3, 2), gpus=(0, 0, 0))) == (3.0, 3.0)


@pytest.mark.parametrize("method", METHODS)
def test_where_nothing_fits_every_method_says_so(method):
    tight = problem([1.0] * 6, [gpu("A", 1, 2, 2.5)])
    with pytest.raises(ValueError, match=rf"^assign_stages: 6 layers on 2 stages, .*; {method} found no assignment "):
        assign_stages(tight, method)


def test_more_assignments_than_one_looks_at_are_left_to_the_others():
    large = problem([1.0] * 126, [gpu("A", 1, 8), gpu("B", 2, 8)])
    assert n_assignments(large) > 1e20
    with pytest.raises(ValueError, match=r"^assign_stages: .* assignments; this method looks at no more than 2,000,0"):
        assign_stages(large, "exhaustive")
    assert large.value(assign_stages(large))[1] == 5.5  # 8 x 5 + 8 x 11 layers are enough, 8 x 5 + 8 x 10 are not


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: problem([1.0], [gpu("A", 1, 2)]), "assign_stages: 1 layers, 2 stages; each stage has a layer; give "),
        (lambda: problem([1.0], [gpu("A", 0, 1)]), "assign_stages: A: 0 FLOP/s, 1 stages, inf bytes; a stage's GPU "),
        (lambda: problem([1.0], [gpu("A", 1, 1)], m=0), "assign_stages: n_microbatches=0; a step has micro-batches; "),
        (lambda: problem([1.0], []), "assign_stages: 1 layers, 0 stages; each stage has a layer; give 1 to 1 stages"),
        (lambda: assign_stages(PROBLEMS["two kinds"], "guess"), "assign_stages: method='guess'; no method is called "),
    ],
)
def test_what_is_no_problem_is_refused(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value).startswith(message)
