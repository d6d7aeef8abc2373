"""PyTorch's own sharding against the same formula: FSDP2 is stage 3, ZeroRedundancyOptimizer stage 1."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from course_lib.config import ModelConfig
from course_lib.costs import CONVENTIONS, StateBytes, model_parameters, state_bytes
from course_lib.models.decoder import Decoder
from course_lib.ranks import run_ranks
from course_lib.training.batches import Batches
from course_lib.training.step import compute_gradients, storage_bytes

GQA = ModelConfig(
    name="grouped", hidden_size=384, n_layers=1, n_heads=6, n_kv_heads=3, ffn_size=1000, vocab_size=256, tied=False
)
SHAPES = {"grouped": GQA, "tied": replace(GQA, hidden_size=256, n_heads=8, n_kv_heads=8, tied=True)}
TEXT = bytes(torch.randint(256, (4096,), generator=torch.Generator().manual_seed(0)).tolist())
BATCHES = Batches(text=TEXT, batch_size=12, sequence=16)
FP32 = CONVENTIONS["fp32"]
PATIENCE_S = 100.0  # on a busy machine; no test here is about time
shapes = pytest.mark.parametrize("shape", SHAPES)
worlds = pytest.mark.parametrize("world_size", [1, 2, 3, 4])


def step_of(model, optimizer):
    """One step on this rank's sequences; its loss."""
    loss = compute_gradients(model, BATCHES.shard(0, dist.get_rank(), dist.get_world_size()))
    optimizer.step()
    return loss


def moments_of(optimizer):
    """Adam's tensors without its counts of steps, one number each."""
    return [x for state in optimizer.state.values() for x in state.values() if x.dim()]


def local(tensors):
    return storage_bytes([x.to_local() for x in tensors])


def fully_sharded(config, policy):
    torch.manual_seed(0)
    model = Decoder(config)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module in (*model.layers, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters())
    loss = step_of(model, optimizer)
    weights = list(model.parameters())
    states = StateBytes(
        weights=local(weights),
        gradients=local([p.grad for p in weights]),
        optimizer=local(moments_of(optimizer)),
    )
    return states, loss


def rows_by_fsdp2(config, rank, world_size):
    """FSDP2 shards each tensor along dim 0 as `torch.chunk` does. Weights and gradients are padded to equal shards."""
    with torch.device("meta"):
        tensors = list(Decoder(config).parameters())
    padded = sum(len(p.chunk(world_size)[0]) * p[0].numel() for p in tensors)
    own = sum(p.chunk(world_size)[rank].numel() for p in tensors)
    return StateBytes(weights=4 * padded, gradients=4 * padded, optimizer=8 * own)


@pytest.mark.parametrize(
    ("world_size", "shape", "dtype"),
    [  # every two of the three meet
        (world_size, shape, (torch.float32, torch.bfloat16)[(world_size + place) % 2])
        for world_size in (1, 2, 3, 4)
        for place, shape in enumerate(SHAPES)
    ],
)
def test_fsdp2_keeps_stage_3_in_fp32_whatever_it_computes_in(shape, world_size, dtype):
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    found = run_ranks(fully_sharded, world_size, SHAPES[shape], policy, timeout=PATIENCE_S)
    assert len(found) == world_size
    predicted = state_bytes(model_parameters(SHAPES[shape]), FP32, zero_stage=3, shards=world_size)
    by_rows = [rows_by_fsdp2(SHAPES[shape], rank, world_size) for rank in range(world_size)]
    assert [states for states, _ in found] == by_rows
    if world_size in (1, 2, 4):  # these divide every number of rows, so that nothing is padded
        assert set(by_rows) == {predicted}
    assert by_rows[0].total == pytest.approx(predicted.total, rel=0.006)  # 3 ranks pad 256 rows to 258
    assert all(5 < loss < 6 for _, loss in found)  # ln 256 = 5.55: an untrained model that read its weights


def zero_redundancy(config):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the module scripts its neighbours
        from torch.distributed.optim import ZeroRedundancyOptimizer
    torch.manual_seed(0)
    model = Decoder(config)
    group = dist.group.WORLD
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, process_group=group, lr=1e-3)
    step_of(model, optimizer)
    own = storage_bytes(moments_of(optimizer.optim))
    return own, max(p.nbytes for p in model.parameters())


@shapes
@worlds
def test_zero_redundancy_optimizer_shards_whole_tensors(shape, world_size):
    """All ranks together keep the formula's bytes; the fullest one more, by less than the moments of one tensor."""
    found = run_ranks(zero_redundancy, world_size, SHAPES[shape], timeout=PATIENCE_S)
    own = [nbytes for nbytes, _ in found]
    largest = 2 * max(nbytes for _, nbytes in found)
    parameters = model_parameters(SHAPES[shape])
    assert len(own) == world_size
    assert sum(own) == state_bytes(parameters, FP32).optimizer
    fullest = state_bytes(parameters, FP32, zero_stage=1, shards=world_size).optimizer
    assert fullest <= max(own) < fullest + largest
