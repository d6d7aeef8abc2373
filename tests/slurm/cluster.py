"""A cluster on one machine: Slurm's own daemons in a private folder, nodes with names of their own, GPUs that are not.

A node is a `slurmd` with its own host name and its own file of hosts, in which all names are this machine; its GPUs are
links to /dev/null. Everything ends with the daemons.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from tools.paths import LEARNER, ROOT, python_of

NODES = ("node1", "node2", "node3")  # one more than a job takes: it goes on there when a node has died
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "unshare", "ip", "tc")
_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"  # where daemons are
_READY_S = 30.0
# Cores and memory of a node are said, not had, so that every shipped job finds its room.
_SLURM = """\
ClusterName=toy
FirstJobId={first}
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/spool/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=10
KillWait=2
GresTypes=gpu
{nodes}
PartitionName=toy Nodes=ALL Default=YES MaxTime=01:00:00 State=UP
PartitionName=kempner_h100 Nodes=ALL MaxTime=3-00:00:00 State=UP
PartitionName=gpu Nodes=ALL MaxTime=3-00:00:00 State=UP
"""
_NODE = (
    "NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} CPUs=64 Boards=1 SocketsPerBoard=1 "
    "CoresPerSocket=64 ThreadsPerCore=1 RealMemory=500000 Gres=gpu:4 State=UNKNOWN"
)
_NAMED = 'hostname "$0" && mount --bind "$1" /etc/hosts && exec slurmd -D -N "$0"'


def missing_programs() -> list[str]:
    """Those of Slurm, and what gives nodes their names and networks, that are not here."""
    return [program for program in _PROGRAMS if not shutil.which(program, path=_PATH)]


def missing() -> str:
    """Why this machine cannot be such a cluster; empty if it can."""
    if absent := missing_programs():
        return f"no {', '.join(absent)} here; as root on Debian, make test-slurm installs them"
    if os.getuid() or subprocess.run(["unshare", "--mount", "--uts", "true"], capture_output=True).returncode:
        return "names for the nodes (unshare --mount --uts) need root"
    return ""


class Cluster:
    """The daemons of one cluster, and what its users type."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o755)  # munge wants its socket's folder open to all
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._namespaces: dict[str, Path] = {}  # of host names: what runs on a node is known by it
        self._write_files()
        path = f"{python_of(LEARNER).parent}:{_PATH}"  # a job has what its user has: torchrun, python
        of_python = {"PATH": path, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "", "OMP_NUM_THREADS": "1"}
        self.environment = {**os.environ, **of_python, "SLURM_CONF": str(folder / "slurm.conf")}

    def _write_files(self) -> None:
        port, *ports = _free_ports(1 + len(NODES))
        nodes = [_NODE.format(name=name, port=x) for name, x in zip(NODES, ports, strict=True)]
        first = 1 + os.getpid() % 19_000  # a job's number decides on its port, and two such clusters may be at work
        text = _SLURM.format(folder=self.folder, port=port, first=first, nodes="\n".join(nodes))
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost {' '.join(NODES)}\n")
        (self.folder / "munge.key").write_bytes(os.urandom(1024))
        (self.folder / "munge.key").chmod(0o600)
        gres = []
        for name in NODES:
            gpus = self.folder / "gpu" / name
            gpus.mkdir(parents=True)
            (self.folder / "spool" / name).mkdir(parents=True)
            for number in range(4):
                (gpus / f"nvidia{number}").symlink_to("/dev/null")
            gres.append(f"NodeName={name} Name=gpu File={gpus}/nvidia[0-3]\n")
        (self.folder / "gres.conf").write_text("".join(gres))
        (self.folder / "state").mkdir()

    def start(self) -> None:
        """Start all daemons; return when all nodes are idle."""
        sockets = {"--key-file": "munge.key", "--socket": "munge.sock", "--pid-file": "munge.pid"}
        sockets |= {"--log-file": "munge.log", "--seed-file": "munge.seed"}
        self._start("munged", "munged", "--foreground", *(f"{key}={self.folder / x}" for key, x in sockets.items()))
        self.wait_for(lambda: (self.folder / "munge.sock").exists())
        self._start("slurmctld", "slurmctld", "-D")
        for name in NODES:
            self._start_node(name)
        self.wait_for_nodes(len(NODES))

    def wait_for_nodes(self, count: int) -> None:
        """Wait until so many nodes are up, and nothing of a job is left there."""
        self.wait_for(lambda: f"{count} idle" in self.says("sinfo", "-h", "-p", "toy", "-o", "%D %t").splitlines())

    def _start_node(self, name: str) -> None:
        self._start(name, "unshare", "--mount", "--uts", "sh", "-c", _NAMED, name, str(self.folder / "hosts"))
        daemon = self._daemons[name].pid
        self.wait_for(lambda: _namespace(daemon) not in (None, _namespace(os.getpid())))
        found = _namespace(daemon)
        assert found is not None
        self._namespaces[name] = found

    def _start(self, name: str, *words: str) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self._daemons[name] = subprocess.Popen(
                words, env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def kill_node(self, name: str) -> None:
        """End a node's daemon and all that runs there, as a power cut does."""
        mine = self._namespaces.pop(name)
        for process in Path("/proc").glob("[0-9]*"):
            if _namespace(int(process.name)) == mine:
                with suppress(OSError):
                    os.kill(int(process.name), signal.SIGKILL)
        self._daemons.pop(name).wait()

    def bring_back(self, name: str) -> None:
        """Start a node that was killed, once its jobs are known to be over."""
        self._start_node(name)
        self.wait_for_nodes(len(NODES))

    def stop(self) -> None:
        """End all jobs and daemons."""
        for name in [*self._namespaces]:
            self.kill_node(name)
        for daemon in self._daemons.values():
            daemon.terminate()
            daemon.wait()

    def run(self, *words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        """What a user types, and what comes of it."""
        return subprocess.run(words, cwd=folder, env=self.environment, capture_output=True, text=True, timeout=300)

    def says(self, *words: str) -> str:
        """The output of a command."""
        return self.run(*words).stdout.strip()

    def wait_for(self, come: Callable[[], object], seconds: float = _READY_S) -> None:
        """Wait until something has come."""
        deadline = time.monotonic() + seconds
        while not come():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.1)

    def logs(self) -> str:
        """The ends of what the daemons said."""
        return "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in self.folder.glob("*.log"))


def _free_ports(count: int) -> list[int]:
    """Ports that nobody uses now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def _namespace(pid: int) -> Path | None:
    """In which names of hosts a process lives; None if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/ns/uts").readlink()
    return None
