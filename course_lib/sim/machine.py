"""What of a cluster the rates depend on."""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.errors import four_parts
from course_lib.hardware import ClusterSpec, Device, wires
from course_lib.sim.policies import Value

_GENERATIONS = {
    "V100": "V100",
    "A100": "A100",
    "A800": "A100",
    "H100": "H100",
    "H200": "H100",
    "H800": "H100",
    "B200": "Blackwell",
    "B300": "Blackwell",
}
_ALPHA_S = 3.4e-6  # NCCL 2.30, src/graph/tuning.cc, hwLatencies (NVLink, ring, Simple)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A cluster in numbers: data sheet values, one each or one for each policy. Units: FLOP/s, bytes/s, seconds."""

    generation: str
    bf16_flops_per_s: Value
    fp8_flops_per_s: Value  # of bf16 where the device has no FP8, and of FP4 where a run multiplies so
    memory_bytes: Value
    memory_bytes_per_s: Value
    inside_bytes_per_s: Value  # of all NVLinks of one GPU, one way
    pair_bytes_per_s: Value  # of those between two GPUs: all where there is a switch
    between_bytes_per_s: Value  # of one GPU's share of the node's network, one way
    domain: Value  # GPUs that NVLink joins
    inside_alpha_s: Value = _ALPHA_S


def machine_of(cluster: ClusterSpec) -> Machine:
    """The numbers of a cluster.

    Raises: ValueError for a device without a bf16 or fp16 peak, or of an unknown generation.
    """
    device, inside = cluster.device, wires(cluster)
    half, fp8 = peaks_of(device)
    return Machine(
        generation=generation_of(device.name),
        bf16_flops_per_s=half,
        fp8_flops_per_s=fp8,
        memory_bytes=float(device.usable_bytes),
        memory_bytes_per_s=device.memory_bandwidth_bytes_per_s,
        inside_bytes_per_s=inside.inside_bytes_per_s,
        pair_bytes_per_s=inside.pair.bandwidth_bytes_per_s,
        between_bytes_per_s=cluster.between.bandwidth_bytes_per_s,
        domain=inside.domain,
        inside_alpha_s=cluster.inside.alpha_s,
    )


def peaks_of(device: Device) -> tuple[float, float]:
    """Dense peaks of 16 and of 8 bits: of fp16 where there is no bf16, and of 16 bits where there is no FP8.

    Raises: ValueError for a device without a bf16 or fp16 peak.
    """
    peaks = device.dense_flops_per_s
    half = peaks["bf16"] if "bf16" in peaks else device.peak_flops_per_s("fp16")
    return half, peaks.get("fp8", half)


def has_constants(device: Device) -> bool:
    """Whether a step on this GPU can be timed: runs of its generation were published and fitted."""
    return any(name in device.name for name in _GENERATIONS)


def generation_of(device: str) -> str:
    """The generation of a GPU by its name: its constants are those of its generation.

    Raises: ValueError for a name without a known generation.
    """
    found = [generation for name, generation in _GENERATIONS.items() if name in device]
    if not found:
        rule, known = "its generation has no constants", ", ".join(_GENERATIONS)
        raise ValueError(four_parts("sim", f"device {device!r}", rule, f"take one of {known}"))
    return found[0]
