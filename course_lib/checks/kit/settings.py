"""What code can change in its process beside what it returns: one table for all that reads or mends it.

A setting without a way to write it is mended by a new process alone.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from course_lib.comm import switches
from course_lib.garbage import is_looked_for

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1)  # those that end something here
_SMALLEST = sys.float_info.min / 2  # nothing, to a processor that was told to flush such numbers


class Setting(NamedTuple):
    """How to read it, and how to write what was read."""

    read: Callable[[], Any]
    write: Callable[[Any], Any] | None = None


def environment() -> dict[bytes, bytes]:
    """All variables. Its public copy decodes each one, which takes as long as all other settings together."""
    return dict(os.environ._data)  # type: ignore[attr-defined]


def _set_environment(wanted: Mapping[bytes, bytes]) -> None:
    """These variables and no others."""
    for name in environment().keys() - wanted.keys():
        del os.environb[name]
    os.environb.update(wanted)


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # somebody has removed it
        return ""


def _go_to(folder: str) -> None:
    with suppress(OSError):
        os.chdir(folder)


def _umask() -> int:
    mask = os.umask(0o77)
    os.umask(mask)
    return mask


def _set_filters(filters: tuple[Any, ...]) -> None:
    warnings.resetwarnings()
    warnings.filters.extend(filters)  # type: ignore[attr-defined]


def _set_switches(values: dict[str, bool]) -> None:
    vars(switches.active).update(values)


SETTINGS = (
    # PyTorch
    Setting(torch.is_grad_enabled, torch.set_grad_enabled),
    Setting(torch.get_default_dtype, torch.set_default_dtype),
    Setting(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    Setting(lambda: _SMALLEST * 1.0 == 0, torch.set_flush_denormal),
    Setting(torch.get_num_threads, torch.set_num_threads),
    Setting(torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    Setting(lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)),
    Setting(lambda: torch.get_autocast_dtype("cpu"), lambda dtype: torch.set_autocast_dtype("cpu", dtype)),
    Setting(torch.is_inference_mode_enabled),
    Setting(torch._C._len_torch_function_stack),  # of which a default device is one
    Setting(torch._C._len_torch_dispatch_stack),
    Setting(lambda: torch._C._autograd._top_saved_tensors_default_hooks(True)),
    # this package
    Setting(lambda: dict(vars(switches.active)), _set_switches),
    # the process
    Setting(environment, _set_environment),
    Setting(_folder, _go_to),
    Setting(_umask, os.umask),
    Setting(lambda: tuple(warnings.filters), _set_filters),
    Setting(lambda: signal.getitimer(signal.ITIMER_REAL), lambda left: signal.setitimer(signal.ITIMER_REAL, *left)),
    Setting(lambda: tuple(map(signal.getsignal, _SIGNALS))),
    Setting(sys.getrecursionlimit, sys.setrecursionlimit),
    Setting(is_looked_for, lambda on: gc.enable() if on else gc.disable()),
    Setting(socket.getdefaulttimeout, socket.setdefaulttimeout),
    Setting(lambda: tuple(sys.path)),
    Setting(lambda: (sys.stdout, sys.stderr)),
    Setting(lambda: (sys.gettrace(), sys.getprofile())),
    Setting(lambda: tuple(map(resource.getrlimit, (resource.RLIMIT_AS, resource.RLIMIT_NOFILE)))),
    Setting(threading.active_count),
)


def read() -> list[Any]:
    """What each of them is now. Cost: 30 µs."""
    return [setting.read() for setting in SETTINGS]
