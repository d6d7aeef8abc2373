"""What a training step keeps in memory, from instant to instant, by what it is for.

Named tensors are asked for their memory: weights, gradients, the optimizer's states. All that exists besides, by what
PyTorch's allocator reports, belongs to the computation: what autograd saved, and what is in use just then. What the
communication thread allocates is the transport's, and no part of it. On a CPU.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from course_lib import comm
from course_lib.parallel.sharding.untouched import row_of
from course_lib.parallel.sharding.wrapping import blocks_of
from course_lib.training.batches import Batch
from course_lib.training.step import storage_bytes
from course_lib.training.trainer import Trainer

_MARK = "instant "


@dataclass(frozen=True, kw_only=True)
class Instant:
    """What one rank keeps at a moment, in bytes; `peak` is the most until the next instant."""

    name: str
    weights: int  # that last from step to step
    gathered: int  # whole units
    gradients: int  # whole
    reducing: int  # rows of gradients under way
    gradient_pieces: int
    optimizer: int
    activations: int
    peak: int

    @property
    def total(self) -> int:
        """All of it."""
        named = self.weights + self.gathered + self.gradients + self.reducing + self.gradient_pieces
        return named + self.optimizer + self.activations


def track_step(trainer: Trainer, batch: Batch) -> tuple[Instant, ...]:
    """One training step of this rank: when each block begins its forward and backward, and before and after both.

    All ranks call it. The guard is off meanwhile.
    The first step differs from others: states do not exist yet, and the order of units is not known.
    """
    recorder, activities = _Recorder(trainer), [torch.profiler.ProfilerActivity.CPU]
    gc.collect()  # what is freed meanwhile would count with a minus
    profile = torch.profiler.profile(activities=activities, profile_memory=True)
    with comm.settings(guard=False), profile as profiler:  # what ranks compare is small, and freed by other threads
        recorder.note("start")
        with recorder.watching():
            trainer.compute_gradients(batch)
        recorder.note("gradients")
        trainer.clip()
        trainer.update()
        recorder.note("end")
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
    return recorder.instants(profiler.profiler.kineto_results.events())


def between_micro_batches(instants: Sequence[Instant]) -> Instant:
    """The instant when the second micro-batch begins: what there was after a backward, and all of it still there."""
    first = next(instant.name for instant in instants if instant.name.startswith("forward"))
    return [instant for instant in instants if instant.name == first][1]


class _Recorder:
    """Notes what exists, under a mark among the allocator's reports."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.names: list[str] = []
        self.found: list[dict[str, int]] = []

    def note(self, name: str, *_: object) -> None:
        """Now."""
        self.found.append(_named_bytes(self.trainer))
        self.names.append(name)
        with torch.profiler.record_function(f"{_MARK}{len(self.names)}"):
            pass

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Let every block note its forward and backward, and the model its loss."""
        model = self.trainer.engine.model
        handles = []
        for path in blocks_of(model):
            block, name = model.get_submodule(path), path.removeprefix("module.")  # of a model that is wrapped
            handles.append(block.register_forward_pre_hook(partial(self.note, f"forward {name}")))
            handles.append(block.register_forward_hook(partial(self._in_backward, f"backward {name}")))
        handles.append(model.register_forward_hook(lambda *_: self.note("loss")))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _in_backward(self, name: str, _: nn.Module, args: Any, output: Any) -> None:
        for x in tree_leaves(output):
            if isinstance(x, Tensor) and x.requires_grad:
                x.register_hook(partial(self.note, name))

    def instants(self, events: Any) -> tuple[Instant, ...]:
        """Put what was noted beside what was allocated."""
        totals, peaks, now = [], [], 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            if event.name().startswith(_MARK):
                totals.append(now)
                peaks.append(now)
            elif event.name() == "[memory]" and totals:
                now += event.nbytes()
                peaks[-1] = max(peaks[-1], now)
        before = sum(self.found[0].values())
        return tuple(
            Instant(name=name, activations=before + total - sum(found.values()), peak=before + peak, **found)
            for name, found, total, peak in zip(self.names, self.found, totals, peaks, strict=True)
        )


def _named_bytes(trainer: Trainer) -> dict[str, int]:
    """What a trainer's rank keeps between computations: weights, gradients and states, whole or in pieces."""
    parameters = list(trainer.engine.model.parameters())
    rows = list({id(row): row for p in parameters if (row := row_of(p)) is not None}.values())
    held = [row.held() for row in rows]

    def of(kind: str) -> list[Tensor]:
        return [tensor for tensors in held for tensor in tensors[kind]]

    pieces = [piece for row in rows if not row.is_whole or row.sharing.resident for piece in row.pieces.values()]
    alone = [p.data for p in parameters if row_of(p) is None]
    own = {id(piece) for piece in pieces}
    whole = [p.grad for p in parameters if p.grad is not None and id(p) not in own]
    states = [x for state in trainer.optimizer.state.values() for x in state.values() if isinstance(x, Tensor)]
    return {
        "weights": storage_bytes([*of("weights"), *alone]),
        "gathered": storage_bytes(of("gathered")),
        "gradients": storage_bytes(whole),
        "reducing": storage_bytes(of("reducing")),
        "gradient_pieces": storage_bytes([*of("gradient pieces"), *(p.grad for p in pieces if p.grad is not None)]),
        "optimizer": storage_bytes(states),
    }
