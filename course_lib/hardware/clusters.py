"""Clusters: nodes of equal devices, the links inside a node and its network cards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from typing import Any, NoReturn

from course_lib import presets
from course_lib.errors import four_parts
from course_lib.hardware.devices import Device, load_device
from course_lib.hardware.links import Link
from course_lib.units import is_number

_MOST = 2**20  # nodes, and GPUs of one

_COUNTS = ("n_nodes", "gpus_per_node", "nodes_in_domain", "cards")


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """Nodes of the same kind.

    `inside` joins two GPUs of a node, through a switch, or in a `mesh` by links of their own; `nodes_in_domain` nodes
    are joined alike (a rack of NVL72 has 18 of them). A node has so many network `cards`, each of them a `card`.
    """

    name: str
    device: Device
    n_nodes: int
    gpus_per_node: int
    inside: Link
    cards: int
    card: Link
    source: str
    date: str
    nodes_in_domain: int = 1
    mesh: bool = False

    def __post_init__(self) -> None:
        for field in _COUNTS:
            if getattr(self, field) < 1:
                values, rule = f"{field}={getattr(self, field)}", "a cluster has nodes, GPUs and network cards"
                raise ValueError(four_parts(f"ClusterSpec {self.name!r}", values, rule, f"give {field} >= 1"))

    @property
    def domain(self) -> int:
        """GPUs that `inside` joins."""
        return self.gpus_per_node * self.nodes_in_domain

    @property
    def between(self) -> Link:
        """One GPU's way to another node while all GPUs of the node use theirs: its share of the cards."""
        share = self.cards / self.gpus_per_node
        return replace(self.card, bandwidth_bytes_per_s=share * self.card.bandwidth_bytes_per_s)

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
    return parse_cluster(presets.read("cluster", name))


def parse_cluster(values: Mapping[str, Any]) -> ClusterSpec:
    """A cluster from the keys of a preset file, its device by name.

    Raises: ValueError for a key that is unknown, or a number that is none.
    """
    found = dict(values)
    _check_keys(found, ClusterSpec)
    for field in _COUNTS:
        if type(found.get(field, 1)) is not int:
            _refuse(f"{field}={found[field]!r}", f"{field} is of whole numbers", "write it without quotes and units")
        if found.get(field, 1) > _MOST:
            _refuse(f"{field} > {_MOST}", "no cluster has so many", f"give {field} <= {_MOST}")
    if not isinstance(found["device"], str):
        way_out = f"name one of {', '.join(presets.names('device'))}"
        _refuse(f"device={found['device']!r}", "a cluster's device is one of the presets", way_out)
    found["device"] = load_device(found["device"])
    if type(found.get("mesh", False)) is not bool:
        _refuse(f"mesh={found['mesh']!r}", "each two GPUs have links of their own, or not", "give true or false")
    links = {place: _link(place, found[place]) for place in ("inside", "card")}
    return ClusterSpec(**found | links)


def _link(place: str, values: Any) -> Link:
    """One of a cluster's links from the keys of a preset file."""
    if not isinstance(values, Mapping):
        _refuse(f"{place}={values!r}", "a link has fields", f"give one, as {place}.bandwidth_bytes_per_s=50.0e+9")
    _check_keys(values, Link)
    for field in ("alpha_s", "bandwidth_bytes_per_s"):
        value = values[field]
        if type(value) not in (int, float) or (type(value) is int and not is_number(value)):
            given = f"{place}.{field}={values[field]!r}"
            _refuse(given, f"{field} is a number", "write it without quotes and units, as 50.0e+9")
    return Link(**values)


def _check_keys(values: Mapping[str, Any], kind: type[ClusterSpec] | type[Link]) -> None:
    names = [field.name for field in fields(kind)]
    for name in values:
        if name not in names:
            _refuse(f"key {name!r}", f"not a field of {kind.__name__}", f"choose from {', '.join(names)}")
    missing = [field.name for field in fields(kind) if field.default is MISSING and field.name not in values]
    if missing:
        _refuse(f"without {', '.join(missing)}", f"a {kind.__name__} has them", "give each of them")


def _refuse(values: str, rule: str, way_out: str) -> NoReturn:
    raise ValueError(four_parts("cluster", values, rule, way_out))
