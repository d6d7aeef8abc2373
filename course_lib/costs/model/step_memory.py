"""What a rank keeps in memory during a step of data parallelism, from instant to instant, by what it is for.

Pieces last from step to step. On top come what is whole for a while (the root's unit, the one that computes and, with
overlap, the next one), gradients that have not been averaged yet, the row in which they are, and activations. The
largest sum over time is the peak: neither at the largest of these nor, often, where there are most activations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from course_lib.config import ModelConfig
from course_lib.costs.model.activations import head_activations, layer_activations
from course_lib.costs.model.strategies import GATHERED, RESHARDED, DataParallel, shards_of
from course_lib.costs.model.units import SCALE_BYTES, UnitShapes, row_blocks
from course_lib.errors import four_parts
from course_lib.split import split_sizes

_FP32 = 4
_HEAD, _TO = "head", " to "  # as units are called
_GIVEN = ("tokens", "targets")  # what a batch is, before the step


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What a rank keeps at an instant, in bytes."""

    name: str
    weights: int = 0  # that last from step to step
    gathered: int = 0  # whole units
    gradients: int = 0  # whole
    reducing: int = 0  # the row of gradients under way
    gradient_pieces: int = 0
    optimizer: int = 0
    activations: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        named = self.weights + self.gathered + self.gradients + self.reducing + self.gradient_pieces
        return named + self.optimizer + self.activations


@dataclass(frozen=True, kw_only=True)
class UnitActivations:
    """Bytes that each unit's forward keeps, in their order, and the root's after them.

    `stream` is what one unit hands to the next, and in backward its gradient.
    """

    units: tuple[int, ...]
    root: int
    stream: int


@dataclass(frozen=True, kw_only=True)
class NumberBytes:
    """Of one number: as it lasts, as it is gathered and computed with, as gradients are added up, and its states."""

    lasting: int = 4
    computing: int = 4
    reducing: int = 4
    states: int = 8  # Adam's two moments
    block: int | None = None  # numbers that are gathered in a byte each and a scale, and become what computes on use

    def travelling(self, numbers: int, shards: int) -> int:
        """Bytes of a row that is being gathered."""
        if self.block is None:
            return self.computing * numbers
        return row_blocks(numbers, shards=shards, block=self.block) * (self.block + SCALE_BYTES)


def peak(moments: Sequence[Moment]) -> Moment:
    """The instant with the most bytes."""
    return max(moments, key=lambda moment: moment.total)


def unit_activations(
    config: ModelConfig, units: Sequence[UnitShapes], *, batch: int, sequence: int, itemsize: int
) -> UnitActivations:
    """What blocks keep, by unit; embedding and head may be units too. Logits become fp32 before the loss.

    Raises: ValueError for units within a block, whose activations nobody has told apart.
    """
    of_layer = layer_activations(config, batch=batch, sequence=sequence, itemsize=itemsize)
    of_head = head_activations(config, batch=batch, sequence=sequence, itemsize=itemsize)
    layer = sum(saved.nbytes for saved in of_layer)
    ends = [replace(x, itemsize=_FP32) if x.name == "log-probabilities" else x for x in of_head if x.name not in _GIVEN]
    counts = [_blocks(unit.label) for unit in units[:-1]]
    if sum(counts) != config.n_layers:
        values, rule = f"units {', '.join(unit.label for unit in units)}", "activations are counted by block"
        raise ValueError(four_parts("unit_activations", values, rule, "wrap whole blocks"))
    stream = batch * sequence * config.hidden_size * itemsize
    return UnitActivations(
        units=tuple(count * layer for count in counts), root=sum(x.nbytes for x in ends), stream=stream
    )


def _blocks(label: str) -> int:
    """How many blocks a unit has."""
    numbers = [int(name.split(".")[1]) for name in label.split(_TO) if name.startswith("layers.")]
    return numbers[-1] - numbers[0] + 1 if numbers and label.count(".") == len(numbers) else 0


def step_memory(
    units: Sequence[UnitShapes],
    activations: UnitActivations,
    *,
    strategy: DataParallel,
    world_size: int,
    shards: int | None = None,
    rank: int = 0,
    numbers: NumberBytes | None = None,
    overlap: bool = True,
    accumulated: bool = False,
) -> tuple[Moment, ...]:
    """One micro-batch and what follows of the step, on one rank; all weights are trained, and none is tied.

    "forward" and "backward": a unit's first block begins, and the next unit may be gathered already. "flatten": its
    gradients are there, and are copied into a row. "convert": the same row in the dtype of reducing, where that is
    another. "average": a row has been reduced, and this rank's piece copied. `accumulated` says that micro-batches
    have gone before. What a block needs while it computes is not in it, but for one stream's gradient.
    Source: Rajbhandari et al. 2020, ZeRO, sections 3 and 5; Zhao et al. 2023, PyTorch FSDP, section 4.3.
    Raises: ValueError as `shards_of`.
    """
    parts = shards_of(strategy, world_size, shards)
    step = _Step(units, activations, strategy, parts, rank % parts, numbers or NumberBytes(), overlap, accumulated)
    return tuple(step.moments())


