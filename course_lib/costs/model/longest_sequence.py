"""The longest sequence that fits: a device's memory as it grows with the sequence, and the hosts' beside it.

With offload what lasts lies in the hosts' memory, where its length decides nothing: it fits or not, by the bytes that
the optimizer keeps of each parameter. What is on the device grows with the sequence alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.config import ModelConfig
from course_lib.costs.model.parameters import model_parameters
from course_lib.costs.model.step_memory import peak
from course_lib.costs.model.two_axes import TwoAxes, two_axes_moments
from course_lib.errors import four_parts


@dataclass(frozen=True, kw_only=True)
class Room:
    """What a run may use, in bytes."""

    device: int  # of one
    reserved: int = 0  # of each device: the driver's, the libraries' and NCCL's, and gaps between tensors
    hosts: int = 0  # of all nodes together, for what is offloaded


@dataclass(frozen=True, kw_only=True)
class Longest:
    """`sequence` is 0 where not even the shortest fits; `instant` is the peak's, at that length."""

    sequence: int
    instant: str
    states_fit: bool  # with offload: whether the hosts hold what lasts


def state_bytes_of(config: ModelConfig, run: TwoAxes) -> int:
    """What lasts, of all ranks together: N times the bytes of a parameter."""
    return run.states.bytes_per_parameter * model_parameters(config)


def most_bytes_per_parameter(config: ModelConfig, room: Room) -> float:
    """So many bytes of each parameter the hosts hold, with nothing else in them."""
    return room.hosts / model_parameters(config)


def longest_sequence(config: ModelConfig, run: TwoAxes, room: Room) -> Longest:
    """The most positions, a multiple of tp, for which a step of `run` fits into each device.

    Raises: ValueError as `two_axes_moments`, and for a device whose reserve is all it has.
    """
    free = room.device - room.reserved
    if free <= 0:
        values, rule = f"device={room.device}, reserved={room.reserved}", "something is left for the model"
        raise ValueError(four_parts("longest_sequence", values, rule, "reserve less than the device has"))

    def most(parts: int) -> tuple[int, str]:
        found = peak([*two_axes_moments(config, run, sequence=parts * run.tp).values()])
        return found.total, found.name

    low, high = 0, 1
    while most(high)[0] <= free:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if most(middle)[0] <= free else (low, middle)
    fits = not run.offload or state_bytes_of(config, run) <= room.hosts
    return Longest(sequence=low * run.tp, instant=most(max(low, 1))[1], states_fit=fits)
