"""PyTorch's own tensor parallelism in our trainer: equal to one device and to ours; what it cannot do is refused."""

from __future__ import annotations

import warnings
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from ladder_models import STEPS

from course_lib import comm
from course_lib.comm import ledger
from course_lib.config import ModelConfig, TrainConfig
from course_lib.costs import tensor_rows
from course_lib.models.decoder import Decoder
from course_lib.models.mlp import MLP
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import run_ranks
from course_lib.training.batches import Batches
from course_lib.training.techniques import replicate
from course_lib.training.tensor_technique import tensor
from course_lib.training.torch_techniques import torch_replicate, torch_tensor
from course_lib.training.trainer import Trainer
from course_lib.verify import RUNGS, assert_parallel_equals

TEXT = bytes(torch.randint(16, (2048,), generator=torch.Generator().manual_seed(0)).tolist())
TOKENS = Batches(text=TEXT, batch_size=7, sequence=5, ragged=True)
LLAMA = ModelConfig(
    name="small", hidden_size=24, n_layers=2, n_heads=12, n_kv_heads=4, ffn_size=20, vocab_size=16, tied=False
)
GPT = replace(
    LLAMA,
    n_kv_heads=12,
    norm="layer",
    positions="learned",
    max_sequence=5,
    gated_ffn=False,
    tied=True,
    biases=("qkv", "attention_output", "ffn"),
)


def decoder(shape):
    """The GPT has a frozen weight that is cut."""
    model = Decoder(shape)
    if shape.tied:
        model.layers[0].ffn.up_proj.weight.requires_grad_(False)
    return model


def alone(train, shape):
    return Trainer(decoder(shape), train)


def by_torch(train, shape, tp):
    mesh = make_mesh(dp=dist.get_world_size() // tp, tp=tp)
    apply = torch_tensor(), *([torch_replicate()] if dist.get_world_size() > tp else [])
    return Trainer(decoder(shape), train, mesh=mesh, apply=apply)


@pytest.mark.parametrize(("shape", "tp", "ranks"), [(LLAMA, 2, 2), (LLAMA, 4, 4), (GPT, 4, 4), (GPT, 2, 4)])
def test_it_climbs_the_ladder(shape, tp, ranks):
    parallel = partial(by_torch, shape=shape, tp=tp)
    report = assert_parallel_equals(partial(alone, shape=shape), parallel, TOKENS, world_size=ranks, steps=STEPS)
    assert tuple(report.deviations) == RUNGS and report.max_deviation <= 1e-11


THEIR_NAMES = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
}


def gradients_of(technique, shape, form, counting):
    """After one batch, and how many collectives of each kind it took."""
    torch.manual_seed(0)
    apply = (technique(sequence_parallel=form),)
    trainer = Trainer(decoder(shape).double(), TrainConfig(), mesh=make_mesh(tp=2), apply=apply)
    comm.ledger.clear()
    with comm.settings(guard=False), counting as counts:
        trainer.compute_gradients(TOKENS.batch(0))
    ours = Counter(operation for _, operation in {(event.call, event.operation) for event in ledger.current()})
    theirs = counts.get_comm_counts() if counts else {}
    found = {THEIR_NAMES[str(kind).rpartition(".")[2]]: times for kind, times in theirs.items()}
    return trainer.gradients(), found or dict(ours)


def gradients_of_both(shape, form):
    """Of PyTorch's and of ours."""
    from torch.distributed.tensor.debug import CommDebugMode

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it listens to every module, also to the first, whose input has no gradient
        theirs = gradients_of(torch_tensor, shape, form, CommDebugMode())
    return theirs, gradients_of(tensor, shape, form, nullcontext())


CASES = [(shape, form) for shape in (LLAMA, GPT) for form in (None, "keep")]


def all_cases():
    return [gradients_of_both(shape, form) for shape, form in CASES]


def test_ours_and_pytorch_s_find_the_same_gradients_with_as_many_collectives():
    """But PyTorch adds up each norm's gradient by itself where the sequence is cut, and ours all of them as one row."""
    for (shape, form), (theirs, ours) in zip(CASES, run_ranks(all_cases, 2)[0], strict=True):
        assert theirs[0].keys() == ours[0].keys() and len(ours[0]) > 10
        for name, gradient in ours[0].items():
            torch.testing.assert_close(theirs[0][name], gradient, rtol=1e-10, atol=1e-12)
        rows = Counter()
        for row in tensor_rows(shape, tp=2, batch=7, sequence=5, sequence_parallel=form):
            rows[row.operation] += row.times
        assert ours[1] == rows
        norms = sum("norm" in name for name in ours[0])
        assert theirs[1] == rows + Counter(all_reduce=norms - 1 if form else 0)


def refusals(cases):
    """What each case says; all of them in one start of the ranks."""
    found = []
    for model, degrees, apply in cases:
        with pytest.raises(ValueError) as error:
            Trainer(model, TrainConfig(), mesh=make_mesh(**degrees), apply=[make() for make in apply])
        found.append(str(error.value))
    return found


REFUSED = [
    (Decoder(replace(LLAMA, vocab_size=18)), {"tp": 4}, [torch_tensor], "tp=4, 18 rows of embedding; "),
    (Decoder(replace(LLAMA, n_kv_heads=2)), {"tp": 4}, [torch_tensor], "tp=4, 2 heads of layers.0.attention.k_proj"),
    (MLP(), {"tp": 4}, [torch_tensor], "a MLP; its plan is a language model's; give a Decoder or one of "),
    (Decoder(LLAMA), {"tp": 2, "pp": 2}, [torch_tensor], "pp=2; the stages here pass tensors of their own, not "),
    (Decoder(LLAMA), {"tp": 2, "dp": 2}, [torch_tensor, replicate], "parameters that PyTorch distributed; it "),
]


def test_what_it_cannot_do_is_refused_on_all_ranks():
    for texts in run_ranks(refusals, 4, [case[:3] for case in REFUSED]):
        for text, case in zip(texts, REFUSED, strict=True):
            assert text.split(": ", 1)[1].startswith(case[3]) and text.count("; ") >= 2
