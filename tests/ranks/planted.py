"""How bugs get into a sound trainer on ranks; `planted_bugs.py` has the table of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.distributed as dist
from ladder_models import Replicated, Toy
from torch import nn
from torch.distributed import ReduceOp

from course_lib import comm
from course_lib.training.step import count_targets
from course_lib.verify.replay import Change, Reconfigured

RANKS = 4
BIAS, HEAD, SHARED = "inner.bias", "head.weight", "embedding.weight"


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A bug. `plant` changes a trainer that was just made; a technique hooks in before; `model` is another one."""

    cause: str
    plant: Change = lambda trainer: None
    technique: Callable[..., object] | None = None
    accumulation: int = 1
    sound: Callable[[], nn.Module] = Toy
    model: Callable[[], nn.Module] | None = None
    only: str = ""  # the optimizer that it concerns

    def make(self, config):
        """The maker for ranks."""
        model = (self.model or self.sound)()
        techniques = [self.technique] if self.technique else []
        config, here = replace(config, accumulation=self.accumulation), self.only in ("", config.optimizer)
        if isinstance(self.plant, Reconfigured):
            return Replicated(model, self.plant.of(config) if here else config, *techniques)
        trainer = Replicated(model, config, *techniques)
        if here:
            self.plant(trainer)
        return trainer


# --- ways to get in ---


def hooked(function):
    """What happens to a full bucket."""
    return lambda trainer: trainer.model.register_comm_hook(function)


def after(name, work):
    """Something that happens after a method, and may change what it returns."""

    def plant(trainer):
        method = getattr(trainer, name)

        def longer(*args):
            result = method(*args)
            other = work(trainer, result)
            return result if other is None else other

        setattr(trainer, name, longer)

    return plant


def gradients(change, *names, rank=None):
    """The gradients after averaging, of these names or all, on one rank or all."""

    def spoil(trainer, _):
        for name, gradient in trainer.local.gradients().items():
            if (not names or name in names) and rank in (None, dist.get_rank()):
                gradient.copy_(change(gradient))

    return after("compute_gradients", spoil)


def instead(**methods):
    """Methods of the trainer's own, by functions of the trainer first."""

    def plant(trainer):
        for name, function in methods.items():
            setattr(trainer, name, partial(function, trainer))

    return plant


def losses_times(weight):
    """Each micro-batch's loss times a number, while what is logged stays right."""

    def technique(setup):
        run = setup.engine.run
        m = setup.engine.n_microbatches
        setup.engine.run = lambda inputs, loss: run(inputs, lambda output, n: loss(output, n) * weight(n, m))

    return technique


def average(flat):
    comm.all_reduce_(flat, op=ReduceOp.AVG)


def added(factor):
    """The sum over the ranks, times a number."""

    def hook(plan, bucket):
        comm.all_reduce_(bucket.flat)
        bucket.flat.mul_(factor)

    return hooked(hook)


def from_all(choose):
    """What `choose` makes of the ranks' own gradients, a row for each."""

    def hook(plan, bucket):
        bucket.flat.copy_(choose(comm.all_gather(bucket.flat[None].contiguous())))

    return hooked(hook)


def through(dtype):
    """Rounded before it is averaged in full."""

    def hook(plan, bucket):
        bucket.flat.copy_(bucket.flat.to(dtype))
        average(bucket.flat)

    return hooked(hook)


def half_on_the_wire(plan, bucket):
    bucket.flat.copy_(comm.all_reduce_(bucket.flat.half(), op=ReduceOp.AVG))


def last_rank_sends_zeros(plan, bucket):
    if dist.get_rank() == RANKS - 1:
        bucket.flat.zero_()
    average(bucket.flat)


class OneStepLate:
    def __init__(self):
        self.before = {}

    def __call__(self, plan, bucket):
        average(bucket.flat)
        now = bucket.flat.clone()
        which = bucket.parameters[0]
        bucket.flat.copy_(self.before.get(which, torch.zeros_like(now)))
        self.before[which] = now


class AloneFromStepTwo:
    def __init__(self):
        self.calls = 0

    def __call__(self, plan, bucket):
        self.calls += 1
        if self.calls == 1:
            average(bucket.flat)


def keeps_its_own_bias(trainer):
    own = {}
    trainer.local.parameters[BIAS].register_hook(lambda gradient: own.update(mine=gradient.clone()))
    after("compute_gradients", lambda t, _: t.local.parameters[BIAS].grad.copy_(own["mine"]))(trainer)


def own_norm(trainer):
    own = {}
    for name, parameter in trainer.local.parameters.items():
        parameter.register_hook(lambda gradient, name=name: own.update({name: gradient.clone()}))
    trainer.clip = lambda: torch.stack([gradient.norm() for gradient in own.values()]).norm().item()


