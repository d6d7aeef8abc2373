"""The loop that the notebooks and `python -m course_lib train` share: one batch after another, and what each took."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from course_lib.training.batches import Batches
from course_lib.training.learning_rate import LearningRate
from course_lib.training.step import count_targets
from course_lib.training.tokenizer import BYTES, load_tokens
from course_lib.training.trainer import Trainer
from course_lib.units import KiB


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step, as the rank that this process is saw it."""

    number: int  # from 1
    loss: float  # mean over the targets of the whole batch, before the update
    tokens: int  # targets of the whole batch
    seconds: float
    learning_rate: float
    norm: float  # of all gradients, before they were clipped
    memory_bytes: int  # the most so far, by `_peak_memory`
    own_s: tuple[float, ...] = ()  # this rank's own work; in a run's record all ranks', in every tenth step

    @property
    def tokens_per_s(self) -> float:
        """Targets of all ranks in a second."""
        return self.tokens / self.seconds


def train(
    trainer: Trainer, batches: Batches, steps: int, done: int = 0, rate: LearningRate | None = None
) -> Iterator[Step]:
    """Train up to step `steps` and yield each step after those that are `done`; on ranks all of them run it.

    Without a `rate` that goes with the steps each has the configured one.

    Raises: ValueError, on all ranks, for a loss that is not finite.
    """
    device = next(trainer.model.parameters()).device
    for number in range(done, steps):
        started, worked = time.perf_counter(), time.process_time()
        if rate is not None:
            trainer.set_learning_rate(rate.of(number + 1))
        inputs, targets = batches.batch(number)
        waited = (time.perf_counter() - started) - (time.process_time() - worked)
        loss = trainer.step((inputs.to(device), targets.to(device)))
        yield Step(
            number=number + 1,
            loss=loss,
            tokens=count_targets((inputs, targets)),
            seconds=time.perf_counter() - started,
            learning_rate=trainer.options["lr"],
            norm=trainer.norm,
            memory_bytes=_peak_memory(device),
            own_s=_own_seconds(device, worked, waited),
        )


def _own_seconds(device: torch.device, worked: float, waited: float) -> tuple[float, ...]:
    """Seconds that the processor spent on this step since `worked`, and those in which the step `waited` for its data.

    Who waits for another rank over gloo sleeps, which takes no processor's time, so a slow rank has more than others.
    A rank that is slow because it sleeps itself is not seen; on a GPU nothing is, for waiting for it looks like work.
    """
    return () if device.type == "cuda" else (time.process_time() - worked + max(waited, 0.0),)


def _peak_memory(device: torch.device) -> int:
    """Bytes that this process held at most: on a GPU what torch allocated, else its whole resident memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * KiB


def tokens_of(text: bytes, vocab_size: int) -> bytes | NDArray[np.integer]:
    """The text in tokens: its bytes are the tokens of a vocabulary of 256; another has a byte-level BPE trained.

    Raises: ValueError as `load_tokens` does.
    """
    return text if vocab_size == BYTES else load_tokens(text, vocab_size)[1]
