"""What `preflight` makes of the ranks' facts: pure functions, each of which gives one finding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from course_lib.cli.preflight_facts import TORCHRUN_PORT, Alone, Together
from course_lib.gauges.links_alone import LinkRow
from course_lib.hardware import ClusterSpec
from course_lib.hardware import wires as wires_of
from course_lib.units import GiB, MiB, format_bytes, format_seconds

_CLOCK_LOOK_S, _CLOCK_WRONG_S = 0.1, 5.0
_DISK_LOOK, _DISK_WRONG = 20 * GiB, 1 * GiB
_SHM_LOOK, _SHM_WRONG = 1 * GiB, 64 * MiB  # the second is what a container has that nobody gave more
_WIRE_LOOK, _WIRE_WRONG = 0.5, 0.1  # of the data sheet's
_LONG = f"long messages reach at least {_WIRE_LOOK:g} of a data sheet's bandwidth"
_TAKEN = "look at NCCL_DEBUG=INFO for the interface that is taken"
_EXACT = "a sum of whole numbers is exact"
_LOOPBACK = "127."
_Hosts = Mapping[LinkRow, tuple[str, ...]]  # at which a link ends


class Finding(NamedTuple):
    """What was looked at, how it is, what was seen; if it is not ok, the rule and the way out."""

    what: str
    verdict: Literal["ok", "look", "wrong"]
    seen: str
    rule: str = ""
    way_out: str = ""

    @property
    def line(self) -> str:
        """The finding in a line."""
        return f"{self.verdict:<6} {self.what:<11} " + "; ".join(filter(None, (self.seen, self.rule, self.way_out)))


def versions(ranks: Sequence[Alone]) -> Finding:
    """All ranks run the same software."""
    of = {one.rank: f"Python {one.python}, torch {one.torch}, course {one.course}" for one in ranks}
    if len(kinds := _grouped(of)) == 1:
        return Finding("versions", "ok", f"{of[ranks[0].rank]} on {_all(ranks)}")
    rule = "ranks of unlike versions send each other what the other reads as something else, or nothing"
    return Finding("versions", "wrong", kinds.text, rule, "activate one environment on every node")


def devices(ranks: Sequence[Alone]) -> Finding:
    """All ranks compute on the same kind of device, and each of them has its own GPU."""
    kinds = _grouped({one.rank: one.device for one in ranks})
    if len(kinds) > 1:
        rule = "a step takes as long as the slowest device"
        return Finding("devices", "wrong", kinds.text, rule, "ask for nodes of one kind, as --constraint=h100")
    crowded = {one.host: one for one in ranks if one.device != "cpu" and one.gpus < one.local_ranks}
    if crowded:
        seen = ", ".join(f"{host}: {one.local_ranks} ranks on {one.gpus} GPUs" for host, one in crowded.items())
        way_out = "start a rank for each GPU, or ask for more: --gpus-per-node"
        return Finding("devices", "wrong", seen, "NCCL refuses two ranks on one GPU", way_out)
    idle = {one.host: one.gpus for one in ranks if one.device == "cpu" and one.gpus}
    if idle:
        seen = "all ranks compute on CPUs, and there are GPUs: " + _each(idle)
        return Finding("devices", "look", seen, "ranks take GPUs when asked", "set COURSE_LIB_DEVICE=cuda")
    return Finding("devices", "ok", f"{ranks[0].device} on {_all(ranks)}")


def hosts(ranks: Sequence[Alone]) -> Finding:
    """Each host has as many ranks as any other, with neighbouring numbers."""
    by_host: dict[str, list[int]] = {}
    for one in ranks:
        by_host.setdefault(one.host, []).append(one.rank)
    seen = ", ".join(f"{host} ({_ranks(numbers)})" for host, numbers in by_host.items())
    if len({*map(len, by_host.values())}) > 1:
        rule, way_out = "a mesh has as many ranks on every node", "give every node the same --nproc-per-node"
        return Finding("hosts", "look", seen, rule, way_out)
    if any(numbers != [*range(numbers[0], numbers[0] + len(numbers))] for numbers in by_host.values()):
        rule = "ranks along tp are neighbours in number and have to be on one node"
        return Finding(
            "hosts", "wrong", seen, rule, "start one torchrun on each node, or srun with --distribution=block"
        )
    return Finding("hosts", "ok", seen)


def interfaces(ranks: Sequence[Alone]) -> Finding:
    """The network interfaces that variables name are there, and lead to the other hosts."""
    several = len({one.host for one in ranks}) > 1
    for variable, named in (("GLOO_SOCKET_IFNAME", _gloo_names), ("NCCL_SOCKET_IFNAME", _nccl_names)):
        given = {one.rank: (one, one.gloo if variable.startswith("GLOO") else one.nccl) for one in ranks}
        if lost := [one for one, name in given.values() if name and not named(name, one.interfaces)]:
            first = lost[0]
            value = first.gloo if variable.startswith("GLOO") else first.nccl
            seen = f"{_ranks(one.rank for one in lost)}: {variable}={value}, and {first.host} has " + ", ".join(
                first.interfaces
            )
            rule = "messages go over the interface that this variable names"
            return Finding("interfaces", "wrong", seen, rule, "unset it, or name one that `ip address` shows")
        inner = [one for one, name in given.values() if name and set(named(name, one.interfaces)) == {"lo"}]
        if several and inner:
            seen = f"{_ranks(one.rank for one in inner)}: {variable} names lo alone"
            rule, way_out = "lo leads to no other host", "name the interface of the network between the nodes"
            return Finding("interfaces", "wrong", seen, rule, way_out)
    inner = [one for one in ranks if one.address.startswith(_LOOPBACK) and not one.gloo]
    if several and inner:
        seen = f"{_ranks(one.rank for one in inner)}: {inner[0].host} takes its own name for {inner[0].address}"
        rule = "gloo gives the others the address to which a host's own name leads"
        return Finding("interfaces", "look", seen, rule, "set GLOO_SOCKET_IFNAME to the network between the nodes")
    return Finding("interfaces", "ok", _grouped({one.rank: ", ".join(one.interfaces) for one in ranks}).text)


def _gloo_names(value: str, there: Sequence[str]) -> list[str]:
    """The interfaces that are meant and are there; gloo takes whole names."""
    names = value.split(",")
    return names if set(names) <= set(there) else []


def _nccl_names(value: str, there: Sequence[str]) -> list[str]:
    """NCCL takes beginnings, `=` before whole names, and `^` before what is left out.

    Source: NCCL user guide, NCCL_SOCKET_IFNAME.
    """
    without, whole = value.startswith("^"), "=" in value[:2]
    names = value.lstrip("^=").split(",")
    fits = [name for name in there if any(name == one if whole else name.startswith(one) for one in names)]
    return [name for name in there if name not in fits] if without else fits


def ports(ranks: Sequence[Alone], found: Sequence[Together]) -> Finding:
    """Each rank reaches the next one at the port that it opened."""
    if closed := {one.rank: there.dialled for one, there in zip(ranks, found, strict=True) if there.dialled}:
        seen = f"{_ranks(closed)} cannot reach the next rank: {next(iter(closed.values()))}"
        rule = "ranks talk through ports of which the system chooses the number, and find hosts by name"
        return Finding("ports", "wrong", seen, rule, "look at the firewall between the nodes, and at /etc/hosts")
    if taken := sorted({one.host for one in ranks if not one.free_port}):
        seen, rule = f"{', '.join(taken)}: port {TORCHRUN_PORT} is taken", "torchrun takes it if no other is named"
        way_out = "start with --standalone, or --rdzv-endpoint=HOST:PORT with another"
        return Finding("ports", "look", seen, rule, way_out)
    return Finding("ports", "ok", f"every rank reaches the next one by name; port {TORCHRUN_PORT} is free")


def clocks(ranks: Sequence[Alone], ahead: Sequence[tuple[float, float]]) -> Finding:
    """All clocks show rank 0's time."""
    off, half, rank = max((abs(off) - half, half, one.rank) for one, (off, half) in zip(ranks, ahead, strict=True))
    host = next(one.host for one in ranks if one.rank == rank)
    if off <= _CLOCK_LOOK_S:
        most = max(abs(off) + half for off, half in ahead)
        return Finding("clocks", "ok", f"all within {format_seconds(max(most, 1e-6))} of rank 0's")
    seen = f"rank {rank} on {host} is off by {format_seconds(abs(ahead[rank][0]))}, give or take {format_seconds(half)}"
    rule, way_out = "what ranks write is put side by side by its time", f"let {host} follow a time server"
    return Finding("clocks", "wrong" if off > _CLOCK_WRONG_S else "look", seen, rule, way_out)


