"""What this machine is, in words that do not say whose it is."""

from __future__ import annotations

import os
import platform
import subprocess

from course_lib.units import GiB


def describe_machine() -> str:
    """Cores, memory, processor, operating system."""
    return f"{cores()} cores, {memory_bytes() / GiB:.0f} GiB memory, {_processor()}, {platform.system()}"


def memory_bytes() -> int:
    """Memory of the whole machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    """The processor's model, as the operating system names it."""
    if platform.system() == "Darwin":
        asked = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True)
        return asked.stdout.strip() or platform.machine()
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()