@dataclass
class _Step:
    """What is there, while a step goes on: which units are whole, whose gradients have come, what is averaged."""

    units: Sequence[UnitShapes]
    kept: UnitActivations
    strategy: DataParallel
    parts: int
    piece: int
    bytes_of: NumberBytes
    overlap: bool
    accumulated: bool
    whole: set[str] = field(default_factory=set)
    coming: set[str] = field(default_factory=set)  # being gathered, and not used yet
    averaged: set[str] = field(default_factory=set)
    gradients: dict[str, int] = field(default_factory=dict)  # numbers that are there, whole
    row: int = 0
    reducing: UnitShapes | None = None

    def __post_init__(self) -> None:
        *self.inner, self.root = self.units
        self.late = self.strategy in ("DDP", "ZeRO-1")
        sizes = self.bytes_of
        copied = self.parts > 1 or sizes.computing != sizes.lasting or sizes.block is not None
        self.is_gathered = self.strategy in (*GATHERED, "NO_SHARD") and copied
        self.gradients = dict.fromkeys((unit.label for unit in self.units), 0)
        for unit in self.units if self.accumulated else ():
            if self.late:
                self.gradients[unit.label] = _numbers(unit)
            else:
                self.averaged.add(unit.label)

    def moments(self) -> Iterator[Moment]:
        """The whole step."""
        yield self._now("start", 0)
        yield from self._forward()
        yield from self._backward()
        if self.strategy != "DDP":
            yield from self._end()
        self.whole = set()
        yield self._now("gradients", 0)

    def _forward(self) -> Iterator[Moment]:
        """Without a piece of it being freed again, under strategies that leave units whole."""
        self.whole = {self.root.label}
        for number, unit in enumerate(self.inner):
            if self.strategy in RESHARDED:
                self.whole = {self.root.label}
            self._gather(number, number + 1)
            yield self._now(f"forward {unit.label.split(_TO)[0]}", sum(self.kept.units[:number]) + self.kept.stream)
        if self.strategy in RESHARDED:
            self.whole = {self.root.label}
        yield self._now("loss", sum(self.kept.units) + self.kept.root)

    def _backward(self) -> Iterator[Moment]:
        """The root's gradients come before those of the blocks, but for its opening's, which are the last."""
        opening = _numbers(replace(self.root, trained=()))
        root_waits = True
        for number, unit in reversed([*enumerate(self.inner)]):
            before = sum(self.kept.units[:number])
            if root_waits and unit.label != _HEAD:
                root_waits = False
                self._come(self.root, _numbers(self.root) - opening)
                if not opening and not self.late:
                    yield from self._reduce(self.root, before + self.kept.units[number] + self.kept.stream)
            self._gather(number, number - 1)
            yield self._now(
                f"backward {unit.label.split(_TO)[-1]}", before + self.kept.units[number] + self.kept.stream
            )
            self._come(unit, _numbers(unit))
            if not self.late:
                yield from self._reduce(unit, before + self.kept.stream)
        self._come(self.root, opening)

    def _end(self) -> Iterator[Moment]:
        """What has waited for the end of backward."""
        for unit in (self.root, *reversed(self.inner)):
            if self.gradients[unit.label]:
                yield from self._reduce(unit, 0)
        yield from self._average(0)

    def _reduce(self, unit: UnitShapes, activations: int) -> Iterator[Moment]:
        """One unit at a time: the one before is averaged first."""
        yield from self._average(activations)
        numbers, sizes = _numbers(unit), self.bytes_of
        self.row, self.reducing = numbers * sizes.computing, unit
        yield self._now(f"flatten {unit.label}", activations)
        self.gradients[unit.label] = 0
        if sizes.reducing != sizes.computing:
            self.row = numbers * (sizes.computing + sizes.reducing)
            yield self._now(f"convert {unit.label}", activations)
        self.row = numbers * sizes.reducing
        self.whole.discard(unit.label)

    def _average(self, activations: int) -> Iterator[Moment]:
        if self.reducing is None:
            return
        self.averaged.add(self.reducing.label)
        yield self._now(f"average {self.reducing.label}", activations)
        self.row, self.reducing = 0, None

    def _gather(self, *numbers: int) -> None:
        """The unit that computes, and the one that is to follow."""
        first, *rest = (self.inner[number].label for number in numbers if 0 <= number < len(self.inner))
        self.whole.add(first)
        self.coming = {*rest} - self.whole if self.overlap else set()

    def _come(self, unit: UnitShapes, numbers: int) -> None:
        if not (self.late and self.gradients[unit.label] == _numbers(unit)):  # else they are added up
            self.gradients[unit.label] += numbers

    def _held(self, unit: UnitShapes, *, trained: bool) -> int:
        """Numbers of a row in this rank's piece."""
        return split_sizes(unit.numbers(trained=trained), self.parts)[self.piece]

    def _now(self, name: str, activations: int) -> Moment:
        sizes, resident = self.bytes_of, not self.is_gathered
        pieces = {unit.label: self._held(unit, trained=True) for unit in self.units}
        both = {unit.label: sum(unit.numbers(trained=trained) for trained in (True, False)) for unit in self.units}
        frozen = sum(self._held(unit, trained=False) for unit in self.units)
        return Moment(
            name=name,
            weights=sizes.lasting * (sum(both.values()) if resident else sum(pieces.values()) + frozen),
            gathered=0 if resident else self._gathered(),
            gradients=sizes.computing * sum(self.gradients.values()),
            reducing=self.row,
            gradient_pieces=sizes.lasting * sum(pieces[label] for label in self.averaged),
            optimizer=sizes.states * sum(pieces.values()),
            activations=activations,
        )

    def _gathered(self) -> int:
        """Bytes of whole units, and of what is on its way."""
        found = 0
        for unit in self.units:
            for numbers in (unit.numbers(trained=trained) for trained in (True, False)):
                if unit.label in self.whole:
                    found += self.bytes_of.computing * numbers
                elif unit.label in self.coming:
                    found += self.bytes_of.travelling(numbers, self.parts)
        return found


def _numbers(unit: UnitShapes) -> int:
    return unit.numbers(trained=True)
