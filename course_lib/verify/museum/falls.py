"""What a bug does to the proof and what to the loss curve: both from runs of the same training."""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.errors import four_parts
from course_lib.training.batches import Batches
from course_lib.verify.data_order import DATA_ORDER
from course_lib.verify.diagnosis import NotEqual
from course_lib.verify.ladder import assert_parallel_equals
from course_lib.verify.museum.bug import Bug
from course_lib.verify.museum.curve import curve_alone, curve_on_ranks, off
from course_lib.verify.pairs import RUNGS
from course_lib.verify.trainable import MakeTrainer


@dataclass(frozen=True, kw_only=True)
class Fall:
    """The first rung on which ranks were not one device, and the loss curves of both."""

    rung: str | None  # None: all rungs were passed
    deviation: float | None  # of the first tensor that is wrong on that rung
    losses: tuple[float, ...]  # of the ranks
    reference: tuple[float, ...]  # of one device
    rungs: tuple[str, ...] = RUNGS  # from the foot up

    @property
    def off(self) -> float:
        """The share of one device's loss by which the ranks' are off in the last quarter."""
        return off(self.losses, self.reference)


def fall(
    bug: Bug, reference: MakeTrainer, parallel: MakeTrainer, batches: Batches, *, world_size: int = 4, steps: int = 40
) -> Fall:
    """Climb the ladder with a bug, and train `steps` steps with it as people train, beside one device.

    Raises: ValueError for a bug in the data's order, which no ladder looks at.
    """
    if bug.first_rung == DATA_ORDER:
        rule = "the ladder gives the same batches to the ranks and to one device"
        raise ValueError(four_parts("fall", f"bug {bug.name!r}", rule, "look at the order of its data instead"))
    make, batch_of = bug.planted(parallel), bug.batch_of(batches, world_size)
    rung, deviation = None, None
    try:
        assert_parallel_equals(reference, make, batch_of, world_size=world_size)
    except NotEqual as error:
        rung, deviation = error.rung, error.deviation
    return Fall(
        rung=rung,
        deviation=deviation,
        losses=curve_on_ranks(make, batch_of, world_size=world_size, steps=steps).losses,
        reference=curve_alone(reference, batch_of, steps).losses,
    )
