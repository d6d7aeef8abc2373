"""The verifications that look inside: who holds what, where outputs begin to differ, and what rounding explains."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from sharded_models import TOKENS

from course_lib.config import TrainConfig
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import run_ranks
from course_lib.training.sharding import fully_shard
from course_lib.training.tensor_technique import tensor
from course_lib.training.trainer import Trainer
from course_lib.verify.held import held_parts
from course_lib.verify.outputs import compare_outputs
from course_lib.verify.rounding import compare_rounding
from tests.ranks.module_06.test_sharded_tensor import KEEP, MODELS, alone, both

TWO_AXES = {"dp": 2, "tp": 2, "apply": (tensor(), fully_shard())}


@pytest.mark.parametrize("apply", [(tensor(), fully_shard()), (KEEP,)], ids=["fsdp x tp", "sequence"])
def test_every_rank_holds_its_part_bit_by_bit(apply):
    dp = 2 if len(apply) == 2 else 1
    found = held_parts(alone, partial(both, dp=dp, tp=2, apply=apply), world_size=2 * dp)
    assert found.wrong == () and str(found).endswith("every part is the layout's, bit by bit")
    assert len(found.places) == 2 * dp and found.shapes.keys() == set(found.layout.parameters)
    if dp == 1:
        assert found.shapes["layers.0.ffn.up_proj.weight"] == ((7, 8), (6, 8))
    else:  # pieces of parts: 56 and 48 numbers, with others in a row
        assert sum(size for (size,) in found.shapes["layers.0.ffn.up_proj.weight"]) == 13 * 8


def swapped(setup):
    """A wrong cut that has the right shapes: the ranks along tp have each other's part of one weight."""
    weight = setup.local.parameters["layers.1.attention.q_proj.weight"]
    other = torch.empty_like(weight)
    group = setup.local.group("tp")
    parts = [torch.empty_like(weight) for _ in range(group.size())]
    dist.all_gather(parts, weight.detach(), group=group)
    other.copy_(parts[1 - group.rank()])
    weight.data.copy_(other)


def test_a_part_of_the_neighbour_s_is_named():
    found = held_parts(alone, partial(both, dp=1, tp=2, apply=(tensor(), swapped)), world_size=2)
    name = "layers.1.attention.q_proj.weight: other numbers than the layout says"
    assert found.wrong == (f"rank 0: {name}", f"rank 1: {name}")


def test_every_module_gives_what_one_device_s_gives():
    for apply in (TWO_AXES["apply"], (KEEP, fully_shard())):
        together = partial(both, dp=2, tp=2, apply=apply)
        found = {one.name: one for one in compare_outputs(alone, together, TOKENS.batch(0), world_size=4)}
        assert max(one.deviation for one in found.values()) <= 1e-11
        parts = {name: found[name].part for name in ("embedding", "layers.0.attention.q_proj", "layers.2.ffn", "head")}
        between = "whole" if apply == TWO_AXES["apply"] else "positions"
        assert list(parts.values()) == [between, "features", between, "features"]
        assert [*found][:2] == ["embedding", "layers.0.attention_norm"] and [*found][-1] == "head"


def shifted(setup):
    """A little too much in the middle of the model."""
    setup.model.get_submodule("layers.1.ffn.down_proj").register_forward_hook(lambda module, _, y: y + 0.01)


def test_the_first_module_that_differs_is_the_one_with_the_bug():
    made = partial(both, dp=1, tp=2, apply=(tensor(), shifted))
    found = compare_outputs(alone, made, TOKENS.batch(0), world_size=2)
    first = next(one for one in found if one.deviation > 1e-11)
    assert first.name == "layers.1.ffn.down_proj" and first.deviation > 1e-3


def gradients(dtype, tp, apply):
    """Of one batch, whole, from float32 weights that are gathered in `dtype`."""
    torch.manual_seed(0)
    mesh = make_mesh(dp=dist.get_world_size() // tp, tp=tp)
    first, *others = apply
    apply = (first, fully_shard(param_dtype=dtype, reduce_dtype=torch.float32), *others)
    trainer = Trainer(MODELS["llama"](), TrainConfig(), mesh=mesh, apply=apply)
    trainer.compute_gradients(TOKENS.batch(0))
    return trainer.gradients()


def not_summed(setup):
    """Each rank keeps the gradient that its positions gave the norms."""
    for name in setup.local.layout.places:
        setup.local.layout.write(name, partial=frozenset())


def test_rounding_explains_what_ranks_find_in_bf16_and_not_a_bug():
    (exact,), (once,) = (run_ranks(gradients, 1, dtype, 1, (tensor(),)) for dtype in (None, torch.bfloat16))
    sound, wrong = (
        compare_rounding(exact, once, run_ranks(gradients, 4, torch.bfloat16, 2, apply)[0])
        for apply in ((KEEP,), (KEEP, not_summed))
    )
    assert all(one.is_sound and one.alone > 1e-4 for one in sound) and len(sound) == len(exact)
    assert {one.name for one in wrong if not one.is_sound} == {name for name in exact if "norm" in name}
