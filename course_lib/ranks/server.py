"""The fork server: one process that imports torch once, forks all ranks, and ends with the notebook.

What the ranks need on disk stands in one folder, which the server removes when the notebook is gone: after a SIGKILL
nobody else could.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from typing import Any

from course_lib.errors import four_parts

FOLDER = "COURSE_LIB_RANKS_FOLDER"  # the environment variable that names it to the server

QUIET = {  # logs that would stand between what the ranks print
    "TORCH_CPP_LOG_LEVEL": "FATAL",  # gloo's lines about a lost rank, which ours names
    "KINETO_LOG_LEVEL": "6",  # a line for each start and end of a profiler
}
_needed = [  # by name: what most tasks import stands above this package
    "course_lib.comm.collectives",
    "course_lib.verify.ladder",
    "course_lib.training.sharding",
    "course_lib.training.techniques",
    "course_lib.training.tensor_technique",
]
_folder = ""


def preload(*modules: str) -> None:
    """Let the fork server import these too, once for all ranks; of use before it has started."""
    _needed.extend(name for name in modules if name not in _needed)


def needed() -> list[str]:
    """What is imported before the first rank is forked, by name."""
    return list(_needed)


def start_fork_server() -> None:
    """Let the fork server import torch, which takes a second or two, while the caller goes on.

    Raises: OSError in four parts if the system refuses.
    """
    forkserver.set_forkserver_preload(["course_lib.ranks.tether", *_needed, "course_lib.ranks.preload"])
    _stay_on_this_machine()
    with refusals_told():
        folder = _shared_folder()
        wanted = {**QUIET, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/compiled"}  # an optimizer's import makes it
        with _environment({name: os.environ.get(name, value) for name, value in wanted.items()} | {FOLDER: folder}):
            forkserver.ensure_running()
    wake_fork_server()


def wake_fork_server() -> None:
    """Let the server go on if a signal has stopped it: whoever asks it for a process then waits for ever."""
    server: Any = forkserver._forkserver
    if server._forkserver_pid is not None:
        with suppress(ProcessLookupError):
            os.kill(server._forkserver_pid, signal.SIGCONT)


def new_folder() -> str:
    """A folder for one pool."""
    return tempfile.mkdtemp(dir=_shared_folder())


def _shared_folder() -> str:
    global _folder
    if not _folder:
        _folder = tempfile.mkdtemp(prefix="ranks-")
        atexit.register(_remove_folder, os.getpid())
    os.makedirs(_folder, mode=0o700, exist_ok=True)  # who tidies temporary folders may have taken it
    return _folder


def _remove_folder(owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(_folder, ignore_errors=True)


@contextmanager
def refusals_told() -> Iterator[None]:
    """Say in four parts what the system refused at a start."""
    try:
        yield
    except OSError as error:
        rule = "ranks need processes, sockets and a small file in the temporary folder"
        way_out = "make room there or set TMPDIR to another folder, with a short path"
        raise OSError(four_parts("ranks", f"{error} (in {tempfile.gettempdir()})", rule, way_out)) from None


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """These environment variables for a process that is started meanwhile."""
    new = variables.keys() - os.environ.keys()
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]


def _stay_on_this_machine() -> None:
    """Let gloo use the loopback interface: nothing leaves the laptop, and no host name has to resolve."""
    loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback[0])


def forget_fork_server() -> None:
    """Let go of the server, which stays the other process's: a fork's copy of it would keep it alive, and be no use."""
    server: Any = forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
    server._forkserver_alive_fd = server._forkserver_pid = server._forkserver_address = None


os.register_at_fork(after_in_child=forget_fork_server)
