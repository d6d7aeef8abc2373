"""The wires of a cluster: what a message gets of them, alone and beside others.

GPUs of one NVLink domain (a node's, or a rack's 72) reach each other on NVLink. What leaves the domain goes through its
network cards. NCCL opens several channels, and each leaves through another card, so that all cards of a domain work
side by side: a ring over domains runs at min(inside, cards x card). A textbook's ring sends each message through one
card; that one is `CommTime.time_s(wires.pair, wires.card)`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from course_lib.hardware.clusters import ClusterSpec
from course_lib.hardware.links import Link

# Of NVLink's printed rate NCCL reckons with 20.0 of 25 GB/s a link on V100 and A100, 20.6 of 25 on H100 and 40.1 of 50
# on B200 (NCCL 2.30, src/graph/topo.h, SM70_NVLINK_BW to SM100_NVLINK_BW); a network card's it takes as it is printed.
NVLINK_REACHED = 0.8


@dataclass(frozen=True, kw_only=True)
class Wires:
    """One domain's wires.

    Boards without a switch share a GPU's links out among its neighbours: two GPUs alone have a `pair`'s, and so has a
    swap with one partner; a ring of all of them, in several channels along different ways, has all that a GPU has.
    """

    domain: int  # GPUs that NVLink joins; a node's, where there is none
    pair: Link  # of two GPUs of a domain
    inside_bytes_per_s: float  # one way, of all links that a GPU has inside
    cards: int  # network cards of a domain
    card: Link

    @property
    def network_bytes_per_s(self) -> float:
        """All cards of a domain together, one way."""
        return self.cards * self.card.bandwidth_bytes_per_s

    def joining(self, ranks: int) -> Wires:
        """The same for so many GPUs of a domain that talk with each other alone: they use the links between them."""
        neighbours = max(1, min(ranks, self.domain) - 1)
        inside = min(self.inside_bytes_per_s, neighbours * self.pair.bandwidth_bytes_per_s)
        return replace(self, inside_bytes_per_s=inside)

    def as_nccl_reaches(self) -> Wires:
        """With the share of NVLink's printed rate that NCCL reckons with: for comparing with measurements."""
        pair = replace(self.pair, bandwidth_bytes_per_s=NVLINK_REACHED * self.pair.bandwidth_bytes_per_s)
        return replace(self, pair=pair, inside_bytes_per_s=NVLINK_REACHED * self.inside_bytes_per_s)

    def message_s(self, nbytes: float, leaving: int = 0, away: float = 1.0, to_one: bool = False) -> float:
        """Seconds for a message of `nbytes`, one of so many that leave each domain at once; 0: all stay inside.

        If some leave, `away` is the share of the network's latency that this one meets; the rest is the inside's. A
        message goes through all links of its GPU, as the channels of a ring do, or is all that there is `to_one`.
        """
        inside = self.pair.bandwidth_bytes_per_s if to_one else self.inside_bytes_per_s
        per_byte = seconds_per_byte(leaving, inside_bytes_per_s=inside, network_bytes_per_s=self.network_bytes_per_s)
        share = away if leaving else 0.0
        return share * self.card.alpha_s + (1 - share) * self.pair.alpha_s + nbytes * float(per_byte)


def wires(cluster: ClusterSpec) -> Wires:
    """The wires of a cluster, with the rates of its data sheets."""
    ways = cluster.domain - 1 if cluster.mesh else 1
    return Wires(
        domain=cluster.domain,
        pair=cluster.inside,
        inside_bytes_per_s=max(1, ways) * cluster.inside.bandwidth_bytes_per_s,
        cards=cluster.cards * cluster.nodes_in_domain,
        card=cluster.card,
    )


def seconds_per_byte(leaving: Any, *, inside_bytes_per_s: Any, network_bytes_per_s: Any) -> Any:
    """What a byte takes in each of the messages that set out together, `leaving` of them from one domain.

    These share all its cards, and none is faster than it comes through its domain. Numbers, or arrays of them.
    """
    inside, through = 1 / inside_bytes_per_s, leaving / network_bytes_per_s
    return (through > inside) * through + (through <= inside) * inside  # the larger, of numbers and of arrays alike


def leaving_of_rings(ranks: Any, stride: Any, domain: Any) -> Any:
    """Rings that leave each domain if all GPUs are in rings of `ranks`, neighbours `stride` apart: each does so once.

    Numbers, or arrays of them.
    """
    side_by_side = (stride < domain) * stride + (stride >= domain) * domain
    return (ranks * stride > domain) * side_by_side