def folder(ranks: Sequence[Alone], found: Sequence[Together], name: str) -> Finding:
    """Every rank can write into the shared folder, and sees there what all others wrote."""
    way_out = "name a folder on the cluster's shared file system"
    if refused := {one.rank: there.folder for one, there in zip(ranks, found, strict=True) if there.folder}:
        seen = f"{name}: {_ranks(refused)} cannot write there: {next(iter(refused.values()))}"
        return Finding("folder", "wrong", seen, "every rank writes its part of a checkpoint", way_out)
    if apart := {one.rank: there.seen for one, there in zip(ranks, found, strict=True) if there.seen < len(ranks)}:
        seen = f"{name}: {_ranks(apart)} found {min(apart.values())} of {len(ranks)} files that ranks wrote"
        return Finding("folder", "wrong", seen, "a checkpoint is read by others than those who wrote it", way_out)
    return Finding("folder", "ok", f"{name}: every rank found the files of all {len(ranks)}")


def space(ranks: Sequence[Alone]) -> Finding:
    """There is room for checkpoints and, in /dev/shm, for what processes of a node hand each other."""
    disk = min(ranks, key=lambda one: one.disk_bytes)
    shm, host = min(((one.shm_bytes, one.host) for one in ranks if one.shm_bytes is not None), default=(None, ""))
    seen = f"{format_bytes(disk.disk_bytes)} free on {disk.host}"
    if shm is not None:
        seen += f", /dev/shm {format_bytes(shm)} on {host}"
    if shm is not None and shm <= _SHM_LOOK:
        rule = "NCCL and workers of data loaders hand over through /dev/shm, and end if it is full"
        verdict: Literal["look", "wrong"] = "wrong" if shm <= _SHM_WRONG else "look"
        return Finding("space", verdict, seen, rule, "give the container more: --shm-size=16g, or --ipc=host")
    if disk.disk_bytes <= _DISK_LOOK:
        rule = "a checkpoint has 12 bytes or more for each parameter, and the last is kept until the next is whole"
        verdict = "wrong" if disk.disk_bytes <= _DISK_WRONG else "look"
        return Finding("space", verdict, seen, rule, "make room, or name another folder=")
    return Finding("space", "ok", seen)


