"""ZeRO-1 over pipelines: the whole ladder, bytes and messages, who keeps which states, and pieces at other layouts."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from ladder_models import STEPS
from pipeline_models import MODELS, alone

from course_lib import comm
from course_lib.config import TrainConfig
from course_lib.costs.comm.collectives import comm_time
from course_lib.parallel.pipelines.stages import cut, layers_of
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import ledger, run_ranks
from course_lib.schedules import make_schedule
from course_lib.split import split_sizes
from course_lib.training.sharded_checkpoint import load_pieces, save_pieces
from course_lib.training.sharding import zero
from course_lib.training.techniques import stages
from course_lib.training.tensor_technique import tensor
from course_lib.training.trainer import Trainer
from course_lib.verify import RUNGS, assert_parallel_equals
from tests.ranks.module_07.test_two_axes import ADAMW, assert_same_state, eleven


def shared(config, name, pp, dp, m, model="tied", v=1, tp=1, stage=1):
    schedule = make_schedule(name, pp, m, stages_per_rank=v)
    apply = (*[tensor()] * (tp > 1), stages(schedule), zero(stage))
    return Trainer(MODELS[model](), config, mesh=make_mesh(pp=pp, dp=dp, tp=tp), apply=apply)


@pytest.mark.parametrize(
    ("name", "pp", "dp", "m", "v", "model", "tp"),
    [
        ("1f1b", 2, 3, 3, 1, "tied", 1),
        ("interleaved", 2, 2, 2, 2, "frozen", 1),
        ("zb-h1", 2, 2, 3, 1, "tied and frozen", 1),
        ("interleaved", 1, 2, 2, 3, "tied", 1),  # a tied weight in two stages of one rank
        ("1f1b", 2, 2, 2, 1, "tied", 2),
    ],
)
def test_it_equals_one_device(name, pp, dp, m, v, model, tp):
    parallel = partial(shared, name=name, pp=pp, dp=dp, m=m, v=v, model=model, tp=tp)
    report = assert_parallel_equals(partial(alone, model=model), parallel, eleven, world_size=pp * dp * tp, steps=STEPS)
    assert tuple(report.deviations) == RUNGS and report.max_deviation <= 1e-11


def trained(folder):
    """Steps, and how many numbers this rank's optimizer keeps; the messages of the last one stay in the ledger."""
    torch.manual_seed(0)
    trainer = shared(ADAMW, "1f1b", 2, 3, 3)
    for step in range(2):
        comm.ledger.clear()
        trainer.step(eleven(step))
    kept = sum(x.numel() for kinds in trainer.parts().values() for kind, x in kinds.items() if kind == "exp_avg")
    save_pieces(trainer, folder)
    return kept, trainer.state()


def sent(rank, operation):
    """Bytes of one kind of collective."""
    events = [one for one in ledger().events if (one.rank, one.kind, one.operation) == (rank, "send", operation)]
    assert events
    return sum(event.nbytes for event in events)


def rows_of_stage(stage, tied):
    """How many numbers are reduced together: each block, the tied weight, and what else is beside the blocks."""
    blocks = [sum(p.numel() for p in layer.parameters()) for layer in stage.layers.values()]
    beside = sum(p.numel() for p in stage.parameters()) - sum(blocks) - tied
    return [*blocks, tied, *[beside] * (beside > 0)]


def test_it_sends_what_the_formula_says_and_its_pieces_are_read_at_other_layouts(tmp_path):
    model, dp = MODELS["tied"](), 3
    both = cut(model, split_sizes(len(layers_of(model)), 2))
    found = run_ranks(trained, 6, tmp_path / "pieces")
    for rank, (kept, _) in enumerate(found):
        pp_rank, dp_rank = divmod(rank, dp)
        rows = rows_of_stage(both[pp_rank], model.embedding.weight.numel())
        assert kept == sum(split_sizes(row, dp)[dp_rank] for row in rows)
        sizes = {"world_size": dp, "itemsize": 4}
        reports = [comm_time("all_gather", "ring", world_size=dp, length=dp, itemsize=8 * n) for n in (2, 1)]
        gathers = [*(comm_time("all_gather", "ring", length=row, **sizes) for row in rows), *reports]
        assert sent(rank, "all_gather") == sum(call.sent_bytes[dp_rank] for call in gathers)
        reduces = [comm_time("reduce_scatter", "ring", length=row, **sizes) for row in rows]
        assert sent(rank, "reduce_scatter") == sum(call.sent_bytes[dp_rank] for call in reduces)
    one_device = Trainer(MODELS["tied"](), ADAMW)
    load_pieces(one_device, tmp_path / "pieces")
    assert_same_state(one_device.state(), found[0][-1])


def test_more_than_states_is_refused_after_stages():
    def attempt():
        with pytest.raises(ValueError) as error:
            shared(TrainConfig(), "1f1b", 2, 2, 2, stage=2)
        return str(error.value)

    message = "zero: applied after stages; a pipeline's stages share the optimizer's states alone; apply zero(1) or "
    assert all(text.startswith(message) for text in run_ranks(attempt, 4))
