"""What tensor parallelism refuses: one line, the same on all ranks, and nobody waits."""

from __future__ import annotations

import re
from functools import partial

import torch
import torch.distributed as dist

from course_lib import comm
from course_lib.config import TrainConfig
from course_lib.models.decoder import Decoder
from course_lib.models.mlp import MLP
from course_lib.parallel.table.mesh import make_mesh
from course_lib.parallel.tensors.plan import plan_for
from course_lib.ranks import run_ranks
from course_lib.schedules import make_schedule
from course_lib.training.techniques import replicate, stages
from course_lib.training.tensor_technique import tensor
from course_lib.training.torch_techniques import torch_replicate, torch_tensor
from course_lib.training.trainer import Trainer
from tests.ranks.module_05.test_tensor import SHAPES, TOKENS, config

TIED = SHAPES["llama, 2 kv heads"]
EVEN = config(vocab_size=20, n_kv_heads=4)  # which PyTorch takes too
RANKS = 4


def made(model, **options):
    """A trainer of ranks that share matrices."""
    return Trainer(model, TrainConfig(), mesh=make_mesh(tp=RANKS), apply=[tensor(**options)])


def planned(without=(), more=None, **options):
    """One with some entries of the decoder's plan left out, others in another style."""
    model = Decoder(TIED)
    plan = {pattern: style for pattern, style in plan_for(model).items() if pattern not in without}
    return made(model, plan=plan | (more or {}), **options)


def hooked():
    """A decoder of which something looks at the head's input."""
    model = Decoder(EVEN)
    model.head.register_forward_pre_hook(lambda module, args: None)
    return model


def between_column_and_row():
    """Two stages of which the first ends where the features are cut."""
    apply = [tensor(), stages(make_schedule("1f1b", 2, 2))]
    return Trainer(MLP(), TrainConfig(), mesh=make_mesh(pp=2, tp=2), apply=apply)


PLANS = [
    (
        partial(made, Decoder(config(n_heads=6, n_kv_heads=6))),
        r"tensor: layers.0.attention.q_proj: 6 heads on 4 ranks; a head stays whole; .*; choose tp in \[1, 2, 3, 6\]$",
    ),
    (
        partial(made, Decoder(SHAPES["llama"])),
        "tensor: layers.0.attention.k_proj: 6 heads on 4 ranks; a head stays whole",
    ),
    (
        partial(planned, more={"head": "row"}),
        r"tensor: embedding: one tied weight, Shard\(dim=0\) in embedding and Shard\(dim=1\) in head; ",
    ),
    (
        partial(planned, ["head"]),
        r"tensor: embedding: one tied weight, Shard\(dim=0\) in embedding and whole in head; .*; give all",
    ),
    (
        partial(planned, ["embedding"]),
        r"tensor: embedding: one tied weight, whole in embedding and Shard\(dim=0\) in head; .*; give all",
    ),
    (
        partial(planned, more={"head": "diagonal"}),
        "tensor: head: style 'diagonal'; there is no such style; choose from 'column', ",
    ),
    (
        partial(planned, more={"layers.*.mlp": "row"}),
        r"tensor: layers.\*.mlp: no module is called so; .*; see embedding, ",
    ),
    (
        partial(planned, more={"norm": "row"}),
        "tensor: norm: a RMSNorm; the style 'row' cuts a Linear; leave it out of",
    ),
    (partial(made, hooked()), "tensor: head: it has forward_pre_hooks; a part of it takes its place, .*; register hoo"),
    (partial(made, MLP(), sequence_parallel="input"), "tensor: sequence_parallel='input'; .*; choose 'keep' or 'reg"),
    (partial(made, MLP(), sequence_parallel="keep"), "tensor: a MLP; the sequence is cut where the embedding adds up"),
    (
        partial(planned, ["embedding", "head"], sequence_parallel="regather"),
        "tensor: a Decoder whose plan leaves the vocabulary whole; the sequence is cut where the embedding adds up",
    ),
    (between_column_and_row, "stages: stage 0 ends between layer1, cut by column, and its row; a stage passes on whol"),
]


def given(part, change, degrees, *techniques, guard=True):
    """One step with a batch that `change` has changed, of which `part` 0 are the inputs."""
    torch.manual_seed(0)
    trainer = Trainer(Decoder(EVEN), TrainConfig(), mesh=make_mesh(**degrees), apply=[make() for make in techniques])
    batch = [x.clone() for x in TOKENS.batch(0)]
    change(batch[part])
    with comm.settings(guard=guard):
        return trainer.compute_gradients((batch[0], batch[1]))


def only_of_last(tokens):
    if dist.get_rank() == RANKS - 1:
        tokens[-1, -1] ^= 1


def word(number):
    return lambda tokens: tokens[0, :1].fill_(number)


def two_stages():
    return stages(make_schedule("1f1b", 2, 2))


OTHER = (
    r"Trainer: the batch's %s have the hash \w+ on rank %d and \w+ on rank 3; ranks that share .*; give all ranks the"
)
BATCHES = [
    (partial(given, 0, only_of_last, {"tp": 4}, tensor), OTHER % ("inputs", 0)),
    (partial(given, 1, only_of_last, {"tp": 4}, tensor), OTHER % ("targets", 0)),
    (partial(given, 0, only_of_last, {"tp": 4}, torch_tensor), OTHER % ("inputs", 0)),
    (partial(given, 1, only_of_last, {"dp": 2, "tp": 2}, tensor, replicate), OTHER % ("targets", 2)),
    (partial(given, 0, only_of_last, {"dp": 2, "tp": 2}, torch_tensor, torch_replicate), OTHER % ("inputs", 2)),
    (partial(given, 1, only_of_last, {"pp": 2, "tp": 2}, tensor, two_stages), OTHER % ("targets", 0)),
    (
        partial(given, 0, word(20), {"tp": 4}, tensor),
        "VocabParallelEmbedding: word 20; the words are 0 to 19; make the",
    ),
    (
        partial(given, 0, word(-1), {"tp": 4}, tensor),
        "VocabParallelEmbedding: word -1; the words are 0 to 19; make the",
    ),
    (partial(given, 1, word(20), {"tp": 4}, tensor), "vocab_parallel_cross_entropy: word 20; the words are 0 to 19; "),
    (partial(given, 1, word(-1), {"tp": 4}, tensor), "vocab_parallel_cross_entropy: word -1; the words are 0 to 19; "),
]


def said(attempts):
    """What each attempt says on this rank."""
    found = []
    for attempt in attempts:
        try:
            attempt()
            found.append("no error")
        except ValueError as error:
            found.append(str(error))
    return found


def refused(cases):
    texts = run_ranks(said, RANKS, [attempt for attempt, _ in cases])
    for (_, message), *found in zip(cases, *texts, strict=True):
        assert len(set(found)) == 1 and re.match(message, found[0]), found
        assert found[0].count("; ") >= 2 and "\n" not in found[0]


def test_plans_that_do_not_fit_the_model():
    refused(PLANS)


def test_batches_that_differ_and_words_that_there_are_not():
    refused(BATCHES)


def losses():
    """With the guard on and off."""
    return [given(1, word(-100), {"tp": 4}, tensor, guard=guard) for guard in (True, False)]


def test_a_target_that_does_not_count_is_no_wrong_word():
    assert all(watched == unwatched > 0 for watched, unwatched in run_ranks(losses, RANKS))
