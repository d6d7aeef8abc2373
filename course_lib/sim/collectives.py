"""Published collectives beside the formula: one card's ring, the ring through all cards, and the hierarchy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.price import collective_s
from course_lib.hardware import Wires, load_cluster, wires
from course_lib.sim.published import published_rows
from course_lib.units import MiB, format_bytes, format_seconds

_CLUSTERS = {"A100-80GB": "dgx_a100", "H200-141GB": "dgx_h200", "B200": "dgx_b200", "MI300X": "azure_mi300x"}
_PARTS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}  # of (p - 1)/p, in nccl-tests' busbw
# From here on the switch adds (NVLS) where no algorithm is printed: of H200 the page says so, of B200 its sweep tells.
_IN_SWITCH = {"H200-141GB": 2 * MiB, "B200": 8192 * MiB, "A100-80GB": inf, "MI300X": inf}
_LOW_LATENCY, _MIDDLE, _SMALL_AWAY = MiB, 64 * MiB, 256 * MiB


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One measured collective, and the wires it ran on as data sheets have them."""

    name: str
    operation: str
    nbytes: int
    gpu: str
    ranks: int
    wires: Wires
    algorithm: str | None  # as published
    measured_s: float

    @property
    def leaves(self) -> bool:
        """Whether it goes over several domains."""
        return self.ranks > self.wires.domain

    @property
    def one_card_s(self) -> float:
        """The textbook's ring, each message of which goes through one card."""
        node = min(self.ranks, self.wires.domain)
        cost = comm_time(self.operation, "ring", world_size=self.ranks, length=self.nbytes, itemsize=1, node_size=node)
        return cost.time_s(self.wires.pair, self.wires.card)

    def by(self, algorithm: str, on: Wires | None = None) -> float:
        """Seconds with all links and cards at their printed rates, or on other wires."""
        return collective_s(self.operation, algorithm, nbytes=self.nbytes, ranks=self.ranks, wires=on or self.wires)

    @property
    def predicted_s(self) -> float:
        """What is expected of NCCL: its ring, with the share of NVLink that it reaches."""
        return self.by("ring", self.wires.as_nccl_reaches())

    @property
    def off_by(self) -> float:
        """The prediction's deviation, a share of the measured time."""
        return self.predicted_s / self.measured_s - 1

    @property
    def reason(self) -> str:
        """What is known of where the formula fails; nothing for a collective that is none of these."""
        in_switch = self.algorithm == "NVLS" or (self.algorithm is None and self.nbytes >= _IN_SWITCH[self.gpu])
        if self.leaves and self.nbytes <= _SMALL_AWAY:
            return "small and between nodes: latency is longer than NCCL's own figure, which does not explain all"
        if in_switch and not self.leaves:
            return "NVLS: the switch adds, and half as much passes the links as in a ring"
        if self.nbytes <= _LOW_LATENCY:
            return "small: NCCL takes its protocol LL, which has another latency than Simple"
        if self.nbytes <= _MIDDLE:
            return "of middle size: neither latency nor bandwidth, NCCL changes its protocol and channels there"
        return ""

    def __str__(self) -> str:
        ways = {"the ring": self.by("ring")}
        if self.leaves:
            ways = {"one card's ring": self.one_card_s, "the ring through all cards": self.by("ring")}
        if self.leaves and self.operation == "all_reduce":
            ways["the hierarchy"] = self.by("hierarchical")
        said = ", ".join(f"{way} {format_seconds(seconds)}" for way, seconds in ways.items())
        size = format_bytes(self.nbytes)
        return f"{size} over {self.ranks} {self.gpu}: measured {1e3 * self.measured_s:.4g} ms; {said}"


@dataclass(frozen=True, kw_only=True)
class Unpriced:
    """A measured collective without a price, and why."""

    name: str
    reason: str


def published_collectives() -> tuple[Collective | Unpriced, ...]:
    """All of the carried file, in its order."""
    return tuple(_read(row) for row in published_rows() if row["kind"] == "collective")


def priced() -> list[Collective]:
    """Those that the formula has a price for."""
    return [row for row in published_collectives() if isinstance(row, Collective)]


def deviations(limit: float = 0.25) -> list[str]:
    """A line for each collective that the formula misses by more than `limit`, and what is known of the reason."""
    return [
        f"{row.name}, {row}; expected {format_seconds(row.predicted_s)}, {row.off_by:+.0%}: {row.reason or 'unknown'}"
        for row in priced()
        if abs(row.off_by) > limit
    ]


def _read(row: Mapping[str, Any]) -> Collective | Unpriced:
    hardware, measured = row["hardware"], row["measured"]
    if "gpu" not in hardware:
        return Unpriced(name=row["id"], reason="its GPU and network are not named")
    if measured["collective"] not in _PARTS:
        return Unpriced(
            name=row["id"], reason=f"{measured['collective']} is no collective, and its size is not printed"
        )
    ranks, nbytes = hardware["gpus"], measured["payload_bytes"]
    sent = _PARTS[measured["collective"]] * (ranks - 1) / ranks * nbytes
    return Collective(
        name=row["id"],
        operation=measured["collective"],
        nbytes=nbytes,
        gpu=hardware["gpu"],
        ranks=ranks,
        wires=wires(load_cluster(_CLUSTERS[hardware["gpu"]])),
        algorithm=measured.get("algo"),
        measured_s=measured["time_us"] / 1e6 if "time_us" in measured else sent / (measured["busbw_GBps"] * 1e9),
    )
