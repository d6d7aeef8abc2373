"""Devices: memory and peaks, as their data sheets print them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from course_lib import presets
from course_lib.errors import four_parts
from course_lib.units import GB, GiB, format_bytes


@dataclass(frozen=True, kw_only=True)
class Device:
    """One GPU.

    Units: FLOP/s by number format, bytes per second. Sparse peaks count products with zeros that are skipped
    (two of four weights): training dense models never reaches them.
    """

    name: str
    cuda_name: str  # as `torch.cuda.get_device_name` gives it
    memory_gb: int  # as printed; what a program can use lies between this many GB and GiB
    memory_bandwidth_bytes_per_s: float
    dense_flops_per_s: Mapping[str, float]
    sparse_flops_per_s: Mapping[str, float]
    nvlinks: int
    nvlink_bytes_per_s: float  # of one link, one way
    source: str
    date: str
    usable_gib: float | None = None  # the least that CUDA was seen to offer a program; None: nobody was asked
    usable_source: str = "no log was read: the printed memory as GB, the cautious way"

    @property
    def usable_bytes(self) -> int:
        """What a program can use: of 80 GB as printed an H100 offers 79.1 GiB; without a log the printed memory as GB.

        CUDA's context and NCCL's rooms are in it, and have to be left for them.
        """
        return self.memory_bytes() if self.usable_gib is None else int(self.usable_gib * GiB)

    @property
    def usable_in_words(self) -> str:
        """That with where it is from."""
        return f"{format_bytes(self.usable_bytes)} of {self.memory_gb} GB: {self.usable_source}"

    def memory_bytes(self, binary: bool = False) -> int:
        """The printed memory read as GB, the cautious way, or as GiB."""
        return self.memory_gb * (GiB if binary else GB)

    def peak_flops_per_s(self, dtype: str = "bf16", sparse: bool = False) -> float:
        """The peak for numbers of `dtype`, dense unless asked otherwise.

        Raises: ValueError if the data sheet has none.
        """
        peaks = self.sparse_flops_per_s if sparse else self.dense_flops_per_s
        if dtype not in peaks:
            rule = f"the data sheet has no {'sparse' if sparse else 'dense'} peak for it"
            way_out = f"choose one of {', '.join(peaks)}" if peaks else "ask for the dense peak"
            raise ValueError(four_parts(self.name, f"dtype={dtype!r}", rule, way_out))
        return peaks[dtype]


def device_names() -> tuple[str, ...]:
    """The devices there are."""
    return presets.names("device")


def device_called(cuda_name: str) -> Device | None:
    """The device that CUDA calls so, if its data sheet is here."""
    devices = map(load_device, device_names())
    return next((device for device in devices if device.cuda_name == cuda_name), None)


@cache
def load_device(name: str) -> Device:
    """The device of a preset file.

    Raises: ValueError for a name that no preset has.
    """
    return Device(**presets.read("device", name))
