"""The machine of a published run: from a GPU's name and what is printed about its network."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from course_lib.hardware import load_device
from course_lib.sim.machine import Machine, generation_of, peaks_of
from course_lib.units import GB

_FILE = Path(__file__).parent / "data" / "gpus.yaml"
_BITS = 1e9 / 8  # bytes/s of a Gb/s
_RATE = r"(\d+(?:\.\d+)?)\s*([GT])([Bb])(?:/s|ps|it/s)"  # 400 Gb/s, 3.2 Tb/s, 400 Gbps; a large B counts bytes
_CARDS = re.compile(r"(\d+)\s*[x×]\s*" + _RATE)
_ONE = re.compile(_RATE)
_INSIDE = re.compile(r"nvlink|nvswitch|nvl\d|xgmi|infinity fabric|pcie", re.IGNORECASE)
_MEMORY = re.compile(r"(\d+)-?gb\b")
_DRIVER = 1.065  # bytes that a driver reports of a printed GB: somewhat less than a GiB


def machine_called(gpu: str, gpus_per_node: int | None, interconnect: str) -> tuple[Machine, list[str]]:
    """The numbers of a GPU by its name, and what had to be assumed about its network.

    Raises: ValueError for a GPU that the table does not have.
    """
    found = _sheet_of(gpu)
    domain = found["node"] if found["node"] > 8 else (gpus_per_node or found["node"])
    network = network_of(gpu, interconnect, gpus_per_node or 8)
    assumed = [] if network else [f"network of {found['between'] / _BITS:.0f} Gb/s per GPU"]
    assumed += [] if gpus_per_node else [f"{found['node']} GPUs per node"]
    printed = _MEMORY.search(_plain(gpu))
    machine = Machine(
        generation=generation_of(found["name"]),
        bf16_flops_per_s=found["bf16"],
        fp8_flops_per_s=found["fp8"],
        memory_bytes=_memory(found, int(printed[1]) if printed else None),
        memory_bytes_per_s=found["bandwidth"],
        inside_bytes_per_s=found["inside"],
        pair_bytes_per_s=found["inside"],  # all published runs were on boards with a switch, or on whole boards
        between_bytes_per_s=network or found["between"],
        domain=domain,
    )
    return machine, assumed


def in_four_bits(machine: Machine, gpu: str) -> Machine:
    """The machine for a run whose products are of 4 bits: as of FP8, up to the peak of FP4.

    How much of that peak is reached was never fitted: all such runs are of one source.
    Raises: ValueError for a GPU that multiplies no 4 bits.
    """
    peak = _sheet_of(gpu).get("fp4")
    if peak is None:
        raise ValueError(f"the GPU {gpu!r} multiplies no numbers of 4 bits")
    return replace(machine, fp8_flops_per_s=peak)


def _memory(found: dict[str, Any], printed_gb: int | None) -> float:
    """What a program can use: of a device's preset if it has as much printed, else as drivers mostly report it."""
    device = load_device(found["device"]) if "device" in found else None
    if device is not None and printed_gb in (None, device.memory_gb):
        return float(device.usable_bytes)
    return printed_gb * GB * _DRIVER if printed_gb else float(found["memory"])


def network_of(gpu: str, interconnect: str, gpus_per_node: int) -> float | None:
    """Bytes/s of one GPU's share of its node's network, as a text states it; None if it does not.

    What is said of wires inside a node, as NVLink's rate, is no network. A rate is a node's, unless it is of several
    cards or of a GPU.

    >>> network_of("A100", "DGX A100, 8x200 Gb/s HDR InfiniBand", 8), network_of("H100", "400 Gb/s RDMA per GPU", 8)
    (25000000000.0, 50000000000.0)
    >>> network_of("H100", "NVLink 900 GB/s + 8x50 GB/s InfiniBand", 8)
    50000000000.0
    """
    own = [part for part in interconnect.split(";") if gpu.split("-")[0] in part]
    text = next((part for part in own if _ONE.search(part)), "" if own else interconnect)
    clauses = [part for part in re.split(r"[,;+]", text) if not _INSIDE.search(part)]
    for clause in clauses:
        if cards := _CARDS.search(clause):
            return int(cards[1]) * _bytes_per_s(*cards.groups()[1:]) / gpus_per_node
    for clause in clauses:
        if one := _ONE.search(clause):
            return _bytes_per_s(*one.groups()) / (1 if "per gpu" in clause.lower() else gpus_per_node)
    return None


def _bytes_per_s(number: str, size: str, unit: str) -> float:
    """Of a rate as it is printed."""
    return float(number) * (1000 if size == "T" else 1) * (GB if unit == "B" else _BITS)


def _sheet_of(gpu: str) -> dict[str, Any]:
    found = next((one for one in _gpus() if _matches(one["name"].lower(), _plain(gpu))), None)
    if found is None:
        raise ValueError(f"no data sheet for the GPU {gpu!r}; known: {', '.join(one['name'] for one in _gpus())}")
    return found


@cache
def _gpus() -> tuple[dict[str, Any], ...]:
    return tuple(map(_figures, yaml.safe_load(_FILE.read_text(encoding="utf-8"))))


def _figures(row: dict[str, Any]) -> dict[str, Any]:
    """A GPU's row; peaks, memory's rate and NVLink from the device's preset where it names one."""
    if "device" not in row:
        return row
    device = load_device(row["device"])
    half, fp8 = peaks_of(device)
    inside = device.nvlinks * device.nvlink_bytes_per_s
    return row | {"bf16": half, "fp8": fp8, "bandwidth": device.memory_bandwidth_bytes_per_s, "inside": inside}


def _matches(known: str, name: str) -> bool:
    """Whether all parts of a known name, as A100 and 40GB, stand in the name."""
    return all(part in name for part in known.split("-"))


def _plain(name: str) -> str:
    return name.lower().replace(" ", "-").replace("_", "-")
