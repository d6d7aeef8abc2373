"""What `ai2-olmo` makes of the workshop's settings: FSDP's units for each policy, and one loss under all of them.

`units.py FILE…`, in that package's environment; the last line is JSON. It reads the settings beside it, then the files.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import _recursive_wrap

from olmo.config import FSDPWrapStrategy, ShardingStrategy, TrainConfig
from olmo.model import OLMo

OURS = Path(__file__).parent / "workshop.yaml"
_1B = {"d_model": 2048, "n_heads": 16, "n_layers": 16, "mlp_hidden_size": 8192}
_TINY = {"d_model": 64, "n_heads": 4, "n_layers": 4, "mlp_hidden_size": 128, "max_sequence_length": 64}
_GROUP = 4  # blocks
_RUN = ("distributed_strategy", "global_train_batch_size", "device_train_microbatch_size", "max_duration")
POLICIES = (None, *FSDPWrapStrategy)
STRATEGIES = tuple(one for one in ShardingStrategy if not one.name.startswith("_") and one.name != "HYBRID_SHARD")


class Unit(nn.Module):
    """Takes FSDP's place where nothing is to be computed: a 7B on no device has units too."""

    def __init__(self, module, **options):
        super().__init__()
        self.module = module


def main(files):
    """Count at full size, then compute on a tiny one."""
    small = changed(TrainConfig.load(OURS, ["distributed_strategy=ddp"]), _1B)
    configs = {"1B": small, "7B": TrainConfig.load(OURS)}
    configs |= {Path(file).name: TrainConfig.load(file, ["evaluators=[]"]) for file in files}
    told = {name: told_by(config) for name, config in configs.items()}
    losses = losses_of(changed(TrainConfig.load(OURS), {**_TINY, "init_device": "cpu"}).model)
    if dist.get_rank() == 0:
        print(json.dumps({"files": told, "losses": losses}))


def changed(config, model):
    """The same run of another model."""
    for name, value in model.items():
        setattr(config.model, name, value)
    return config


def told_by(config):
    """What a file says of its run, the model's parameters, and its units under each policy."""
    run = {name: getattr(config, name) for name in _RUN}
    run |= {
        "run_name": config.run_name,
        "t_warmup": config.scheduler.t_warmup,
        "checkpoints_to_keep": config.save_num_checkpoints_to_keep,
    }
    run |= {"wrapping": config.fsdp.wrapping_strategy, "sharding": config.fsdp.sharding_strategy.name}
    config.model.init_device = "meta"
    units = {str(policy): count(built(config.model, policy), policy) for policy in POLICIES}
    parameters = sum(weight.numel() for weight in built(config.model, None).parameters())
    return {"run": {name: str(value) for name, value in run.items()}, "parameters": parameters, "units": units}


def built(config, policy):
    """The model; two of the policies ask for blocks that are grouped already."""
    config.block_group_size = _GROUP if "group" in str(policy) else 1
    return OLMo(config, init_params=config.init_device != "meta")


def count(model, policy):
    """Units, the root's among them."""
    if wrap := model.get_fsdp_wrap_policy(policy):
        _recursive_wrap(model, wrap, Unit, ignored_modules=set(), ignored_params=set(), only_wrap_children=True)
    return 1 + sum(isinstance(part, Unit) for part in model.modules())


def losses_of(config):
    """The loss of a row a rank after one step of SGD, strategy by strategy and policy by policy."""
    return {
        f"{strategy.name}, {policy}": loss_of(config, policy, strategy)
        for policy in POLICIES
        for strategy in STRATEGIES
    }


def loss_of(config, policy, strategy):
    torch.manual_seed(0)
    model = built(config, policy)
    wrap = model.get_fsdp_wrap_policy(policy)
    sharded = FullyShardedDataParallel(
        model, sharding_strategy=strategy, auto_wrap_policy=wrap, use_orig_params=True, device_id=torch.device("cpu")
    )
    optimizer = torch.optim.SGD(sharded.parameters(), lr=0.1)
    row = torch.arange(33)[None] + dist.get_rank()
    for _ in range(2):
        loss = nn.functional.cross_entropy(sharded(row[:, :-1]).logits.mT, row[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    everywhere = loss.detach().clone()
    dist.all_reduce(everywhere)
    return everywhere.item() / dist.get_world_size()


dist.init_process_group("gloo")
main(sys.argv[1:])
dist.barrier()
dist.destroy_process_group()
