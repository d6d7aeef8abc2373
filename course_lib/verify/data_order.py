"""Whether the ranks' samplers serve the sequences that one device would train on, in the same order."""

from __future__ import annotations

from collections.abc import Callable

import torch

from course_lib.errors import four_parts
from course_lib.training.batches import Batch, Batches
from course_lib.training.data_hash import DataHash
from course_lib.training.sampler import DistributedSampler
from course_lib.verify.diagnosis import NotEqual

DATA_ORDER = "data order"


def sampled(batches: Batches, world_size: int) -> Callable[[int], Batch]:
    """The whole batch of a step, put together from what the sampler of each rank gives.

    Raises: ValueError if the batch does not divide by the ranks.
    """
    each, left = divmod(batches.batch_size, world_size)
    if left:
        values, rule = f"batch_size={batches.batch_size}, world_size={world_size}", "samplers give equal shares"
        raise ValueError(four_parts("sampled", values, rule, f"give a multiple of {world_size}"))
    samplers = [
        DistributedSampler(batches.n_windows, rank=rank, world_size=world_size, seed=batches.seed, drop_last=True)
        for rank in range(world_size)
    ]

    def batch(step: int) -> Batch:
        epoch, place = divmod(step, batches.steps_per_epoch)
        for sampler in samplers:
            sampler.set_epoch(epoch)
        shares = torch.tensor([list(sampler)[each * place : each * (place + 1)] for sampler in samplers])  # (p, B/p)
        return batches.windows(shares.T.flatten())

    return batch


def assert_same_order(batches: Batches, batch_of: Callable[[int], Batch], steps: int) -> None:
    """Compare the fingerprint of each step's sequences with one device's.

    Raises: NotEqual for the first step that is served something else.
    """
    for step in range(steps):
        found = _fingerprint(batch_of(step))
        if found == _fingerprint(batches.batch(step)):
            continue
        epoch, place = divmod(step, batches.steps_per_epoch)
        again = epoch > 0 and found == _fingerprint(batch_of(place))
        words = f"the sequences of step {place} again" if again else "other sequences than one device"
        message = four_parts(
            "assert_same_order",
            f"step {step}, epoch {epoch}: {words}, fingerprint {found}",
            "seed and epoch decide the order, on any number of ranks",
            "call set_epoch before each epoch" if again else "give all samplers the same seed, each its own rank",
        )
        kind, cause = ("repeated", "set_epoch is forgotten") if again else ("other", "other samplers")
        raise NotEqual(message, rung=DATA_ORDER, name=f"step {step}", rank=0, ratio=None, kind=kind, causes=[cause])


def _fingerprint(batch: Batch) -> str:
    """The hash of one batch."""
    served = DataHash()
    served.add(*batch)
    return served.text
