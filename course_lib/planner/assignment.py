"""Which layers lie on which stage, and on which kind of GPU each stage runs: the problem, and what an answer is worth.

A stage is as slow as its layers on its GPU, and a pipeline as slow as its slowest stage. Under 1F1B stage s of p keeps
the activations of min(m, p - s) micro-batches, so that the first stages need the most room.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NoReturn

from course_lib.errors import four_parts


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What a stage takes over with one layer; an embedding and a head are layers too."""

    name: str
    flops: float  # of one micro-batch, forward and backward
    state_bytes: float = 0.0  # weights, gradients, optimizer
    kept_bytes: float = 0.0  # activations of one micro-batch


@dataclass(frozen=True, kw_only=True)
class StageGpu:
    """One kind of GPU, and of how many stages of the pipeline it is."""

    name: str
    flops_per_s: float  # that it reaches, not its peak
    n_stages: int
    room_bytes: float = float("inf")


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """An answer: for each stage how many of the layers, in their order, and which kind of GPU."""

    sizes: tuple[int, ...]
    gpus: tuple[int, ...]  # index into the problem's


@dataclass(frozen=True, kw_only=True)
class StageProblem:
    """Layers in their order, and the GPUs that take them; every method here is asked the same record.

    Raises: ValueError for fewer layers than stages, or GPUs that nothing can run on.
    """

    layers: tuple[Layer, ...]
    gpus: tuple[StageGpu, ...]
    n_microbatches: int = 1

    def __post_init__(self) -> None:
        for gpu in self.gpus:
            if not (gpu.flops_per_s > 0 and gpu.n_stages > 0 and gpu.room_bytes > 0):
                values = f"{gpu.name}: {gpu.flops_per_s:g} FLOP/s, {gpu.n_stages} stages, {gpu.room_bytes:g} bytes"
                _refuse(values, "a stage's GPU computes and has room", "give numbers above 0")
        if not 1 <= self.n_stages <= len(self.layers):
            values = f"{len(self.layers)} layers, {self.n_stages} stages"
            _refuse(values, "each stage has a layer", f"give 1 to {len(self.layers)} stages")
        if self.n_microbatches < 1:
            _refuse(f"n_microbatches={self.n_microbatches}", "a step has micro-batches", "give n_microbatches >= 1")

    @property
    def n_stages(self) -> int:
        """p, of all kinds of GPU together."""
        return sum(gpu.n_stages for gpu in self.gpus)

    @cached_property
    def flops_before(self) -> list[float]:
        """Of all layers before each, and of all."""
        return [0.0, *accumulate(layer.flops for layer in self.layers)]

    @cached_property
    def _state_before(self) -> list[float]:
        return [0.0, *accumulate(layer.state_bytes for layer in self.layers)]

    @cached_property
    def _kept_before(self) -> list[float]:
        return [0.0, *accumulate(layer.kept_bytes for layer in self.layers)]

    @cached_property
    def bound_s(self) -> float:
        """What no answer beats: all GPUs busy all the time."""
        return self.flops_before[-1] / sum(gpu.flops_per_s * gpu.n_stages for gpu in self.gpus)

    def in_flight(self, stage: int) -> int:
        """Micro-batches whose activations a stage keeps at once."""
        return min(self.n_microbatches, self.n_stages - stage)

    def seconds(self, first: int, end: int, gpu: int) -> float:
        """One micro-batch of the layers from `first` to before `end` on a kind of GPU."""
        return (self.flops_before[end] - self.flops_before[first]) / self.gpus[gpu].flops_per_s

    def lacking_bytes(self, first: int, end: int, stage: int, gpu: int) -> float:
        """What these layers need beyond the GPU's room."""
        state = self._state_before[end] - self._state_before[first]
        kept = (self._kept_before[end] - self._kept_before[first]) * self.in_flight(stage)
        return max(0.0, state + kept - self.gpus[gpu].room_bytes)

    def value(self, answer: Assignment) -> tuple[float, float]:
        """(bytes that all stages lack, seconds of the slowest): less is better, and room comes first."""
        lacking = slowest = 0.0
        first = 0
        for stage, (size, gpu) in enumerate(zip(answer.sizes, answer.gpus, strict=True)):
            lacking += self.lacking_bytes(first, first + size, stage, gpu)
            slowest = max(slowest, self.seconds(first, first + size, gpu))
            first += size
        return lacking, slowest

    def gpu_of_each_stage(self) -> list[int]:
        """The kinds of GPU one after the other, as many of each as there are."""
        return [index for index, gpu in enumerate(self.gpus) for _ in range(gpu.n_stages)]


def fitting(problem: StageProblem, answer: Assignment | None, method: str) -> Assignment:
    """The answer, if every stage has the room that it needs.

    Raises: ValueError if there is no such answer.
    """
    if answer is not None and not problem.value(answer)[0]:
        return answer
    rooms = ", ".join(f"{gpu.n_stages} x {gpu.room_bytes:.3g} on {gpu.name}" for gpu in problem.gpus)
    values = f"{len(problem.layers)} layers on {problem.n_stages} stages, bytes: {rooms}"
    rule = f"{method} found no assignment in which each stage has room for its layers"
    _refuse(values, rule, "give more stages, more room, or fewer micro-batches")


def _refuse(values: str, rule: str, way_out: str) -> NoReturn:
    raise ValueError(four_parts("assign_stages", values, rule, way_out))