def wires(ranks: Sequence[Alone], found: Sequence[Together], cluster: ClusterSpec | None) -> Finding:
    """An all-reduce is right, and about as fast as the cluster's wires."""
    rows = found[0].rows
    if wrong := sum(row.wrong for row in rows):
        way_out = "leave out nodes until it is right: one of them is broken"
        return Finding("wires", "wrong", f"{wrong} numbers of all-reduces came out wrong", _EXACT, way_out)
    best = max(rows, key=lambda row: row.busbw)
    seen = f"busbw {_rate(best.busbw)} at {format_bytes(best.bytes)} on {_all(ranks)}"
    if cluster is None or len(ranks) == 1:
        return Finding("wires", "ok", seen)
    name, expected = _wire(ranks, cluster)
    share = best.busbw / expected
    seen += f", {share:.2g} of the {_rate(expected)} of {name}"
    if share >= _WIRE_LOOK:
        return Finding("wires", "ok", seen)
    way_out = _TAKEN + ", and at the lines of single links" * (len({one.host for one in ranks}) > 1)
    return Finding("wires", "wrong" if share < _WIRE_WRONG else "look", seen, _LONG, way_out)


def _wire(ranks: Sequence[Alone], cluster: ClusterSpec) -> tuple[str, float]:
    """What limits a ring of these ranks: the links of a domain, or its cards' share for so many ranks."""
    hosts, per_node = len({one.host for one in ranks}), min(one.local_ranks for one in ranks)
    in_domain = per_node * min(hosts, cluster.nodes_in_domain)
    there = wires_of(cluster).joining(in_domain)
    network = there.network_bytes_per_s * min(in_domain, there.domain) / there.domain
    if hosts <= cluster.nodes_in_domain or there.inside_bytes_per_s < network:
        return cluster.inside.name, there.inside_bytes_per_s
    return cluster.card.name, network


def links(ranks: Sequence[Alone], rows: Sequence[LinkRow], cluster: ClusterSpec | None) -> list[Finding]:
    """Each link alone is right, and about as fast as the others and the preset's: inside nodes, and between them."""
    findings = []
    hosts = {row: tuple(dict.fromkeys(ranks[one].host for one in row.ranks)) for row in rows}
    for what, ends in (("inside", 1), ("between", 2)):
        if alike := {row: names for row, names in hosts.items() if len(names) == ends}:
            preset = ("", 0.0) if cluster is None else _preset(what, ranks, alike, cluster)
            findings.append(_of_a_kind(what, alike, preset))
    return findings


