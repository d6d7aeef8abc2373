"""Every pipeline schedule climbs the ladder: what the stages train together is what one device trains."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from ladder_models import STEPS, UNEVEN
from pipeline_models import LLAMA, MODELS, alone, numbers, pipeline, tokens

from course_lib.config import TrainConfig
from course_lib.models.decoder import Decoder
from course_lib.parallel.pipelines.stages import layer_parameters
from course_lib.parallel.table.mesh import mesh_of
from course_lib.ranks import run_ranks
from course_lib.split import balanced_sizes
from course_lib.training.trainer import Trainer
from course_lib.verify import RUNGS, assert_parallel_equals

SCHEDULES = {  # name, p, m, v; by ranks, so that a pool serves all of one size; what other models run is left to them
    1: [("gpipe", 1, 3, 1), ("1f1b", 1, 4, 1), ("zb-h1", 1, 4, 1), ("interleaved", 1, 2, 3)],
    2: [("gpipe", 2, 4, 1), ("1f1b", 2, 6, 1), ("zb-h1", 2, 3, 1)],
    3: [("gpipe", 3, 2, 1), ("1f1b", 3, 2, 1), ("1f1b", 3, 6, 1), ("zb-h1", 3, 6, 1), ("interleaved", 3, 3, 2)],
    4: [("gpipe", 4, 6, 1), ("1f1b", 4, 12, 1), ("zb-h1", 4, 2, 1), ("zb-h1", 4, 6, 1)],
}
ALL = [case for cases in SCHEDULES.values() for case in cases]


@pytest.mark.parametrize("case", ALL, ids=lambda case: f"{case[0]}, p={case[1]}, m={case[2]}, v={case[3]}")
def test_every_schedule_equals_one_device(case):
    name, p, m, v = case
    report = assert_parallel_equals(
        partial(alone), partial(pipeline, name=name, p=p, m=m, v=v), tokens, world_size=p, steps=STEPS
    )
    assert tuple(report.deviations) == RUNGS and report.max_deviation <= 1e-11
    assert len(report.peak_state_bytes) == p and len(report.losses) == STEPS


@pytest.mark.parametrize(
    ("model", "case"),
    [
        ("MLP", ("gpipe", 2, 1)),  # model parallelism at its plainest: one micro-batch
        ("MLP", ("zb-h1", 2, 4)),
        ("frozen", ("1f1b", 2, 4)),
        ("GPT", ("1f1b", 2, 3)),
        ("chain", ("interleaved", 2, 4, 2)),
        ("chain", ("1f1b", 3, 4)),
        ("frozen", ("zb-h1", 3, 4)),  # the first rank trains nothing
        ("tied and frozen", ("gpipe", 4, 4)),
        ("frozen", ("interleaved", 4, 4, 2)),
        ("chain", ("zb-h1", 4, 3)),
    ],
    ids=str,
)
def test_every_model_equals_one_device(model, case):
    name, p, m, *v = case
    batches = numbers if model in ("MLP", "chain") else tokens
    sizes = {("chain", 4): (2, 2, 2, 1), ("chain", 3): (2, 2, 3)}.get((model, p))
    parallel = partial(pipeline, name=name, p=p, m=m, v=v[0] if v else 1, model=model, sizes=sizes)
    report = assert_parallel_equals(partial(alone, model=model), parallel, batches, world_size=p, steps=STEPS)
    assert report.max_deviation <= 1e-11


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_in_float32_too(name):
    parallel = partial(pipeline, name=name, p=2, m=4)
    assert_parallel_equals(alone, parallel, tokens, world_size=2, dtype=torch.float32, steps=STEPS)


def test_stages_of_equal_cost_equal_one_device():
    sizes = balanced_sizes(layer_parameters(Decoder(LLAMA)), 3)
    assert sizes == (3, 2, 3)
    assert_parallel_equals(
        alone, partial(pipeline, name="1f1b", p=3, m=4, sizes=sizes), tokens, world_size=3, steps=STEPS
    )


def test_memory_is_a_rank_s_own_stages():
    report = assert_parallel_equals(
        partial(alone, model="MLP"),
        partial(pipeline, name="gpipe", p=2, m=1, model="MLP"),
        numbers,
        world_size=2,
        steps=STEPS,
    )
    assert report.peak_state_bytes == (2 * 8 * 28, 2 * 8 * 10)


def copies_and_gradients():
    """Both copies of the tied weight after two passes without a step between, and after steps."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        trainer = pipeline(TrainConfig(optimizer="adamw", learning_rate=0.01), "1f1b", 3, 4)
    for number in range(2):
        trainer.compute_gradients(tokens(number))
    added = trainer.gradients()
    for number in range(3):
        trainer.step(tokens(number))
    copies = [p.detach() for stage in trainer.model.values() for p in stage.parameters() if p.shape == (16, 8)]
    return added, copies


