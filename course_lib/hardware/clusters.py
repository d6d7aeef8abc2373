"""Clusters: nodes of equal devices, and the links inside and between them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from course_lib import presets
from course_lib.errors import four_parts
from course_lib.hardware.devices import Device, load_device
from course_lib.hardware.links import Link


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """Nodes of the same kind.

    `inside` joins two GPUs of a node. `between` is one GPU's way to another node while all GPUs of the node use
    theirs: a network card that serves four GPUs counts a quarter for each.
    """

    name: str
    device: Device
    n_nodes: int
    gpus_per_node: int
    inside: Link
    between: Link
    source: str
    date: str

    def __post_init__(self) -> None:
        for field in ("n_nodes", "gpus_per_node"):
            if getattr(self, field) < 1:
                values, rule = f"{field}={getattr(self, field)}", "a cluster has nodes and GPUs"
                raise ValueError(four_parts(f"ClusterSpec {self.name!r}", values, rule, f"give {field} >= 1"))

    @property
    def n_gpus(self) -> int:
        """GPUs of all nodes."""
        return self.n_nodes * self.gpus_per_node

    def peak_flops_per_s(self, dtype: str = "bf16", sparse: bool = False) -> float:
        """The peaks of all GPUs together, dense unless asked otherwise."""
        return self.n_gpus * self.device.peak_flops_per_s(dtype, sparse)


def cluster_names() -> tuple[str, ...]:
    """The clusters there are."""
    return presets.names("cluster")


@cache
def load_cluster(name: str) -> ClusterSpec:
    """The cluster of a preset file.

    Raises: ValueError for a name that no preset has.
    """
    values = presets.read("cluster", name)
    values["device"] = load_device(values["device"])
    for place in ("inside", "between"):
        values[place] = Link(**values[place])
    return ClusterSpec(**values)
