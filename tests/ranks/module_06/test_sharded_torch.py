"""Sharded data parallelism by PyTorch's own API: FSDP2, the older FSDP and ZeroRedundancyOptimizer beside ours."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch
import torch.distributed as dist
from ladder_models import STEPS
from sharded_models import MODELS, TOKENS, VOCABULARY, alone, batch_of, sharded
from torch import nn

from course_lib.comm.call import resolve
from course_lib.config import TrainConfig
from course_lib.models.decoder import Layer
from course_lib.parallel.sharding.wrapping import by_name
from course_lib.parallel.table.mesh import groups_within, make_mesh
from course_lib.ranks import run_ranks
from course_lib.training.sharding import fully_shard, zero
from course_lib.training.step import count_targets, loss_of
from course_lib.training.torch_sharding import torch_fully_shard, torch_zero
from course_lib.training.trainer import Trainer, make_optimizer, share
from course_lib.verify import RUNGS, assert_parallel_equals

ADAMW = TrainConfig(optimizer="adamw", weight_decay=0.1)
STRATEGIES = {
    "NO_SHARD": {},
    "SHARD_GRAD_OP": {},
    "FULL_SHARD": {},
    "HYBRID_SHARD": {"shards": 2},
}


@pytest.mark.parametrize(
    ("technique", "model", "world_size"),
    [
        (torch_fully_shard(by_name("layers.*.ffn", "layers.*")), "tied", 2),
        (torch_zero(), "frozen", 3),
        (torch_fully_shard(strategy="HYBRID_SHARD", shards=2), "frozen", 4),
    ],
)
def test_it_equals_one_device(technique, model, world_size):
    together = partial(sharded, technique=technique, model=model)
    report = assert_parallel_equals(
        partial(alone, model=model), together, batch_of(model), world_size=world_size, steps=STEPS
    )
    assert tuple(report.deviations) == RUNGS and report.max_deviation <= 1e-11


def trained(technique, config=ADAMW, dtype=torch.float64):
    """Gradients of the second batch, and the weights after it."""
    torch.manual_seed(0)
    model = MODELS["tied"]().to(dtype)
    trainer = Trainer(model, config, mesh=make_mesh(dp=dist.get_world_size()), apply=(technique,))
    trainer.step(TOKENS.batch(0))
    trainer.compute_gradients(TOKENS.batch(1))
    gradients = trainer.gradients()
    trainer.update()
    return gradients, trainer.parameters()


def trained_by_legacy(strategy, shards=None):
    """The same by the FSDP of before, which knows how to put its own pieces together."""
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    torch.manual_seed(0)
    groups = groups_within(make_mesh(dp=dist.get_world_size()), "dp", shards) if shards else resolve(None, "legacy")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The `NO_SHARD` sharding strategy is deprecated", FutureWarning)
        model = FullyShardedDataParallel(
            MODELS["tied"]().double(),
            process_group=groups,
            sharding_strategy=ShardingStrategy[strategy],
            auto_wrap_policy=ModuleWrapPolicy({Layer}),
            device_id=torch.device("cpu"),
            use_orig_params=True,
        )
    optimizer = make_optimizer(list(model.parameters()), ADAMW)
    gradients = {}
    for step in range(2):
        optimizer.zero_grad()
        batch = TOKENS.batch(step)
        inputs, targets = share(batch, dist.get_rank(), dist.get_world_size())
        (loss_of(model(inputs), targets) * dist.get_world_size() / count_targets(batch)).backward()
        with whole(model, with_grads=True):
            gradients = {plain(name): p.grad.clone() for name, p in model.named_parameters()}
        optimizer.step()
    with whole(model):
        return gradients, {plain(name): p.detach().clone() for name, p in model.named_parameters()}


def whole(model, **options):
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel.summon_full_params(model, **options)


def plain(name):
    return name.replace("_fsdp_wrapped_module.", "")


def three_ways():
    """By strategy: ours, FSDP2, FSDP."""
    return {
        strategy: [
            trained(fully_shard(strategy=strategy, **options)),
            trained(torch_fully_shard(strategy=strategy, **options)),
            trained_by_legacy(strategy, **options),
        ]
        for strategy, options in STRATEGIES.items()
    }


def assert_same(found, wanted, rtol=1e-12):
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.keys() == theirs.keys() and len(ours) > 10
        for name, x in ours.items():
            torch.testing.assert_close(x, theirs[name], rtol=rtol, atol=rtol, msg=lambda text, n=name: f"{n}: {text}")


def test_every_strategy_finds_the_gradients_and_the_weights_of_both_of_pytorch_s():
    for by_strategy in run_ranks(three_ways, 4):
        assert by_strategy.keys() == STRATEGIES.keys()
        for ours, *theirs in by_strategy.values():
            for one in theirs:
                assert_same(ours, one)


def other_ways():
    """ZeRO-1 and PyTorch's; then several micro-batches, and mixed precision, by ours and by FSDP2."""
    several = TrainConfig(optimizer="adamw", accumulation=2)
    mixed = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
    return (
        (trained(zero(1)), trained(torch_zero())),
        (trained(fully_shard(), several), trained(torch_fully_shard(), several)),
        [trained(by(**mixed), dtype=torch.float32) for by in (fully_shard, torch_fully_shard)],
    )