def norm(of):
    return after("clip", lambda trainer, _: of(list(trainer.local.gradients().values())).item())


def reborn(seed, *, buffers=False, ranks=None):
    """Weights, or buffers, of another seed on some ranks."""

    def plant(trainer):
        if ranks is None or dist.get_rank() in ranks:
            torch.manual_seed(seed + dist.get_rank())
            other = type(trainer.model.module)()
            mine = trainer.local.buffers if buffers else trainer.local.parameters
            for name, x in other.named_buffers() if buffers else other.named_parameters():
                mine[name].data.copy_(x)

    return plant


def own_buffers(trainer):
    """Never sent again, either."""
    reborn(100, buffers=True, ranks=(1, 2, 3))(trainer)
    trainer.model.plan = replace(trainer.model.plan, broadcast_buffers=False)


def rows_in_order(order):
    return after("output", lambda trainer, output: output[order(len(output))])


def shifted_on_rank_1(trainer):
    shift = 0.1 if dist.get_rank() == 1 else 0.0
    trainer.model.module.head.register_forward_hook(lambda _, __, output: output + shift)


def updates_twice(trainer):
    trainer.optimizer.step()
    trainer.optimizer.step()
    trainer.zero_grad()


def first_rank_updates(trainer):
    if dist.get_rank() == 0:
        trainer.optimizer.step()
    trainer.zero_grad()


def forget_bias(trainer):
    group = trainer.optimizer.param_groups[0]
    group["params"] = [p for p in group["params"] if p is not trainer.local.parameters[BIAS]]


def vectors_do_not_decay(trainer):
    """What AdamW takes away from vectors is given back."""
    update = trainer.update

    def updated():
        vectors = [p for p in trainer.local.parameters.values() if p.dim() < 2]
        before = [p.detach().clone() for p in vectors]
        update()
        for p, old in zip(vectors, before, strict=True):
            p.data.add_(old, alpha=trainer.config.learning_rate * trainer.config.weight_decay)

    trainer.update = updated


def nudged(trainer, _):
    if dist.get_rank() == 2:
        weight = trainer.local.parameters[HEAD].data
        weight[0, 0] = torch.nextafter(weight[0, 0], weight.new_tensor(9.0))


def in_bf16(trainer, _):
    for parameter in trainer.local.parameters.values():
        parameter.data.copy_(parameter.data.bfloat16())


def moments_in_bf16(trainer, _):
    for state in trainer.optimizer.state.values():
        for kind in ("exp_avg", "exp_avg_sq"):
            state[kind].copy_(state[kind].bfloat16())


def drifting(trainer, _):
    trainer.local.buffers["positions"].add_(1e-3)


def other_batch(change):
    """Ranks train on another batch than they are given."""

    def plant(trainer):
        compute = trainer.compute_gradients
        trainer.compute_gradients = lambda batch: compute(tuple(change(x) for x in batch))

    return plant


def knows_the_share(trainer):
    """Divides by all positions, ignored ones too."""
    compute = trainer.compute_gradients

    def over_positions(batch):
        loss = compute(batch)
        for gradient in trainer.local.gradients().values():
            gradient.mul_(count_targets(batch) / batch[1].numel())
        return loss

    trainer.compute_gradients = over_positions


def loads(change):
    """Something is lost right after loading."""
    return after("load", lambda trainer, _: change(trainer))


def loads_nothing_on(*ranks, buffers=False):
    def plant(trainer):
        load = trainer.load

        def partly(folder):
            mine = trainer.local.buffers if buffers else trainer.local.parameters
            before = {name: x.detach().clone() for name, x in mine.items()}
            load(folder)
            if not ranks or dist.get_rank() in ranks:
                for name, x in before.items():
                    mine[name].data.copy_(x)

        trainer.load = partly

    return plant


def clipped_before_averaging(trainer):
    def hook(plan, bucket):
        most = trainer.config.max_norm
        if most is not None:
            bucket.flat.mul_(min(1.0, most / bucket.flat.norm().item()))  # one bucket holds all
        average(bucket.flat)

    hooked(hook)(trainer)


def in_another_order(gradient):
    first, *others = gradient.tensor_split(RANKS)
    return torch.cat([*others, first])


def strided(n):
    return torch.cat([torch.arange(rank, n, RANKS) for rank in range(RANKS)])


def thawed(trainer):
    bias = trainer.local.parameters[BIAS]
    after("compute_gradients", lambda *_: setattr(bias, "grad", torch.ones_like(bias)))(trainer)


def from_another_seed(trainer):
    """All ranks alike."""
    reborn(100)(trainer)
    for x in trainer.local.parameters.values():
        x.data.copy_(comm.broadcast(x.data.contiguous()))