def test_copies_of_a_tied_weight_stay_equal_bit_by_bit_and_gradients_add_up():
    results = run_ranks(copies_and_gradients, 3)
    (first,), (), (last,) = [copies for _, copies in results]
    assert torch.equal(first, last)
    torch.manual_seed(0)
    reference = Trainer(MODELS["tied"](), TrainConfig())
    for number in range(2):
        reference.compute_gradients(tokens(number))
    for name, gradient in reference.gradients().items():
        torch.testing.assert_close(results[1][0][name], gradient)


def save_on_three(folder):
    trainer = pipeline(TrainConfig(optimizer="adamw"), "zb-h1", 3, 4)
    trainer.step(tokens(0))
    trainer.save(folder)
    trainer.step(tokens(1))
    return trainer.parameters()


def resume_on_two(folder):
    trainer = pipeline(TrainConfig(optimizer="adamw"), "interleaved", 2, 2, 2)
    trainer.load(folder)
    trainer.step(tokens(1))
    return trainer.parameters()


def test_what_three_stages_saved_four_stages_and_one_device_go_on_with(tmp_path):
    want = run_ranks(save_on_three, 3, tmp_path)[0]
    one = Trainer(MODELS["tied"](), TrainConfig(optimizer="adamw"))
    one.load(tmp_path)
    one.step(tokens(1))
    for found in (*run_ranks(resume_on_two, 2, tmp_path), one.parameters()):
        assert found.keys() == want.keys()
        for name, parameter in found.items():
            torch.testing.assert_close(parameter, want[name], rtol=1e-4, atol=1e-5)


def test_uneven_rows_have_an_output_too():
    """Only training cuts a batch: seven rows pass the stages in one piece."""

    def run():
        trainer = pipeline(TrainConfig(), "1f1b", 2, 4)
        return trainer.output(UNEVEN.batch(0)[0]), trainer.parameters()

    for output, parameters in run_ranks(run, 2):
        model = MODELS["tied"]()
        model.load_state_dict(parameters | {"head.weight": parameters["embedding.weight"]})
        torch.testing.assert_close(output, model(UNEVEN.batch(0)[0]).detach())


def two_pipelines():
    """Ranks 0, 1 and ranks 2, 3: each pair trains for itself."""
    torch.manual_seed(dist.get_rank())
    groups = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    trainer = pipeline(TrainConfig(max_norm=0.1), "zb-h1", 2, 4, mesh=mesh_of(groups[dist.get_rank() // 2], "pp"))
    before = trainer.parameters()
    return before, trainer.step(tokens(0)), trainer.parameters(), trainer.output(tokens(0)[0])


def test_some_of_the_ranks_are_a_pipeline_too():
    results = run_ranks(two_pipelines, 4)
    for first, second in (results[:2], results[2:]):
        model = MODELS["tied"]()
        model.load_state_dict(first[0] | {"head.weight": first[0]["embedding.weight"]})
        reference = Trainer(model, TrainConfig(max_norm=0.1))
        assert first[1] == second[1] == pytest.approx(reference.step(tokens(0)), rel=1e-5)
        torch.testing.assert_close(first[3], reference.output(tokens(0)[0]))
        for name, parameter in reference.parameters().items():
            torch.testing.assert_close(first[2][name], parameter)
            torch.testing.assert_close(second[2][name], parameter)
    assert results[0][1] != results[2][1]  # they were seeded apart
