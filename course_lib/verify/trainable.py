"""What the ladder asks of a trainer: two methods, so that anybody's can climb, and a few more for all of its rungs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from math import prod
from typing import Any, Protocol, runtime_checkable

import torch.distributed as dist
from torch import Tensor, nn

from course_lib.errors import four_parts
from course_lib.training.batches import Batch
from course_lib.training.trainer import Trainer
from course_lib.verify.alike import SGD


@runtime_checkable
class Trainable(Protocol):
    """Anybody's trainer, on one device or on ranks, where every method is called on all of them.

    More is looked for by name, and a rung that lacks it is left out, with the reason in the report:

    - `output(inputs)`: the model's output for the whole batch, on every rank
    - `gradients()`: those of the last step, whole, before they were clipped; without it they are read from a step of
      plain SGD, as (before - after) / learning rate
    - `norm`: the length of these gradients as one vector
    - `buffers()`: by name, compared as the parameters are
    - `save(folder)` and `load(folder)`, after which training goes on as if nothing had happened
    - `model`: the bare `nn.Module`, which tells what is frozen and what is tied
    - `n_shares`: into how many the ranks cut a batch, all ranks if it is not said; 1 where they share the model instead
    - `n_microbatches`: into how many parts a rank cuts its share; found from what went wrong if it is not said
    """

    def parameters(self) -> dict[str, Tensor]:
        """The weights, whole, by the model's own names: the same names on every rank."""
        ...

    def step(self, batch: Batch) -> float | None:
        """One step of the optimizer on the whole batch, of which a rank takes its share; its mean loss, if known."""
        ...


@runtime_checkable
class InParts(Trainable, Protocol):
    """A trainer whose step can be taken apart, as our own `Trainer`'s; `gradients` are there in between."""

    def compute_gradients(self, batch: Batch) -> float:
        """Add the whole batch's gradients to what is there; the mean loss."""
        ...

    def gradients(self) -> dict[str, Tensor]:
        """Those that there are, whole."""
        ...

    def clip(self) -> float:
        """Shorten them if they are too long; their norm before."""
        ...

    def update(self) -> None:
        """Let the optimizer use them, then drop them."""
        ...

    def zero_grad(self) -> None:
        """Drop them."""
        ...


Make = Callable[..., Trainable]  # of a configuration
MakeTrainer = Callable[..., Trainer]  # our own; for the museum also of a bug, a technique that comes last


def made_for_sgd(make: Make) -> Trainable:
    """A trainer for SGD.

    Raises: ValueError if `make` cannot be told so, or gives something else than a trainer.
    """
    if not inspect.signature(make).parameters:
        rule = "the ladder trains with SGD first, since Adam divides errors of scale away"
        way_out = "write make(config), and use its optimizer and learning_rate"
        raise ValueError(four_parts("assert_parallel_equals", "make takes no configuration", rule, way_out))
    trainer = make(SGD)
    lacks = [name for name in ("parameters", "step") if not callable(getattr(trainer, name, None))]
    if lacks:
        values = f"make(config) gives a {type(trainer).__name__} without {' and '.join(lacks)}"
        rule, way_out = "a trainer has parameters() and step(batch)", "write them, or take an adapter"
        raise ValueError(four_parts("assert_parallel_equals", values, rule, way_out))
    return trainer


def facts_of(trainer: Trainable) -> dict[str, Any]:
    """What is fixed about a trainer and known of it, by the names of `SgdTrace`; asking for names takes an exchange."""
    names = tuple(trainer.parameters())
    if isinstance(trainer, Trainer):
        layout = trainer.local.layout
        return {
            "parameter_names": names,
            "frozen": tuple(name for name in layout.parameters if not layout.places[name].trained),
            "tied": tuple({first for name, first in layout.first_name.items() if name != first}),
            "places": {name: layout.describe(name) for name in layout.places},
            "n_shares": prod(trainer.local.size(axis) for axis in layout.row_axes),
            "n_microbatches": trainer.n_microbatches,
        }
    frozen, tied = _of_model(getattr(trainer, "model", None))
    everyone = dist.get_world_size() if dist.is_initialized() else 1
    return {
        "parameter_names": names,
        "frozen": tuple(name for name in names if name in frozen),
        "tied": tuple(name for name in names if name in tied),
        "places": {},
        "n_shares": getattr(trainer, "n_shares", everyone),
        "n_microbatches": getattr(trainer, "n_microbatches", None),
    }


def _of_model(model: object) -> tuple[set[str], set[str]]:
    """Names of what is frozen, and of what has several."""
    if not isinstance(model, nn.Module):
        return set(), set()
    first = {parameter: name for name, parameter in model.named_parameters()}
    again = {first[p] for name, p in model.named_parameters(remove_duplicate=False) if first.get(p, name) != name}
    return {name for parameter, name in first.items() if not parameter.requires_grad}, again
