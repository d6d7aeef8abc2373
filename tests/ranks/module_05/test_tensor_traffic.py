"""What tensor parallelism sends and holds, and what each rank counts: the run against the formulas."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from course_lib import comm
from course_lib.comm.traces import Traffic
from course_lib.config import TrainConfig
from course_lib.costs.comm.tensor import tensor_step
from course_lib.models.decoder import Decoder
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import ledger, run_ranks
from course_lib.training.tensor_technique import tensor
from course_lib.training.trainer import Trainer
from tests.ranks.module_05.test_tensor import LLAMA, SHAPES, TOKENS

ROWS, SEQUENCE = 7, 5
EVEN = replace(LLAMA, n_kv_heads=4, vocab_size=20)
EVEN_TOKENS = replace(TOKENS, batch_size=4, sequence=8, ragged=False)


def gradients(config, ranks, accumulation, options):
    """Forward and backward of a batch; the calls of wrapping are not counted."""
    torch.manual_seed(0)
    train = TrainConfig(accumulation=accumulation)
    trainer = Trainer(Decoder(config), train, mesh=make_mesh(tp=ranks), apply=(tensor(**options),))
    comm.ledger.clear()
    trainer.compute_gradients(TOKENS.batch(0))


@pytest.mark.parametrize(
    ("shape", "ranks", "accumulation", "options"),
    [
        ("llama", 2, 1, {}),
        ("llama", 3, 2, {"algorithm": "recursive_doubling"}),
        ("llama, 2 kv heads", 4, 3, {}),
        ("llama, 1 kv head", 4, 1, {"sequence_parallel": "regather"}),
        ("gpt", 3, 1, {"sequence_parallel": "keep"}),
        ("gpt", 2, 2, {"sequence_parallel": "regather"}),
        ("olmo", 4, 1, {"sequence_parallel": "keep"}),
    ],
)
def test_bytes_and_messages_equal_the_formula(shape, ranks, accumulation, options):
    config = SHAPES[shape]
    run_ranks(gradients, ranks, config, ranks, accumulation, options)
    step = tensor_step(
        config, tp=ranks, batch=ROWS, sequence=SEQUENCE, itemsize=4, microbatches=accumulation, **options
    )
    assert Traffic.measured(ledger()) == Traffic.predicted([step])


def kept_bytes(config, ranks, options):
    """What autograd keeps of a forward pass, the weights apart, on this rank."""
    torch.manual_seed(0)
    trainer = Trainer(Decoder(config), TrainConfig(), mesh=make_mesh(tp=ranks), apply=(tensor(**options),))
    weights = {p.untyped_storage().data_ptr() for p in trainer.model.parameters()}
    kept = {}

    def keep(x):
        if x.is_floating_point() and x.untyped_storage().data_ptr() not in weights:
            kept[x.untyped_storage().data_ptr()] = x  # alive, so that no other tensor gets its place
        return x

    inputs, targets = EVEN_TOKENS.batch(0)
    trainer.engine.ends.told(inputs)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        trainer.engine.ends.loss(trainer.model(inputs), targets)
    return sum(x.untyped_storage().nbytes() for x in kept.values())


def test_what_gathering_again_saves():
    """Of each block's input and the head's, instead of all positions those of this rank."""
    both = [run_ranks(kept_bytes, 4, EVEN, 4, {"sequence_parallel": form}) for form in ("keep", "regather")]
    batch, sequence = EVEN_TOKENS.batch_size, EVEN_TOKENS.sequence
    saved = (2 * EVEN.n_layers + 1) * batch * (sequence - sequence // 4) * EVEN.hidden_size * 4
    assert [keep - regather for keep, regather in zip(*both, strict=True)] == [saved] * 4
    whole = run_ranks(kept_bytes, 4, EVEN, 4, {})
    assert all(more > keep > regather for more, keep, regather in zip(whole, *both, strict=True))
