"""What `preflight` finds out on each rank: first alone, then with the others. Facts only; nothing is judged here."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import course_lib
from course_lib.comm.switches import settings
from course_lib.gauges.acceptance import SweepRow, sweep_all_reduce
from course_lib.gauges.links_alone import LinkRow, time_links
from course_lib.ranks import devices

TORCHRUN_PORT = 29500  # which torchrun takes if nobody names another
_SIZES = {"cpu": (2**10, 2**14, 2**18, 2**22, 2**24), "cuda": (2**14, 2**20, 2**24, 2**28)}
_ROUNDS, _PINGS = 5, 8
_DIAL_S, _SEEN_S = 3.0, 5.0  # a shared folder may be some seconds late
_FILE, _SHM = ".preflight-{}", "/dev/shm"


@dataclass(frozen=True, kw_only=True)
class Alone:
    """One rank, as it is before it has met the others."""

    rank: int
    host: str
    local_ranks: int  # on its host
    python: str
    torch: str
    course: str
    device: str  # of a GPU its name
    gpus: int
    interfaces: tuple[str, ...]
    gloo: str  # the variables that name an interface; empty if not set
    nccl: str
    address: str  # to which its own host name leads
    free_port: bool  # torchrun's usual one
    disk_bytes: int  # free
    shm_bytes: int | None  # all of /dev/shm, which Linux alone has


@dataclass(frozen=True, kw_only=True)
class Together:
    """What one rank saw of the others."""

    dialled: str  # why it could not reach the next rank by its host's name; empty if it could
    folder: str = ""  # why the shared folder cannot be used from here
    seen: int = -1  # files of ranks that it found there; -1 if no folder was named
    clocks: tuple[tuple[float, float], ...] = ()  # on rank 0: by how much a rank's clock is ahead, give or take
    rows: tuple[SweepRow, ...] = field(default=())
    links: tuple[LinkRow, ...] = field(default=())  # each alone; none on one host


def look_alone(rank: int, local_ranks: int, device: str, folder: Path | None) -> Alone:
    """What this process can say by itself; `device` is "cpu" or "cuda"."""
    return Alone(
        rank=rank,
        host=socket.gethostname(),
        local_ranks=local_ranks,
        python=platform.python_version(),
        torch=torch.__version__,
        course=course_lib.__version__,
        device=torch.cuda.get_device_name(torch.cuda.current_device()) if device == "cuda" else "cpu",
        gpus=devices.gpus_here(),
        interfaces=tuple(name for _, name in socket.if_nameindex()),
        gloo=os.environ.get("GLOO_SOCKET_IFNAME", ""),
        nccl=os.environ.get("NCCL_SOCKET_IFNAME", ""),
        address=_address(),
        free_port=os.environ.get("MASTER_PORT") == str(TORCHRUN_PORT) or _is_free(TORCHRUN_PORT),
        disk_bytes=shutil.disk_usage(folder if folder is not None and folder.is_dir() else Path.cwd()).free,
        shm_bytes=shutil.disk_usage(_SHM).total if os.path.isdir(_SHM) else None,
    )


def look_together(folder: Path | None) -> Together:
    """What the ranks find out between them; all call it, with a group."""
    sizes = _SIZES["cuda" if torch.empty(1).is_cuda else "cpu"]
    with settings(guard=False, ledger=False):
        seen, problem = (-1, "") if folder is None else _seen(folder)
        return Together(
            dialled=_dialled(),
            folder=problem,
            seen=seen,
            clocks=_clocks(),
            rows=tuple(sweep_all_reduce(sizes, _ROUNDS)),
            links=tuple(time_links(_gathered(socket.gethostname()), sizes[-1], _ROUNDS)),  # of long messages alone
        )


def _address() -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("", port))
        except OSError:
            return False
    return True


def _gathered(value: Any) -> list[Any]:
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return everyone


def _dialled() -> str:
    """Each rank opens a port, and the one before it dials it by the host's name."""
    with socket.socket() as mine:
        mine.bind(("", 0))
        mine.listen()
        doors = _gathered((socket.gethostname(), mine.getsockname()[1]))
        host, port = doors[(dist.get_rank() + 1) % len(doors)]
        problem = ""
        try:
            socket.create_connection((host, port), timeout=_DIAL_S).close()
        except OSError as error:
            problem = f"{host}:{port}: {error.strerror or error}"
        dist.barrier()  # until all have dialled
    return problem


def _seen(folder: Path) -> tuple[int, str]:
    """Each rank leaves a file; how many of all can it find?"""
    mine, problem = folder / _FILE.format(dist.get_rank()), ""
    try:
        mine.write_text("here")
    except OSError as error:
        problem = error.strerror or str(error)
    dist.barrier()
    until = time.monotonic() + _SEEN_S
    while (seen := len([*folder.glob(_FILE.format("*"))])) < dist.get_world_size() and time.monotonic() < until:
        if problem:
            break
        time.sleep(0.1)
    dist.barrier()
    mine.unlink(missing_ok=True)
    return seen, problem


def _clocks() -> tuple[tuple[float, float], ...]:
    """Rank 0 asks each rank what time it is; of several answers the one that was quickest counts."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    told = torch.zeros(1, dtype=torch.float64, device="cpu")
    clocks = [(0.0, 0.0)]
    for other in range(1, ranks):
        answers = []
        for _ in range(_PINGS):
            if rank == 0:
                asked = time.time()
                dist.send(told, other)
                dist.recv(told, other)
                took = time.time() - asked
                answers.append((took / 2, told.item() - (asked + took / 2)))
            elif rank == other:
                dist.recv(told, 0)
                dist.send(torch.tensor([time.time()], dtype=torch.float64, device="cpu"), 0)
        if answers:
            half, ahead = min(answers)
            clocks.append((ahead, half))
    return tuple(clocks) if rank == 0 else ()