def test_zero_1_micro_batches_and_mixed_precision_are_pytorch_s():
    for optimizer, micro_batches, mixed in run_ranks(other_ways, 3):
        assert_same(*optimizer)
        assert_same(*micro_batches)
        assert_same(*mixed, rtol=1e-6)


def weights_after_inference():
    """Outputs before and after other weights were loaded."""
    trainer = sharded(TrainConfig(), torch_fully_shard(strategy="SHARD_GRAD_OP"))
    inputs, _ = TOKENS.batch(0)
    state, before = trainer.state(), trainer.output(inputs)
    for name, x in state["model"].items():
        state["model"][name] = 2 * x
    trainer.restore(state)
    return before, trainer.output(inputs), alone_with(state, inputs)


def alone_with(state, inputs):
    model = MODELS["llama"]()
    model.load_state_dict(state["model"])
    with torch.no_grad():
        return model(inputs)


def test_after_inference_it_computes_with_the_weights_that_there_are():
    for before, after, wanted in run_ranks(weights_after_inference, 2):
        torch.testing.assert_close(after, wanted)
        assert not torch.allclose(after, before)


def logits_at_late_positions():
    """In bf16, by ours and by FSDP2, of a model whose attention looks at some positions more than at others."""
    found = []
    for by in (fully_shard, torch_fully_shard):
        torch.manual_seed(0)
        model = MODELS["llama"]().float()
        for weight in model.parameters():
            nn.init.normal_(weight)
        mesh, technique = make_mesh(dp=dist.get_world_size()), by(param_dtype=torch.bfloat16)
        trainer = Trainer(model, TrainConfig(), mesh=mesh, apply=(technique,))
        found.append(trainer.output(torch.arange(600).remainder(VOCABULARY)[None]))
    return found


def test_angles_of_late_positions_keep_their_digits_in_bf16():
    """In bf16 position 513 would have the angles of 512."""
    for ours, theirs in run_ranks(logits_at_late_positions, 2):
        torch.testing.assert_close(theirs, ours, rtol=1e-6, atol=1e-6)


class Scaled(nn.Module):
    """A parameter that is one number."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(3, 3), nn.Parameter(torch.ones(()))


def refusals(cases):
    """What each case says; all of them in one start of the ranks."""
    found = []
    for model, degrees, apply in cases:
        with pytest.raises(ValueError) as error:
            Trainer(model(), TrainConfig(), mesh=make_mesh(**degrees), apply=apply)
        found.append(str(error.value))
    return found


REFUSED = [
    (Scaled, {"dp": 4}, [torch_fully_shard()], "torch_fully_shard: scale is one number; PyTorch cuts rows, and "),
    (
        MODELS["tied"],
        {"dp": 4},
        [torch_fully_shard(by_name("embedding", "layers.*"))],
        "torch_fully_shard: embedding.weight, which several units use; PyTorch cuts a parameter in the unit that ",
    ),
    (MODELS["llama"], {"dp": 4}, [torch_fully_shard(strategy="HYBRID_SHARD", shards=3)], "groups_within: 3 parts of "),
]


def test_what_it_cannot_do_is_refused_on_all_ranks():
    for texts in run_ranks(refusals, 4, [case[:3] for case in REFUSED]):
        for text, case in zip(texts, REFUSED, strict=True):
            assert text.startswith(case[3]) and text.count("; ") >= 2
