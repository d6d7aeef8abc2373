"""The nodes of a Slurm allocation, from which ranks come instead of from the notebook's own machine.

`srun` starts one process on each node (`node.py`) and ends what is left of them; everything else is the notebook's: it
listens, lets in who proves to know its secret, and gives orders. A rank has the same two wires as on a laptop.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import course_lib
from course_lib.errors import four_parts
from course_lib.ranks import handshake, server
from course_lib.ranks.member import Member
from course_lib.ranks.remote import NodeLine, Remote
from course_lib.ranks.wire import NotebookEnd

_START_LIMIT_S = 120.0  # for srun to get its nodes, and for these to import torch
_JOIN_LIMIT_S = 60.0  # for the wires of a pool's ranks
_END_LIMIT_S = 5.0
_WIRES = ("work", "lifeline")
_LAPTOPS_OWN = ("GLOO_SOCKET_IFNAME",)  # its loopback interface, which leads to no other node


class Allocation:
    """`nodes` nodes with `per_node` places each; rank r has place r, one node after the other.

    Of more ranks than places every node takes more, equally many.

    Raises: OSError in four parts if `srun` cannot be run or ends, or a node does not answer in time.
    """

    def __init__(self, per_node: int, nodes: int, options: Sequence[str]) -> None:
        self.per_node, self.size = per_node, per_node * nodes
        self._secret = handshake.new_secret()
        self._wires: dict[tuple[str, int, int], socket.socket] = {}  # that ranks have dialled: kind, pool, rank
        self._nodes: dict[int, NodeLine] = {}
        self._pools = 0
        self._starting = 0  # the pool whose ranks are to dial now
        self._over = threading.Event()
        self._changed = threading.Condition()
        self._listener = socket.create_server(("", 0), backlog=128)
        threading.Thread(target=self._listen, name="allocation", daemon=True).start()
        self._said: Any = tempfile.TemporaryFile()  # noqa: SIM115  by srun, as long as it runs
        try:
            self._srun = self._run(nodes, options)
            self._wait(lambda: len(self._nodes) == nodes and self._ready(), _START_LIMIT_S, "start")
        except BaseException:
            self.end()
            raise

    @property
    def lost(self) -> list[str]:
        """The nodes from which nothing comes any more."""
        return [line.name for line in self._nodes.values() if line.lost]

    def _ready(self) -> bool:
        return all(line.is_ready for line in self._nodes.values())

    def _run(self, nodes: int, options: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start `srun`; the secret goes down its standard input, which it hands to every node."""
        shape = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1"]
        words = ["srun", "--overlap", "--cpu-bind=none", *shape, *options]
        words += [sys.executable, "-m", "course_lib.ranks.node"]
        environment = {name: value for name, value in os.environ.items() if name not in _LAPTOPS_OWN}
        root = str(Path(course_lib.__file__).parents[1])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        environment |= {name: os.environ.get(name, value) for name, value in server.QUIET.items()}
        try:
            started = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=self._said,
                stderr=self._said,
                env=environment,
                start_new_session=True,  # Jupyter interrupts a kernel's whole group, and srun ends after two interrupts
            )
        except OSError as error:
            raise OSError(four_parts("attach", str(error), "Slurm's srun starts the ranks", _WAY_OUT)) from None
        addresses = [socket.gethostname()]
        orders = {"secret": self._secret.hex(), "port": self._listener.getsockname()[1], "addresses": addresses}
        assert started.stdin is not None
        with suppress(BrokenPipeError):  # what srun said of it is told below
            started.stdin.write(json.dumps({**orders, "modules": server.needed()}).encode() + b"\n")
            started.stdin.flush()
        return started

    def _listen(self) -> None:
        """Let in who knows the secret. Each connection has a thread of its own: a silent one keeps nobody waiting."""
        while True:
            try:
                wire, _ = self._listener.accept()
            except OSError:
                if self._over.wait(0.1):
                    return
                continue  # a crowd has taken all descriptors, and is let go soon
            threading.Thread(target=self._admit, args=(wire,), name="allocation", daemon=True).start()

    def _admit(self, wire: socket.socket) -> None:
        try:
            hello = handshake.admit(wire, self._secret)
        except (OSError, ValueError):
            wire.close()
            return
        with self._changed:
            if hello["kind"] == "node":
                self._nodes[hello["number"]] = NodeLine(wire, hello["name"], self._changed)
            elif hello["pool"] == self._starting:
                self._wires[hello["kind"], hello["pool"], hello["rank"]] = wire
            else:
                wire.close()  # its pool was given up meanwhile
            self._changed.notify_all()

    def _wait(self, come: Callable[[], bool], seconds: float, doing: str) -> None:
        """Wait until something has come. Raises: OSError in four parts if srun ends, a node is lost, or time is up."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not come():
                self._check_nodes()
                if time.monotonic() > deadline:
                    raise self._error(f"ranks did not {doing} within {seconds:g} s")
                self._changed.wait(0.1)

    def _check_nodes(self) -> None:
        """Raise the four-part OSError unless `srun` runs and all nodes are there."""
        if self.lost:
            raise self._error(f"{', '.join(self.lost)} is lost")
        if self._srun.poll() is not None:
            raise self._error(f"srun ended with status {self._srun.returncode}")

    def _error(self, what: str) -> OSError:
        """What stands in the way, with the last line that srun said."""
        self._said.seek(0)
        last = self._said.read().decode(errors="replace").strip().rpartition("\n")[2]
        return OSError(four_parts("attach", f"{what} ({last})" if last else what, _RULE, _WAY_OUT))

    def start_members(self, world_size: int, folder: str, device: str) -> Iterator[Member]:
        """Start a rank at each of the first places; `folder` is this machine's and stays empty."""
        self._check_nodes()
        self._pools += 1
        self._starting = pool = self._pools
        nodes = [self._nodes[number] for number in sorted(self._nodes)]
        store, master = self._free_ports(nodes[0])
        shared = {"world_size": world_size, "device": device, "store": f"tcp://{store}", "master": master}
        by_node = list(zip(nodes, self._by_node(world_size), strict=False))
        started = {rank: Remote(node, pool, rank) for node, ranks in by_node for rank in ranks}
        try:
            for node, ranks in by_node:
                places = [{"rank": rank, "local_rank": place} for place, rank in enumerate(ranks)]
                node.tell(do="start", pool=pool, seats=[{**shared, "local_size": len(ranks), **one} for one in places])
            self._wait(lambda: self._have_dialled(started), _JOIN_LIMIT_S, "start")
            for rank in range(world_size):
                wires = {kind: NotebookEnd(self._wires.pop((kind, pool, rank))) for kind in _WIRES}
                yield Member(rank=rank, process=started.pop(rank), **wires)
        finally:  # who was to get them may have been interrupted
            self._give_up(started)

    def _free_ports(self, node: NodeLine) -> list[str]:
        """Two of a node's, each with its address."""
        node.tell(do="ports")
        self._wait(lambda: node.ports is not None, _JOIN_LIMIT_S, "start")
        return [f"{node.address}:{port}" for port in node.take_ports()]

    def _have_dialled(self, started: Mapping[int, Remote]) -> bool:
        """Whether all wires are there. Raises: OSError in four parts if a rank ended before."""
        if ended := [rank for rank, process in started.items() if process.has_ended]:
            time.sleep(_LAST_WORDS_S)
            raise self._error(f"rank {ended[0]} ended at its start")
        return all((kind, self._starting, rank) in self._wires for rank in started for kind in _WIRES)

    def _give_up(self, started: Mapping[int, Remote]) -> None:
        """End ranks that nobody takes."""
        with self._changed:
            self._starting = 0
            wires, self._wires = self._wires, {}
        for wire in wires.values():
            wire.close()
        for process in started.values():
            process.kill()
            process.close()

    def _by_node(self, world_size: int) -> list[range]:
        each = max(self.per_node, -(-world_size // len(self._nodes)))
        return [range(at, min(at + each, world_size)) for at in range(0, world_size, each)]

    def notice(self, world_size: int) -> str:
        """A line for more ranks than places."""
        if world_size <= self.size:
            return ""
        return f"{world_size} ranks on {self.size} places: a node takes up to {len(self._by_node(world_size)[0])}\n"

    def end(self) -> None:
        """Let the nodes end, with all their ranks, and give a job of our own back."""
        self._over.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # a thread that waits for strangers would keep it open
        self._listener.close()
        for line in self._nodes.values():
            line.close()
        srun = getattr(self, "_srun", None)
        if srun is not None:
            assert srun.stdin is not None
            with suppress(OSError):
                srun.stdin.close()
            for end in (lambda: None, srun.terminate, srun.kill):
                end()
                with suppress(subprocess.TimeoutExpired):
                    srun.wait(_END_LIMIT_S)
                    break
        self._said.close()

    def forget(self) -> None:
        """Let go of it in a process that was forked: it is the other one's."""
        for line in self._nodes.values():
            line.forget()
        self._listener.close()


_LAST_WORDS_S = 0.5  # srun brings what a rank has said a little later than the news of its end
_RULE = "each node of the allocation runs one process that starts its ranks"
_WAY_OUT = "look at the job with squeue, then ranks.detach() and ranks.attach(…) again"
