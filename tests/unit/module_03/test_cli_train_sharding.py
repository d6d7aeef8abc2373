"""What `python -m course_lib train` says of sharded data parallelism: what is unsaid, needed and refused."""

from __future__ import annotations

import pytest

from course_lib.cli import train_checks
from course_lib.cli.train_config import read_train
from course_lib.config import ParallelConfig
from course_lib.costs.model.parameters import model_parameters

ZERO = ["dp=4", "zero_stage=3"]
HYBRID = [*ZERO, "strategy=HYBRID_SHARD"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["dp=2", "zero_stage=4"],
            "ParallelConfig: zero_stage=4; ZeRO has the stages 1 to 3; choose 0 (none), 1, 2 or",
        ),
        (["zero_stage=all"], "train: zero_stage='all'; zero_stage is of whole numbers; write them without quotes"),
        (
            ["zero_stage=1"],
            "train: zero_stage=1 with dp=1; one rank has nobody to share with; leave zero_stage out, or",
        ),
        (
            ["dp=2", "zero_stage=1", "tp=2", "engine=torch"],
            "train: zero_stage=1 with tp=2 and engine=torch; PyTorch's ZeRO-1 takes tensors of one rank; choose engine",
        ),
        (
            [*ZERO, "pp=2"],
            "train: zero_stage=3 with pp=2; a pipeline's stages share the optimizer's states alone; give zero_stage=1",
        ),
        (
            ["dp=2", "strategy=NO_SHARD"],
            "train: strategy=NO_SHARD with zero_stage=0; it says how ranks share; leave st",
        ),
        (
            ["dp=2", "zero_stage=2", "strategy=FULL_SHARD"],
            "train: strategy=FULL_SHARD with zero_stage=2; it says how we",
        ),
        (
            ["dp=2", "zero_stage=1", "shards=2"],
            "train: shards=2 with zero_stage=1; it says how weights are shared, which is stage 3; give zero_stage=3, o",
        ),
        (["dp=2", "offload=cpu"], "train: offload=cpu with zero_stage=0; it says how ranks share; leave offload out"),
        ([*ZERO, "offload=disk"], "train: offload='disk'; not a known kind; choose cpu, or leave offload out"),
        ([*ZERO, "offload=cpu", "engine=torch"], "train: offload=cpu with engine=torch; here PyTorch's engine keeps "),
        ([*ZERO, "strategy=full_shard"], "train: strategy='full_shard'; not a known strategy; choose from NO_SHARD, S"),
        (HYBRID, "train: strategy='HYBRID_SHARD', shards=None; HYBRID_SHARD, and it alone, takes a number of shards; "),
        (
            [*HYBRID, "shards=3"],
            "train: shards=3 with dp=4; every copy has equally many ranks; choose shards in [1, 2,",
        ),
        ([*HYBRID, "shards=2.5"], "train: shards=2.5; shards is of whole numbers; write them without quotes and units"),
        (
            [*ZERO, "policy=by_layer"],
            "train: policy='by_layer'; not a known policy; choose from by_block, by_block_and",
        ),
        ([*ZERO, "policy=by_block_group"], "train: policy=by_block_group, policy_size=None; it says how many blocks, "),
        ([*ZERO, "policy_size=2"], "train: policy_size=2 with policy=by_block; a size is for by_block_group and size_"),
        (
            ["dp=2", "zero_stage=1", "engine=torch", "policy=by_block"],
            "train: policy=by_block with engine=torch; PyTorch's ZeRO-1 has no units; leave policy out, or choose engi",
        ),
    ],
)
def test_a_mistake_is_one_line_in_four_parts(overrides, message):
    with pytest.raises(ValueError) as error:
        read_train(overrides)
    text = str(error.value)
    assert text.startswith(message) and "\n" not in text and text.count("; ") >= 2


def test_it_has_defaults_that_the_results_name():
    names = "strategy", "shards", "policy", "policy_size"
    run = read_train(ZERO)
    assert [run.values[name] for name in names] == ["FULL_SHARD", None, "by_block", None]
    assert run.parallel == ParallelConfig(dp=4, zero_stage=3)
    assert read_train([*ZERO, "policy=size_based"]).values["policy_size"] == 100_000_000
    assert [read_train(["dp=2"]).values[name] for name in names] == [None] * 4


@pytest.mark.parametrize(
    ("overrides", "numbers"),
    [
        (["dp=4", "zero_stage=1"], 4 + 4 + 2),  # weights and gradients are whole on each rank
        (["dp=4", "zero_stage=2"], 4 + 1 + 2),
        (ZERO, 4),
        ([*ZERO, "tp=2"], 4),  # together they keep one model's states
        ([*ZERO, "optimizer=sgd"], 2),
        ([*HYBRID, "shards=2"], 2 * 4),
        ([*ZERO, "strategy=NO_SHARD"], 4 * 4),
        (["dp=4", "zero_stage=2", "engine=torch"], 4),  # PyTorch's shares weights too
    ],
)
def test_what_ranks_share_they_need_once(overrides, numbers):
    run = read_train(overrides)
    assert train_checks.numbers_needed(run, run.ranks) == numbers * model_parameters(run.model)
