"""What each seat is given of a cluster, as text for those who give it: Slurm, JupyterHub, Open OnDemand."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from string import Template

from course_lib.errors import four_parts
from course_lib.hardware import ClusterSpec
from tools.paths import ROOT
from tools.routes import Route

TEXTS = ROOT / "tools/workshop/texts"
# The fullest part of both routes took 1.8 GiB: kernel, fork server and four ranks, by their proportional set size.
_SERVER_GIB, _RANK_GIB = 2, 1
MOST = 1000


@dataclass(frozen=True, kw_only=True)
class Seats:
    """So many seats for a route; without a cluster they are laptops, and GPUs are not asked for.

    Raises: ValueError for no seats, or a thousand.
    """

    route: Route
    number: int
    cluster: ClusterSpec | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.number <= MOST:
            rule = "a workshop has seats, and a room an end"
            raise ValueError(four_parts("workshop", f"SEATS={self.number}", rule, f"give SEATS in 1..{MOST}"))

    @property
    def cores(self) -> int:
        """A core for each rank of the largest cell."""
        return self.route.ranks

    @property
    def memory_gib(self) -> int:
        """For the page's server and kernel, and for each rank."""
        return _SERVER_GIB + _RANK_GIB * self.route.ranks

    @property
    def gpus(self) -> int:
        """Of one seat."""
        return self.route.gpus if self.cluster else 0

    @property
    def nodes(self) -> int:
        """How many nodes have the GPUs of all seats; 0 if none is asked for."""
        return ceil(self.number * self.gpus / self.cluster.gpus_per_node) if self.cluster else 0

    def filled(self, name: str) -> str:
        """One of the texts, with this workshop's numbers."""
        gpus = f"#SBATCH --gpus={self.gpus}\n" if self.gpus else ""
        values = {
            "table": self.table(),
            "route": self.route.title,
            "seats": self.number,
            "ranks": self.route.ranks,
            "cores": self.cores,
            "memory": self.memory_gib,
            "gpus": self.gpus,
            "sbatch_gpus": gpus,
            "hours": ceil(self.route.hours) + 1,
        }
        return Template((TEXTS / name).read_text(encoding="utf-8")).substitute(values)

    def table(self) -> str:
        """The numbers for whoever runs the cluster."""
        rows = [
            ("cores", self.cores, self.number * self.cores),
            ("memory, GiB", self.memory_gib, self.number * self.memory_gib),
            ("GPUs", self.gpus, self.number * self.gpus),
        ]
        head = ["| | a seat | all seats |", "| --- | --- | --- |"]
        nodes = ""
        if self.cluster and self.gpus:
            kind = f"{self.cluster.gpus_per_node} GPUs each, as {self.cluster.name} has them"
            nodes = f"\n\nThe GPUs are those of {self.nodes} nodes with {kind}. Ask for a reservation of these nodes."
        return "\n".join([*head, *(f"| {name} | {one} | {many} |" for name, one, many in rows)]) + nodes
