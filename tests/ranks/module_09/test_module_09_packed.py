"""Several documents in a sequence: nobody looks beyond its own, on one device and wherever ranks share the sequence."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from sequence_models import alone, climbs, said, spread, train

from course_lib.config import TrainConfig
from course_lib.models.mlp import MLP
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import run_ranks
from course_lib.savers.attention_blocks import block, merge_
from course_lib.training.context_technique import context
from course_lib.training.packed import packed
from course_lib.training.trainer import Trainer

METHODS = ("all_gather", "ring", "ulysses")


@pytest.mark.parametrize(
    ("method", "order", "cp"),
    [  # with the other number of ranks in `test_context.py`
        ("all_gather", "contiguous", 4),
        ("all_gather", "zigzag", 3),
        ("ring", "contiguous", 3),
        ("ring", "zigzag", 4),
        ("ulysses", "contiguous", 4),
        ("ulysses", "zigzag", 3),
    ],
)
def test_it_equals_one_device(method, order, cp):
    climbs(method=method, order=order, cp=cp, end=3)  # one of 16 tokens closes a document


@pytest.mark.parametrize(
    "beside",
    [
        {"cp": 2, "dp": 2, "data": "fsdp", "accumulation": 2},
        {"cp": 2, "tp": 2, "sequence_parallel": "keep"},
        {"cp": 2, "recomputed": {}},
        {"cp": 2, "ep": 2, "spread_experts": True, "shape": "moe", "data": "ddp"},
    ],
    ids=str,
)
def test_beside_other_techniques(beside):
    climbs(method="ring", end=3, **beside)


def test_without_context_each_rank_has_its_documents():
    climbs(dp=3, data="ddp", end=3)


TOKENS = torch.tensor([[1, 2, 3, 0, 4, 5, 6, 7, 0, 8]])  # of three documents, closed by 0


POSITIONS = {3: [0, 1, 2], 6: [4, 5, 6], 9: [9]}  # and which places each sees of its own document


def seen_from(make):
    """By position, which places of TOKENS move the output there."""
    torch.manual_seed(0)
    trainer = make(TrainConfig())
    before, moved = trainer.output(TOKENS)[0], {position: [] for position in POSITIONS}
    for place in range(TOKENS.shape[1]):
        other = TOKENS.clone()
        other[0, place] += 7 * (TOKENS[0, place] > 0)  # another word; what closes a document does so still
        found = trainer.output(other)[0]
        for position, places in moved.items():
            places += [place] if not torch.equal(found[position], before[position]) else []
    return moved


def test_a_position_sees_its_own_document_alone():
    assert seen_from(partial(alone, end=0)) == POSITIONS
    whole = {position: [place for place in range(position + 1) if TOKENS[0, place]] for position in POSITIONS}
    assert seen_from(alone) == whole
    for method in METHODS:
        assert run_ranks(seen_from, 3, partial(spread, method=method, cp=3, end=0)) == [POSITIONS] * 3


def test_a_block_that_a_query_sees_nothing_of_changes_nothing():
    q, k, v = torch.randn(3, 1, 1, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q = q[:, :, None]
    nothing = torch.zeros(1, 4, 4, dtype=torch.bool)
    out, lse = torch.zeros_like(q), torch.full(q.shape[:-1], -torch.inf, dtype=torch.float64)
    for same in (nothing, nothing, None, nothing):
        merge_(out, lse, *block(q, k, v, diagonal=True, same=same))
    wanted, lse_of_one = block(q, k, v, diagonal=True)
    torch.testing.assert_close(out, wanted, rtol=1e-14, atol=0)
    assert torch.equal(lse, lse_of_one)


def packed_mlp():
    Trainer(MLP(), TrainConfig(), mesh=make_mesh(dp=2), apply=(packed(0),))


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (packed_mlp, "packed: a MLP; it replaces attention where a Decoder mixes positions; give a Decoder"),
        (
            partial(train, [lambda: packed(0), context], cp=2),
            "context: applied after packed; each technique takes what the one before left; apply each once",
        ),
        (partial(train, [lambda: packed(0)], pp=2), "packed: pp=2; the first stage alone sees tokens; leave it out"),
    ],
)
def test_what_it_refuses(work, message):
    first, second = run_ranks(said, 2, work)
    assert first == second and first.startswith(message)
