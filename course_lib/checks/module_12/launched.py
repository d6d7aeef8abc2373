"""12.1: from the variables of a Slurm task to those that `init_process_group` reads, and to a list of hosts."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from course_lib.checks.kit.asked import asked_exercise
from course_lib.checks.kit.said import plural, wrong_kind
from course_lib.checks.kit.spec import Level

_FIRST_PORT, _PORTS = 20_000, 10_000
_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_PART = re.compile(r"(?P<prefix>[^,\[]+)(?:\[(?P<inner>[^\]]+)\])?")
_Found = tuple[dict[str, Any], list[Any]] | str


class Task(NamedTuple):
    """One task of a job step: the variables that it finds, and what follows from them."""

    variables: dict[str, str]
    wanted: dict[str, str]
    hosts: list[str]

    def __str__(self) -> str:
        shown = ("SLURM_PROCID", "SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE")
        return ", ".join(f"{name.removeprefix('SLURM_')}={self.variables[name]}" for name in shown)


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Jobs of one kind: how their nodes are called, and whether each has as many tasks."""

    text: str
    prefixes: tuple[str, ...] = ("node",)
    digits: int = 2
    broken: bool = False  # the numbers of the nodes leave gaps
    uneven: bool = False
    cyclic: bool = False  # tasks are dealt out to the nodes in turn
    nodes: int = 4
    world_size: int = 1

    def __str__(self) -> str:
        return self.text

    def tasks(self, seed: int) -> list[Task]:
        """Up to three tasks of one job, the last one among them."""
        draw = random.Random(f"{seed} {self}")
        compact, hosts = self._hosts(draw)
        per_node = [draw.choice((2, 4)) for _ in hosts] if self.uneven else [draw.choice((2, 4, 8))] * len(hosts)
        if self.uneven:
            per_node[-2:] = [4, 2]
        places = [(local, node) for node, many in enumerate(per_node) for local in range(many)]
        if self.cyclic:
            places.sort()  # the first task of each node, then the second ones
        job, last = draw.randrange(1_000_000, 9_000_000), len(places) - 1
        ranks = sorted({last, draw.randrange(1, last + 1), (last + 1) // 2})
        return [_task(job, rank, *places[rank], (compact, hosts), per_node) for rank in ranks]

    def _hosts(self, draw: random.Random) -> tuple[str, list[str]]:
        """As Slurm writes them, and one by one."""
        texts, hosts = [], []
        for prefix in self.prefixes:
            first = draw.randrange(1, 7)
            numbers = [first + i for i in range(self.nodes)]
            if self.broken:
                numbers[-1] += draw.randrange(2, 5)
            names = [f"{number:0{self.digits}}" for number in numbers]
            inner = f"{names[0]}-{names[-2]},{names[-1]}" if self.broken else f"{names[0]}-{names[-1]}"
            texts.append(f"{prefix}[{inner}]" if len(names) > 1 else f"{prefix}{names[0]}")
            hosts += [f"{prefix}{name}" for name in names]
        return ",".join(texts), hosts


def _task(job: int, rank: int, local: int, node: int, named: tuple[str, list[str]], per_node: list[int]) -> Task:
    compact, hosts = named
    variables = {
        "SLURM_JOB_ID": job,
        "SLURM_JOB_NODELIST": compact,
        "SLURM_JOB_NUM_NODES": len(hosts),
        "SLURM_TASKS_PER_NODE": _compressed(per_node),
        "SLURM_NTASKS": sum(per_node),
        "SLURM_PROCID": rank,
        "SLURM_LOCALID": local,
        "SLURM_NODEID": node,
        "SLURMD_NODENAME": hosts[node],
        "SLURM_CPUS_ON_NODE": 64,
    }
    wanted = (rank, sum(per_node), local, per_node[node], hosts[0], _FIRST_PORT + job % _PORTS)
    return Task(
        {name: str(value) for name, value in variables.items()},
        {name: str(value) for name, value in zip(_NAMES, wanted, strict=True)},
        hosts,
    )


def _compressed(numbers: list[int]) -> str:
    """As Slurm writes a number for each node: `4(x2),2`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][0] == number:
            runs[-1][1] += 1
        else:
            runs.append([number, 1])
    return ",".join(f"{number}(x{often})" if often > 1 else str(number) for number, often in runs)


def _use(answer: Callable[..., Any], task: Task) -> _Found:
    """Runs on a rank; a text says what came instead of two things."""
    found = answer(dict(task.variables))
    if not isinstance(found, tuple | list) or len(found) != 2:
        return wrong_kind(type(found).__name__, "two things: a dict of variables, and a list of hosts")
    variables, hosts = found
    if not isinstance(variables, Mapping):
        return f"returned {type(variables).__name__} in first place, not a dict of variables"
    if not isinstance(hosts, list | tuple):
        return f"returned {type(hosts).__name__} in second place, not a list of hosts"
    return dict(variables), list(hosts)


def _judge(task: Task, found: _Found) -> str | None:
    if isinstance(found, str):
        return found
    variables, hosts = found
    if hosts != task.hosts:
        return f"the hosts are {_few(hosts)}, expected {_few(task.hosts)}"
    for name, right in task.wanted.items():
        if name not in variables:
            return f"{name} is not among the variables"
        got = variables[name]
        if got == right:
            continue
        if str(got) == right:
            return f"{name} is of type {type(got).__name__}: os.environ takes text alone"
        return f"{name} is {got}, expected {right}{_cause(task, name, str(got))}"
    return None


def _few(hosts: list[Any]) -> str:
    shown = ", ".join(map(str, hosts[:6]))
    return f"{plural(len(hosts), 'name')} ({shown}{', ...' * (len(hosts) > 6)})"


def _cause(task: Task, name: str, got: str) -> str:
    """What the wrong value is instead, if it is another one of Slurm's; empty if that is not seen."""
    given = task.variables
    if name == "MASTER_PORT" and got == given["SLURM_JOB_ID"]:
        return ": that is the job's id, and a port is below 65,536"
    if name == "MASTER_ADDR" and got == given["SLURMD_NODENAME"]:
        return ": that is the node of this task, and all tasks must name the same one"
    of = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_NTASKS"}
    twins = [one for one in of.values() if given[one] == got]
    return f": that is {twins[0]}" if twins and name in of else ""


def _expanded(compact: str, *, width: bool = True, gaps: bool = True) -> list[str]:
    """The hosts of a list as Slurm writes it; without `width` zeros in front are lost, without `gaps` commas inside."""
    hosts: list[str] = []
    for part in _PART.finditer(compact):
        for numbers in part["inner"].split(",")[: None if gaps else 1] if part["inner"] else []:
            first, _, last = numbers.partition("-")
            digits = len(first) if width else 0
            hosts += [f"{part['prefix']}{number:0{digits}}" for number in range(int(first), int(last or first) + 1)]
        hosts += [part["prefix"]] * (not part["inner"])
    return hosts


def _launched(variables: dict[str, str], mistake: str = "") -> tuple[dict[str, str], list[str]]:
    """The right answer, and a few wrong ones."""
    hosts = _expanded(variables["SLURM_JOB_NODELIST"], width=mistake != "width", gaps=mistake != "gaps")
    per_node: list[int] = []
    for part in variables["SLURM_TASKS_PER_NODE"].split(","):
        number, _, often = part.rstrip(")").partition("(x")
        per_node += [int(number)] * int(often or 1)
    node, local = int(variables["SLURM_NODEID"]), int(variables["SLURM_LOCALID"])
    first = per_node[0] if mistake == "first" else per_node[node]
    rank = {
        "blocks": sum(per_node[:node]) + local,
        "even": node * per_node[node] + local,
    }.get(mistake, int(variables["SLURM_PROCID"]))
    port = _FIRST_PORT if mistake == "port" else _FIRST_PORT + int(variables["SLURM_JOB_ID"]) % _PORTS
    address = variables["SLURMD_NODENAME"] if mistake == "here" else hosts[0]
    found = (rank, variables["SLURM_NTASKS"], local, first, address, port)
    return {name: str(value) for name, value in zip(_NAMES, found, strict=True)}, hosts


_LAUNCHED = asked_exercise(
    key="12.1",
    title="who am I? From Slurm's variables to PyTorch's",
    records=lambda case, seed: case.tasks(seed),
    use=_use,
    judge=_judge,
    quick=True,
    slips={
        "the zeros in front of a node's number are lost: it is node03, not node3": partial(_launched, mistake="width"),
        "what stands behind a comma inside the brackets is missing": partial(_launched, mistake="gaps"),
        "each task names its own node as the master, so each would wait at another place": partial(
            _launched, mistake="here"
        ),
        "every job gets the same port, and two jobs that share a node would meet": partial(_launched, mistake="port"),
        "LOCAL_WORLD_SIZE is that of the first node, and nodes may have other numbers of tasks": partial(
            _launched, mistake="first"
        ),
        "the rank is computed as if each node had as many tasks as this one; SLURM_PROCID is the rank": partial(
            _launched, mistake="even"
        ),
        "the rank is computed as if a node's tasks were neighbours; Slurm may deal them out in turn, and SLURM_PROCID "
        "is the rank": partial(_launched, mistake="blocks"),
    },
    levels={
        "even": Level(
            points=2,
            cases=(Allocation(text="four nodes"), Allocation(text="one node", nodes=1)),
            praise="every task knows who it is, and all of them name the same master",
        ),
        "uneven": Level(
            points=2,
            again=True,
            cases=(
                Allocation(text="a gap in the list", broken=True),
                Allocation(text="nodes with unlike numbers of tasks", broken=True, uneven=True),
                Allocation(text="tasks dealt out in turn", uneven=True, cyclic=True, nodes=3),
            ),
            praise="and where nodes are uneven, or tasks are dealt out in turn",
        ),
        "names": Level(
            points=1,
            cases=(
                Allocation(text="three digits", digits=3, broken=True),
                Allocation(text="two kinds of nodes", prefixes=("gpu", "big"), broken=True, uneven=True),
                Allocation(text="names with a dash", prefixes=("rack1-",), nodes=3),
                Allocation(text="two nodes that share no number", prefixes=("login", "gpu"), nodes=1),
            ),
            praise="and however the nodes are called",
        ),
    },
    hints=(
        "Three of the six variables need no arithmetic: Slurm has them, under other names. Which one says how many "
        "tasks there are in all?",
        "SLURM_TASKS_PER_NODE has a number for each node, and 4(x2) stands for 4,4. Write them all into a list; "
        "SLURM_NODEID is the place of this node in it.",
        "In the node list a comma outside of brackets parts two names, and one inside parts two numbers. So walk "
        "through the text and remember whether you are inside, or let a regular expression find a name up to its "
        "closing bracket.",
        "01-03 counts from 1 to 3, and its numbers have as many digits as its text: f'{number:0{len(first)}}'.",
    ),
)