def _preset(what: str, ranks: Sequence[Alone], rows: Iterable[LinkRow], cluster: ClusterSpec) -> tuple[str, float]:
    """What a node's ranks have inside, or each GPU's share of the cards where nodes are not of one domain."""
    if what == "between" and len({one.host for one in ranks}) > cluster.nodes_in_domain:
        return cluster.card.name, cluster.between.bandwidth_bytes_per_s
    joined = min(len(row.ranks) for row in rows)
    return cluster.inside.name, wires_of(cluster).joining(joined).inside_bytes_per_s


def _of_a_kind(what: str, hosts: _Hosts, preset: tuple[str, float]) -> Finding:
    """One finding; if some links are slow and others are not, it names them, and the node at which all of them end."""
    rows = sorted(hosts, key=lambda row: row.busbw)
    if wrong := [row for row in rows if row.wrong]:
        seen = f"{sum(row.wrong for row in wrong)} numbers of all-reduces came out wrong: {_named(wrong, hosts)}"
        return Finding(what, "wrong", seen, _EXACT, _suspect(wrong, hosts))
    (name, expected), slowest, fastest = preset, rows[0].busbw, rows[-1].busbw
    rates = _rate(fastest) if len(rows) == 1 else f"{slowest / 1e9:.3g} to {_rate(fastest)}"
    seen = f"busbw of {len(rows)} link{'s' * (len(rows) > 1)} {rates} at {format_bytes(rows[0].bytes)}"
    if expected:
        seen += f", the slowest {slowest / expected:.2g} of the {_rate(expected)} of {name}"
    # Links that reach between half of one data sheet's rate and all of it differ by a factor of two at most. Without
    # the sheet that is a reason to look and no more, for a link may be slow because it leaves a rack.
    usual = rows[3 * len(rows) // 4].busbw  # not the median: in a ring of three a slow node has two of the three pairs
    slow = [row for row in rows if row.busbw < _WIRE_LOOK * max(usual, expected)]
    if not slow:
        return Finding(what, "ok", seen)
    among_others = f"a link reaches at least {_WIRE_LOOK:g} of what others of its kind do"
    rule = _LONG if slowest < _WIRE_LOOK * expected else among_others
    verdict: Literal["look", "wrong"] = "wrong" if slowest < _WIRE_WRONG * expected else "look"
    if len(slow) == len(rows):
        return Finding(what, verdict, seen, rule, _TAKEN)
    return Finding(what, verdict, f"{seen}, slow: {_named(slow, hosts)}", rule, _suspect(slow, hosts))


def _named(rows: Sequence[LinkRow], hosts: _Hosts) -> str:
    """`node1 with node2 (ranks 0, 8) 2.1 GB/s`; of many the first."""
    said = [f"{' with '.join(hosts[row])} ({_ranks(row.ranks)}) {_rate(row.busbw)}" for row in rows[:4]]
    return ", ".join(said) + " …" * (len(rows) > 4)


def _suspect(rows: Sequence[LinkRow], hosts: _Hosts) -> str:
    common = set.intersection(*({*hosts[row]} for row in rows))
    if len(common) == 1:
        return f"leave out {common.pop()}, or look at its GPUs, network cards and cables"
    return "look at the network cards and cables of these hosts, or leave them out until it is right"


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.3g} GB/s"


class _Kinds(dict[str, list[int]]):
    """Ranks by what they say."""

    @property
    def text(self) -> str:
        """What is common to all, or who says what."""
        return next(iter(self)) if len(self) == 1 else "; ".join(f"{_ranks(who)}: {said}" for said, who in self.items())


def _grouped(said: dict[int, str]) -> _Kinds:
    kinds = _Kinds()
    for rank, what in said.items():
        kinds.setdefault(what, []).append(rank)
    return kinds


def _all(ranks: Sequence[Alone]) -> str:
    hosts = len({one.host for one in ranks})
    return f"{len(ranks)} rank{'s' * (len(ranks) > 1)} of {hosts} host{'s' * (hosts > 1)}"


def _each(counts: dict[str, int]) -> str:
    return ", ".join(f"{host} {count}" for host, count in counts.items())


def _ranks(numbers: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-7`, `ranks 0, 2, 5`; of many the first."""
    listed = list(numbers)
    if len(listed) == 1:
        return f"rank {listed[0]}"
    if listed == [*range(listed[0], listed[0] + len(listed))] and len(listed) > 2:
        return f"ranks {listed[0]}-{listed[-1]}"
    return f"ranks {', '.join(map(str, listed[:8]))}{' …' * (len(listed) > 8)}"


ALONE: tuple[Callable[[Sequence[Alone]], Finding], ...] = (versions, devices, hosts, interfaces, space)
