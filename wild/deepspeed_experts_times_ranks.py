"""Under ZeRO, stage 1 or 2, the gradients of spread experts were as many times too large as ranks shared them.

An expert sees the tokens of all these ranks, so its gradient is a sum already. It was divided by the ranks that have
the same expert, here one, while all else was divided by all ranks. The cure divides both by all.
"""

import os

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.moe import layer, utils
from torch import nn

from course_lib.training.trainer import make_optimizer, share
from course_lib.verify.adapters.loop import Loop
from wild.deepspeed_zero2_last_part import batches as batches

EXHIBIT = {
    "library": "deepspeed",
    "links": ["deepspeedai/DeepSpeed#6545", "deepspeedai/DeepSpeed#5618"],
    "old": "deepspeed==0.15.1 hjson==3.1.0 py-cpuinfo==9.0.0 einops==0.8.2 msgpack==1.2.4",
    "mended": "deepspeed==0.19.8 hjson==3.1.0 py-cpuinfo==9.0.0 einops==0.8.2 msgpack==1.2.4",
    "dtype": "float32",  # in which it keeps its weights
    "ranks": 2,
    "rung": "gradients",
    "cause": "summed",
}


class Mixture(nn.Linear):  # by itself it is the router
    def forward(self, x):
        weight, chosen = super().forward(x).softmax(-1).max(-1)
        return torch.einsum("bsd,bsed->bse", x, self.experts[chosen]) * weight[..., None]


def words():
    torch.manual_seed(0)
    mixture = Mixture(16, 2, bias=False)
    mixture.experts = nn.Parameter(torch.randn(2, 16, 16) / 4)
    return nn.Sequential(nn.Embedding(50, 16), mixture, nn.Tanh(), nn.Linear(16, 50))


class Spread:  # an expert on each rank
    def __init__(self, config):
        os.environ["LOCAL_RANK"] = str(dist.get_rank())  # the ranks are there already
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled here
        model, self.max_norm = words(), config.max_norm or float("inf")
        moe = layer.MoE(16, nn.Linear(16, 16, bias=False), num_experts=2, ep_size=2, drop_tokens=False, use_rts=False)
        moe.deepspeed_moe.gate.wg.weight, experts = model[1].weight, model[1].experts
        self.expert = moe.deepspeed_moe.experts.deepspeed_experts[0].weight
        self.expert.data.copy_(experts[dist.get_rank()])
        self.rest = {name: weight for name, weight in model.named_parameters() if weight is not experts}
        moe.register_forward_hook(lambda _, args, result: result[0])
        model[1] = moe
        optimizer = make_optimizer(list(model.parameters()), config)
        optimizer.param_groups[:] = utils.configure_moe_param_groups([optimizer.param_groups[0] | {"name": "all"}])
        options = {"train_batch_size": 8, "zero_allow_untested_optimizer": True, "zero_optimization": {"stage": 1}}
        self.engine = deepspeed.initialize(model=model, optimizer=optimizer, config=options)[0]

    def step(self, batch):
        inputs, targets = share(batch, dist.get_rank(), 2)
        loss = nn.functional.cross_entropy(self.engine(inputs).mT, targets)
        self.engine.backward(loss)
        # Clipped here, since the engine takes a mean of the experts' norms. Each number is on one rank.
        numbers = [part for group in self.engine.optimizer.averaged_gradients.values() for part in group]
        sums = torch.stack([sum(part.square().sum() for part in numbers), loss.detach() / 2])
        dist.all_reduce(sums)
        for part in numbers:
            part.mul_((self.max_norm / sums[0].sqrt()).clamp(max=1))
        self.engine.step()
        return sums[1].item()

    def parameters(self):
        experts = torch.empty(2, 16, 16)
        dist.all_gather_into_tensor(experts, self.expert.detach()[None])
        return {"1.experts": experts} | {name: weight.detach() for name, weight in self.rest.items()}


reference, parallel = lambda config: Loop(words(), config), Spread
