"""Traces of a GPU, drawn in the form in which torch's profiler exports them: kernels, copies, and what the CPU did."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

COLLECTIVE = "ncclDevKernel_"
_NAMES = {
    "AllGather": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ReduceScatter": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "AllReduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "SendRecv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "Broadcast": "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
}
_COMPUTE = (
    "nvjet_tst_128x256_64x4_TNT",
    "flash_fwd_kernel",
    "triton_poi_fused_mul_silu_0",
    "multi_tensor_apply_kernel",
)
_COMPUTING, _BESIDE = 7, 11  # streams


@dataclass(frozen=True, kw_only=True)
class TracedStep:
    """What is in a trace: which collectives, and whether things run at the same time that one might take for one."""

    file: str
    kinds: tuple[str, ...]
    beside: bool = False  # kernels of a second stream, some of them inside of others
    together: bool = False  # two collectives at the same time, of two kinds and of one
    hidden: bool = False  # one that is never exposed

    def written(self, seed: int) -> str:
        """The text of the file as export_chrome_trace writes it."""
        draw = random.Random(f"{seed} {self.file}")
        events, now = [_event("ProfilerStep#4", "user_annotation", 0, 9e4, thread=1)], 100.0
        if self.hidden:
            events.append(_event(_NAMES["Broadcast"], "kernel", now - 30, 25, thread=20))  # a kernel begins before it
        for number in range(8):
            kind = self.kinds[number % len(self.kinds)]
            # The first kind takes longest and is nearly hidden; the last one is short, and nothing hides it.
            hidden = kind == self.kinds[0]
            bare = kind == self.kinds[-1]
            length = draw.uniform(900, 1300) if hidden else draw.uniform(220, 300)
            covered = draw.uniform(0.93, 0.98) if hidden else draw.uniform(0.05, 0.2) if bare else 0.7
            events += self._part(draw, kind, now, length, covered)
            now += length + 200 + draw.uniform(5, 60)
        draw.shuffle(events)
        group = {"backend": "nccl", "rank": 0, "world_size": 8}
        return json.dumps({"schemaVersion": 1, "distributedInfo": group, "traceEvents": events}, indent=1)

    def _part(
        self, draw: random.Random, kind: str, start: float, length: float, covered: float
    ) -> list[dict[str, Any]]:
        """A collective, kernels that cover a part of it, and what else is written meanwhile."""
        name, cut = _NAMES[kind], length * covered * draw.uniform(0.4, 0.6)
        one, two = (draw.choice(_COMPUTE) for _ in range(2))
        events = [
            _event(name, "kernel", start, length, thread=20),
            _event(one, "kernel", start - 40, 40 + cut, thread=_COMPUTING),
            _event(two, "kernel", start + cut, length * covered - cut, thread=_COMPUTING),
            _event("aten::mm", "cpu_op", start - 60, length + 90, thread=1),
            _event("cudaLaunchKernel", "cuda_runtime", start - 50, 6, thread=1),
            _event(f"nccl:{kind}", "gpu_user_annotation", start - 5, length + 50, thread=20),
            _event("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", start + length * covered, 20, thread=_COMPUTING),
            {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": int(start), "pid": 0, "tid": 1, "ts": start - 50},
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": 20, "args": {"name": "stream 20"}},
        ]
        if self.beside:
            events.append(_event(one, "kernel", start + 0.2 * cut, 0.5 * cut, thread=_BESIDE))
            events.append(_event(two, "kernel", start + 0.6 * cut, 0.9 * cut, thread=_BESIDE))
        if self.together:
            events.append(_event(name, "kernel", start + 0.7 * length, 0.3 * length + 30, thread=24))
            other = _NAMES[draw.choice([other for other in self.kinds if other != kind])]
            events.append(_event(other, "kernel", start + 0.9 * length, 0.1 * length + 60, thread=28))
        return events


def _event(name: str, category: str, start: float, length: float, *, thread: int) -> dict[str, Any]:
    device = 0 if category in ("kernel", "gpu_memcpy", "gpu_user_annotation") else 4711  # the CPU's is a process
    times = {"ts": round(5e6 + start, 3), "dur": round(length, 3)}
    return {"ph": "X", "cat": category, "name": name, "pid": device, "tid": thread, **times, "args": {}}
