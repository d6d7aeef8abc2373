"""An exhibit: a bug, where it happened, and how to plant it into a trainer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from course_lib.config import TrainConfig
from course_lib.training.batches import Batch, Batches
from course_lib.training.setup import Technique
from course_lib.training.trainer import Trainer
from course_lib.verify.data_order import DATA_ORDER, sampled
from course_lib.verify.trainable import MakeTrainer

_METHODS = ("output", "compute_gradients", "clip", "update", "save", "load")
ISSUES = "https://github.com/{}/issues/{}"
PULLS = "https://github.com/{}/pull/{}"


@dataclass(frozen=True, kw_only=True)
class Issue:
    """Where the bug was met in public."""

    title: str
    link: str


@dataclass(frozen=True, kw_only=True)
class Bug:
    """A realistic error: a technique that a trainer applies last, or, where the library has no such seam, a patch.

    `patch` puts the error into the library's own functions for as long as its context lasts.
    """

    name: str
    title: str
    technique: Technique | None = None  # edits the layout, the engine, or what hooks into the model
    patch: Callable[[], AbstractContextManager[object]] = nullcontext
    where: Issue
    first_rung: str  # of the ladder on which it shows; or DATA_ORDER, which no ladder looks at
    looks: str  # what one sees who does not climb the ladder
    accumulation: int = 1  # micro-batches per step that it needs to show
    ragged: bool = False  # whether it needs shares with unequal numbers of targets

    def planted(self, make: MakeTrainer) -> MakeTrainer:
        """The maker of a trainer that has the bug in all that it does; `make` takes techniques after the config."""
        last = [self.technique] if self.technique else []

        def make_with_bug(config: TrainConfig) -> Trainer:
            with self.patch():
                trainer = make(replace(config, accumulation=self.accumulation), *last)
            for name in () if self.technique else _METHODS:
                setattr(trainer, name, self._patched(trainer, name))
            return trainer

        return make_with_bug

    def sound(self, make: MakeTrainer) -> MakeTrainer:
        """The maker of the same trainer without the bug."""
        return lambda config: make(replace(config, accumulation=self.accumulation))

    def batch_of(self, batches: Batches, world_size: int) -> Callable[[int], Batch]:
        """Whole batches as the bug needs them; those of a bug in the data's order come from the ranks' samplers."""
        if self.first_rung != DATA_ORDER:
            return replace(batches, ragged=self.ragged).batch
        serve = sampled(batches, world_size)

        def batch(step: int) -> Batch:
            with self.patch():
                return serve(step)

        return batch

    def _patched(self, trainer: Trainer, name: str) -> Callable[..., Any]:
        """A method that is looked up while the patch holds, since the patch may replace it."""

        def method(*args: Any) -> Any:
            with self.patch():
                return getattr(type(trainer), name)(trainer, *args)

        return method
