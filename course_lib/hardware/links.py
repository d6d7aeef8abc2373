"""Links: latency alpha and one-way bandwidth.

A message of n bytes takes alpha + beta * n seconds, with beta = 1 / bandwidth (Hockney 1994).
"""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.errors import four_parts
from course_lib.units import GB

_LONGEST_S = 1e6


@dataclass(frozen=True, kw_only=True)
class Link:
    """One way of one link.

    Units: seconds to start a message, bytes per second once it flows.
    """

    name: str
    alpha_s: float
    bandwidth_bytes_per_s: float
    source: str
    date: str

    def __post_init__(self) -> None:
        # nan is neither; and of times beyond these a step's sums would make infinities
        if not (0 <= self.alpha_s < _LONGEST_S and self.bandwidth_bytes_per_s > 1 / _LONGEST_S):
            raise ValueError(
                four_parts(
                    "Link",
                    f"alpha_s={self.alpha_s}, bandwidth_bytes_per_s={self.bandwidth_bytes_per_s}",
                    f"a latency is 0 or more and a byte moves, both within {_LONGEST_S:,.0f} s",
                    "give seconds and bytes per second, for example alpha_s=5e-6, bandwidth_bytes_per_s=50e9",
                )
            )

    @property
    def beta_s_per_byte(self) -> float:
        """Seconds that each further byte takes."""
        return 1 / self.bandwidth_bytes_per_s

    def time_s(self, nbytes: float) -> float:
        """Seconds for one message of `nbytes`."""
        return self.alpha_s + nbytes * self.beta_s_per_byte


_NCCL = "NCCL 2.30, src/graph/tuning.cc, hwLatencies (ring, Simple)"

NVLINK = Link(
    name="NVLink",
    alpha_s=3.4e-6,
    bandwidth_bytes_per_s=6 * 25 * GB,  # 18 links of an H100, 6 to each of the 3 other GPUs of its node
    source=f"bandwidth: NVIDIA H100 architecture white paper, NVLink 4, 25 GB/s per link one way; alpha: {_NCCL}",
    date="bandwidth 2022-03, alpha 2026-06",
)
INFINIBAND = Link(
    name="InfiniBand",
    alpha_s=14e-6,
    bandwidth_bytes_per_s=50 * GB,
    source=f"bandwidth: NVIDIA ConnectX-7 data sheet, NDR 400 Gb/s; alpha: {_NCCL}",
    date="bandwidth 2022-03, alpha 2026-06",
)
ETHERNET = Link(
    name="Ethernet",
    alpha_s=30e-6,
    bandwidth_bytes_per_s=3.125 * GB,
    source="bandwidth: IEEE 802.3by-2016, 25 Gb/s; alpha: assumed, a round figure for TCP through the kernel",
    date="bandwidth 2016-06",
)
TEN_GIGABIT = Link(
    name="10 Gb/s",
    alpha_s=30e-6,
    bandwidth_bytes_per_s=1.25 * GB,
    source="bandwidth: IEEE 802.3ae-2002, 10 Gb/s; alpha: assumed, as Ethernet's above",
    date="bandwidth 2002-06",
)
BETWEEN_CITIES = Link(
    name="1 Gb/s, 20 ms",
    alpha_s=20e-3,
    bandwidth_bytes_per_s=0.125 * GB,
    source="assumed: a leased line of 1 Gb/s, and light in 4,000 km of fibre at two thirds of its speed",
    date="2026-11",
)
LINKS = {link.name.lower(): link for link in (NVLINK, INFINIBAND, ETHERNET)}
