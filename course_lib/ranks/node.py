"""What `srun` starts on each node of an allocation: it imports torch once and forks the ranks that the notebook wants.

It is to a node what the fork server is to the notebook's own machine. It dials the notebook, whose secret comes down
its standard input, and does what that says line by line; when the connection ends it kills its ranks and ends.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from course_lib.ranks.death import death_file
from course_lib.ranks.handshake import dial
from course_lib.ranks.stacks import dump_file, read_dump

_TICK_S = 0.05  # between two looks for ranks that have ended
_Key = tuple[int, int]  # a pool's number, a rank


class _Node:
    """This node's ranks, and the line to the notebook."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self._secret = bytes.fromhex(orders["secret"])
        self._port = int(orders["port"])
        self._address, self._line = self._dial_home(orders["addresses"])
        if interface := _interface_of(self._line.getsockname()[0]):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)  # by which other nodes reach this one as well
        self._received = b""
        self._folder = tempfile.mkdtemp(prefix="ranks-")
        self._ranks: dict[_Key, int] = {}  # their processes

    def _dial_home(self, addresses: list[str]) -> tuple[str, socket.socket]:
        """The first of the notebook's addresses at which it answers."""
        hello = {"kind": "node", "number": int(os.environ.get("SLURM_NODEID", "0")), "name": socket.gethostname()}
        problems = []
        for address in filter(None, [os.environ.get("SLURM_LAUNCH_NODE_IPADDR"), *addresses]):
            try:
                return address, dial(address, self._port, self._secret, hello)
            except OSError as error:
                problems.append(f"{address}: {error}")
        sys.exit(f"{hello['name']}: the notebook is not reached ({'; '.join(problems)})")

    def work(self) -> None:
        """Obey until the notebook is gone."""
        try:
            self._say(said="ready")
            while True:
                ready, _, _ = select.select([self._line], [], [], _TICK_S)
                for order in self._orders() if ready else ():
                    getattr(self, f"do_{order.pop('do')}")(**order)
                self._bury()
        except OSError:
            pass  # no notebook any more
        finally:
            for pid in self._ranks.values():
                _kill(pid)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _orders(self) -> Iterator[dict[str, Any]]:
        data = self._line.recv(2**16)
        if not data:
            raise ConnectionError("the notebook is gone")
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            yield json.loads(line)

    def _say(self, **words: Any) -> None:
        self._line.sendall(json.dumps(words).encode() + b"\n")

    def do_ports(self) -> None:
        """Tell two ports that nobody uses here: for the ranks' store, and for scripts that open one."""
        with socket.create_server(("", 0)) as one, socket.create_server(("", 0)) as other:
            self._say(said="ports", ports=[one.getsockname()[1], other.getsockname()[1]])

    def do_start(self, pool: int, seats: list[dict[str, Any]]) -> None:
        """Fork a rank for each seat."""
        for seat in seats:
            key = pool, int(seat["rank"])
            folder = os.path.join(self._folder, str(pool))
            os.makedirs(folder, exist_ok=True)
            if (pid := os.fork()) == 0:
                self._become(key, {**seat, "folder": folder})
            self._ranks[key] = pid
            self._say(said="started", pool=pool, rank=key[1], pid=pid)

    def _become(self, key: _Key, seat: dict[str, Any]) -> None:
        """In the forked process: dial the notebook twice, and be that rank. It never returns."""
        try:
            self._line.close()
            wires = {
                kind: dial(self._address, self._port, self._secret, {"kind": kind, "pool": key[0], "rank": key[1]})
                for kind in ("work", "lifeline")
            }
            from course_lib.ranks.entry import start

            start({}, **seat, **wires)
            os._exit(0)
        except BaseException as error:
            print(f"rank {key[1]}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)

    def do_kill(self, pool: int, rank: int) -> None:
        """End a rank, and what it has forked."""
        if (pid := self._ranks.get((pool, rank))) is not None:
            _kill(pid)

    def do_stack(self, pool: int, rank: int) -> None:
        """Let a rank write its stack, which is told with the next look."""
        if (pid := self._ranks.get((pool, rank))) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
            select.select([], [], [], _TICK_S)
            folder = os.path.join(self._folder, str(pool))
            self._say(said="stack", pool=pool, rank=rank, dump=read_dump(dump_file(folder, rank)))

    def _bury(self) -> None:
        """Tell of ranks that have ended."""
        for key, pid in list(self._ranks.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._ranks[key]
                _kill(pid)  # what it forked, which has its group
                dump = read_dump(death_file(os.path.join(self._folder, str(key[0])), key[1]))
                code = os.waitstatus_to_exitcode(status)
                self._say(said="ended", pool=key[0], rank=key[1], status=code, dump=dump)


def _interface_of(address: str) -> str:
    """The network interface that has an address; empty if this system does not tell."""
    ask_for_address, packed = 0x8915, socket.inet_aton(address)  # SIOCGIFADDR
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                if fcntl.ioctl(probe, ask_for_address, name.encode().ljust(256, b"\0"))[20:24] == packed:
                    return name
    return ""


def _kill(pid: int) -> None:
    for end in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            end(pid, signal.SIGKILL)


def main() -> None:
    """Read the orders, import what ranks need, and work."""
    orders = json.loads(sys.stdin.readline())
    node = _Node(orders)  # before the imports: who cannot be reached says so at once
    for name in orders["modules"]:
        importlib.import_module(name)
    from course_lib.ranks.warm import warm

    warm()
    node.work()


if __name__ == "__main__":
    main()
